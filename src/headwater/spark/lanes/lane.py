"""A lane: queries of an app that advance together, batch by batch.

    wait       until a topic has records, or a query needs a batch at a time of its own
    begin      the offsets and the processing time of the batch are recorded for every query
    run        records are read and decoded once, all queries are computed (`batch_run`)
    commit     states are written, then sinks, then all views in one transaction; the batch is finished

A query that fails drops out with its error, and the others go on. After a crash, a batch that was begun and not
finished is run again with the same offsets and time; views and sinks skip what they have. Queries that are behind
others of the lane, because they have just joined it for example, first get batches of their own.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TypeVar

from headwater.app import Topic
from headwater.clock import Clock
from headwater.errors import UnavailableError
from headwater.spark.lanes.batch_log import BeganBatch
from headwater.spark.lanes.batch_run import BatchRun, StagePlans
from headwater.spark.lanes.jobs import LaneJobs, TookTooLongError
from headwater.spark.lanes.log_ends import LogEnds, UnreadableTopicError
from headwater.spark.lanes.member import Member, MemberBatch
from headwater.spark.lanes.positions import behind, furthest, interrupted
from headwater.spark.lanes.sharing import in_groups
from headwater.spark.lanes.topic_rows import Decoder, TooLargeError, TopicRows
from headwater.spark.lanes.writing import BatchWrite, StoreBatch, Timer, start_write, still_writing
from headwater.spark.source import topic_reads
from headwater.spark.source.offsets import Offsets, Range, limit_offsets
from headwater.store.batches import BatchCommitError
from headwater.store.views import ViewStore
from headwater.transmit.client.waiting import RecordWaiter

T = TypeVar("T")

WAIT_S = 10.0
PATIENCE_S, RETRY_S = 60.0, 0.2
REST_MAX_S = 0.1
"""A lane that has read all records rests as long as its batch took, and at most this long."""

SLOW_S = 2.0
"""A query whose sink takes longer for a batch leaves the lane, and goes on in one of its own."""

STOP_S = 10.0
"""Time for which a stop waits for the end of a batch. After that, the batch is cancelled."""

SHRUNK_S = 10.0
"""Time for which a topic may end before the records that were read, while a broker starts for example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """The sessions, plans and addresses that all lanes of an app share."""

    plans: StagePlans
    store: ViewStore
    servers: str
    clock: Clock
    once: bool
    decoder: Callable[[Topic], Decoder]
    """Returns the decoder of a topic."""


class _Turn(Enum):
    """The result of a turn of a lane."""

    WORKED = auto()
    CAUGHT_UP = auto()
    """It ran a batch with all records that there were."""
    IDLE = auto()
    ENDED = auto()


class Lane:
    """Queries that advance together, in a thread of their own."""

    def __init__(
        self,
        members: Sequence[Member],
        settings: LaneSettings,
        on_turn: "Callable[[Lane], None]",
        on_leave: "Callable[[Member, BatchWrite | None], None]",
        unfinished: BatchWrite | None = None,
    ) -> None:
        """With `unfinished`, its only query is still writing the batch with which it has left another lane."""
        self.members = list(members)
        self._gate, self._batch = threading.Lock(), threading.Lock()
        self.is_ended = self._is_abandoned = False
        self._settings = settings
        self._on_turn = on_turn
        self._on_leave = on_leave
        self._unfinished = unfinished
        self.jobs = LaneJobs(settings.plans.small.spark.sparkContext)
        self._ends = LogEnds(settings.servers)
        self._waiter = RecordWaiter(settings.servers, read_committed=True)
        self._stop_at: Offsets | None = None
        self._woken: set[str] = set()
        self._shrunk_at: float | None = None
        self._latest: Offsets = {}
        self._thread = threading.Thread(target=self._main, name="headwater-lane", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """End the wait for records, so that the lane looks at its members."""
        with suppress(OSError):  # It may just have ended.
            self._waiter.interrupt()

    def ask_to_stop(self) -> None:
        """Let its queries end after the same batch; one that takes long is cancelled, and runs again later."""
        members = list(self.members)  # The lane may end in the meantime.
        if len(members) == 1:
            members[0].query.ask_to_stop()  # At once: it need not wait for a sink that does not answer.
        with self._gate, self.jobs.cancelled_after(STOP_S):
            is_between = self._batch.acquire(timeout=2 * STOP_S)
        self._is_abandoned = not is_between  # It runs code of Spark's that cannot be cancelled.
        for member in list(self.members):
            member.query.ask_to_stop()
            if self._is_abandoned:
                member.query.end()
        if is_between:
            self._batch.release()

    def join(self) -> None:
        """Wait until it has ended, if it can."""
        if not self._is_abandoned:
            self._thread.join()

    @contextmanager
    def between_batches(self) -> Iterator[None]:
        """Keep the lane between two batches. A lane that is busy lets others in before its next batch."""
        with self._gate, self._batch:
            yield

    @property
    def position(self) -> Offsets:
        """The offsets that its queries have read; those of the furthest, while others are behind."""
        return furthest(self.members)

    @property
    def topics(self) -> set[str]:
        """The topics that its queries read."""
        return {name for member in self.members for name in member.topics}

    @property
    def latest(self) -> Offsets:
        """The ends of its topics when it last looked."""
        return self._latest

    # -- the loop ---------------------------------------------------------------------------------------------

    def _main(self) -> None:
        self._settings.plans.small.activate()
        self.jobs.bind()
        try:
            if self._unfinished is not None:
                self._finish_write(self._unfinished)
            began = time.monotonic()
            while (turn := self._turn()) is not _Turn.ENDED:
                self._on_turn(self)
                if turn is _Turn.IDLE and self.members:
                    self._waiter.wait(self._waited_for(), self._wait_s())
                elif turn is _Turn.CAUGHT_UP and not self._settings.once:
                    # Without rests, a few records per second would keep more than a core busy.
                    took = time.monotonic() - began
                    self._waiter.wait({}, min(took, REST_MAX_S, self._wait_s()))
                began = time.monotonic()
        except BaseException as error:  # A query must not seem to run when its thread has ended.
            self._fail(self.members, error)
        finally:
            with self._batch:
                self.is_ended = True
                for member in self.members:
                    member.query.end()
                self.members.clear()
            self._waiter.close()
            self._ends.close()
            self.jobs.close()

    def _turn(self) -> _Turn:
        """Run a batch if there is anything to do."""
        with self._gate:
            pass
        with self._batch:
            self._remove_stopped()
            if not self.members:
                self.is_ended = True  # While others cannot get in: no query may join any more.
                return _Turn.ENDED
            try:
                turn = self._advance()
                if turn is not _Turn.IDLE:
                    return turn
            except UnreadableTopicError as error:
                self._fail(_readers(error.topics, self.members), error)
                return _Turn.WORKED
            except Exception as error:
                self._fail(self.members, error)
                return _Turn.WORKED
            self.is_ended = self._settings.once
            return _Turn.ENDED if self._settings.once else _Turn.IDLE

    def _remove_stopped(self) -> None:
        for member in [member for member in self.members if member.query.is_stopping]:
            self.members.remove(member)
            member.query.end()

    def _fail(self, members: Sequence[Member], error: BaseException) -> None:
        for member in [member for member in members if member in self.members]:  # The others have failed before.
            self.members.remove(member)
            member.query.end(error)

    def _waited_for(self) -> Offsets:
        """Return the next offsets of all partitions that its queries read."""
        position = self.position
        return {tp: end for tp, end in self._latest.items() if end >= position.get(tp, end)}

    def _wait_s(self) -> float:
        due = min((member.due for member in self.members if member.due is not None), default=None)
        if self._shrunk_at is not None:
            return RETRY_S
        if due is None:
            return WAIT_S
        return min(WAIT_S, max(0.0, due / 1_000_000 - self._settings.clock.now_ms() / 1000) + 0.001)

    # -- a batch ----------------------------------------------------------------------------------------------

    def _advance(self) -> _Turn:
        """Run a batch if there is anything to do."""
        now = self._settings.clock.now_ms()
        if members := interrupted(self.members):
            ends = [member.unfinished.end for member in members if member.unfinished is not None]
            self._run(members, {tp: at for end in ends for tp, at in end.items()}, now)
            return _Turn.WORKED
        latest = self._look_up()
        self._find_new_partitions(latest)
        position = self.position
        front = {tp: min(at, position[tp]) for tp, at in latest.items()}
        if members := behind(self.members, front):
            self._run(members, self._end(members, front), now)
            return _Turn.WORKED
        shrunk = self._shrunk(latest)
        end = self._end(self.members, latest)
        changed = {tp.topic for tp, at in end.items() if at > position[tp]}
        due = [m for m in self.members if m.due is not None and m.due <= now * 1000 and m.name not in self._woken]
        busy = [m for m in self.members if changed & m.topics.keys() or m in due]
        busy = [m for m in busy if not shrunk & m.topics.keys()]
        if not busy:
            return _Turn.IDLE
        if self._settings.once:
            self._woken |= {member.name for member in due}  # A run that is to end wakes each query once.
        self._run(busy, end, now)
        return _Turn.CAUGHT_UP if all(end.get(tp, at) >= at for tp, at in latest.items()) else _Turn.WORKED

    def _look_up(self) -> Offsets:
        """Return the ends of the topics; in a run `once` those at its start."""
        if self._stop_at is None or not self._settings.once:
            latest = self._patiently(lambda: self._ends.latest(sorted(self.topics)))
            self._latest = latest
            self._stop_at = self._stop_at or latest
        return self._stop_at if self._settings.once else self._latest

    def _find_new_partitions(self, latest: Offsets) -> None:
        """Let queries read partitions that are new to them from the first record on."""
        for topic in self.topics:
            readers = _readers({topic}, self.members)
            new = [tp for tp in latest if tp.topic == topic and any(tp not in r.position for r in readers)]
            first = self._patiently(partial(self._ends.earliest, new))
            for reader in readers if new else ():
                reader.position = {**first, **reader.position}

    def _shrunk(self, latest: Offsets) -> set[str]:
        """Return the topics that end before the offsets that were read; raise if not only for a moment."""
        position = furthest(self.members)
        shrunk = [] if self._settings.once else [tp for tp, at in latest.items() if at < position[tp]]
        if not shrunk:
            self._shrunk_at = None
            return set()
        now = time.monotonic()
        self._shrunk_at = self._shrunk_at or now
        if now > self._shrunk_at + SHRUNK_S:
            self._shrunk_at = None
            raise UnreadableTopicError(
                [tp.topic for tp in shrunk],
                "topics end before the records that were read, so they were deleted and created again: "
                + ", ".join(f"{tp} ends at {latest[tp]}, and was read up to {position[tp]}" for tp in shrunk),
                hint="read them from the start: headwater rebuild NAME --from start",
            )
        return {tp.topic for tp in shrunk}

    def _end(self, members: Sequence[Member], target: Offsets) -> Offsets:
        """Return the end of a batch on the way to a target: about as many records of each topic as it may have."""
        position, end = furthest(members), Offsets()
        ahead: dict[str, Offsets] = {name: {} for member in members for name in member.topics}
        for tp, at in target.items():
            if tp.topic in ahead:
                ahead[tp.topic][tp] = max(at, position[tp])
        waiting = [sum(at - position[tp] for tp, at in part.items()) for part in ahead.values()]
        limit = topic_reads.OFFSETS_PER_TRIGGER_MAX
        if sum(waiting) < limit:  # A large batch is worth its preparation only if it is really large.
            limit = topic_reads.LOCAL_RECORDS_MAX // (2 * max(1, sum(n > 0 for n in waiting)))
        for part in ahead.values():
            end |= limit_offsets(position, part, limit)
        return end

    def _run(self, members: Sequence[Member], end: Offsets, now: int) -> None:
        """Run a batch for members that are at the same position; those for which it fails drop out."""
        try:
            self._run_batch(members, end, now)
        except UnreadableTopicError as error:
            self._fail(_readers(error.topics, members), error)
        except Exception as error:
            self._fail(members, error)

    def _run_batch(self, members: Sequence[Member], end: Offsets, now: int) -> None:
        timer = Timer()
        batches = {m.name: m.begin(end, now) for m in members}
        timer.lap("walCommit")
        ranges = self._ranges(members, end)
        is_large = sum(r.end - r.start for each in ranges.values() for r in each) > topic_reads.LOCAL_RECORDS_MAX
        rows: dict[str, TopicRows] = {}
        settings = self._settings
        try:
            try:
                self._read(ranges, members, rows, is_large=is_large)
            except TooLargeError:
                is_large = True
                rows.clear()
                self._read(ranges, members, rows, is_large=True)
            members = [member for member in members if member in self.members]
            timer.lap("getBatch")
            clock_ms, done = {name: batch.clock_ms for name, batch in batches.items()}, []
            for group in in_groups(members, rows, clock_ms):
                run = BatchRun(
                    settings.plans,
                    rows,
                    ranges,
                    self.jobs,
                    is_large=is_large,
                    is_limited=not any(member.is_slow for member in self.members),
                )
                done += run.run(group, clock_ms)
            timer.lap("addBatch")
            if self._is_abandoned:
                return
            writes = self._start_writes(done, batches, rows, timer)
        finally:
            for found in rows.values():
                found.close()
        self._commit(writes)

    def _read(
        self,
        ranges: Mapping[str, Sequence[Range]],
        members: Sequence[Member],
        rows: dict[str, TopicRows],
        *,
        is_large: bool,
    ) -> None:
        """Read and decode the records of each topic; queries that read a topic which fails drop out."""
        settings = self._settings
        (settings.plans.large if is_large else settings.plans.small).activate()
        for topic, each in ranges.items():
            declared = next(member.topics[topic] for member in members if topic in member.topics)
            decoder = settings.decoder(declared)
            try:
                rows[topic] = decoder.large(each) if is_large else decoder.small(self._ends.client, each)
            except TooLargeError:
                raise
            except Exception as error:
                self._fail(_readers({topic}, members), error)

    def _ranges(self, members: Sequence[Member], end: Offsets) -> dict[str, list[Range]]:
        """Return the records of each topic to read; InvalidError if some were deleted before they were read."""
        names = {name for member in members for name in member.topics}
        wanted = {tp: at for tp, at in end.items() if tp.topic in names}
        earliest = self._patiently(lambda: self._ends.earliest(list(wanted)))
        position = {tp: at for member in members for tp, at in member.position.items()}
        begin = {tp: position.get(tp, earliest[tp]) for tp in wanted}
        lost = [tp for tp in wanted if begin[tp] < earliest[tp] and wanted[tp] > begin[tp]]
        if lost:
            raise UnreadableTopicError(
                [tp.topic for tp in lost],
                "records were deleted before they were read: "
                + ", ".join(f"{tp} from {begin[tp]} to {earliest[tp]}" for tp in lost),
                hint="continue after them with empty state (`headwater rebuild NAME --from now`), or recompute "
                "from the records that are left (`headwater rebuild NAME`)",
            )
        ranges: dict[str, list[Range]] = {}
        for tp in sorted(wanted):
            if wanted[tp] > begin[tp]:
                ranges.setdefault(tp.topic, []).append(Range(tp, begin[tp], wanted[tp]))
        return ranges

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call, and retry while the broker is unavailable, during a restart for example."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call()
            except UnavailableError:
                if time.monotonic() > deadline or any(member.query.is_stopping for member in self.members):
                    raise
                time.sleep(RETRY_S)

    # -- committing -------------------------------------------------------------------------------------------

    def _start_writes(
        self,
        done: Sequence[MemberBatch],
        batches: Mapping[str, BeganBatch],
        rows: Mapping[str, TopicRows],
        timer: Timer,
    ) -> list[BatchWrite]:
        """Save the states and begin to write the sinks; queries for which that is not possible drop out."""
        writes = []
        for work in done:
            try:
                writes.append(start_write(work, batches[work.member.name], rows, timer))
            except Exception as error:
                if isinstance(error, TookTooLongError) and not self.jobs.is_cancelled:
                    self._leave(work.member, f"its function is slow, {error}")
                else:
                    self._fail([work.member], error)
        return writes

    def _commit(self, writes: Sequence[BatchWrite]) -> None:
        """Commit a batch when the sinks have it; queries whose sinks take long leave the lane with their batch."""
        late = still_writing(writes, SLOW_S)
        while late and late[0].member.is_slow and not late[0].member.query.is_stopping:
            late = still_writing(late, RETRY_S)  # It has a lane of its own, which no other query can join.
        for write in late:
            self._leave(write.member, f"its sink took more than {SLOW_S:g} s", write)
        self._commit_written([write for write in writes if write not in late])

    def _leave(self, member: Member, reason: str, write: BatchWrite | None = None) -> None:
        """Let a query go on in a lane of its own, from the batch that has begun."""
        if len(self.members) > 1 and not member.query.is_stopping:
            member.query.news.append(f"goes on by itself, and no other waits for it: {reason}")
        member.is_slow = True
        self.members.remove(member)
        self._on_leave(member, write)

    def _commit_written(self, writes: Sequence[BatchWrite]) -> None:
        stored: list[tuple[BatchWrite, StoreBatch]] = []
        for write in writes:
            try:
                stored.append((write, write.to_store.result()))
            except Exception as error:
                self._fail([write.member], error)
        while stored:
            try:
                self._settings.store.commit_batches([each for _, each in stored if each is not None])
                break
            except BatchCommitError as error:
                self._fail([w.member for w, _ in stored if w.member.name == error.query], error.cause)
                stored = [(w, each) for w, each in stored if w.member.name != error.query]
        for write, _ in stored:
            write.timer.lap("commit")
            write.finish()

    def _finish_write(self, write: BatchWrite) -> None:
        """Finish the batch with which the query has left another lane, unless it is to stop before."""
        while still_writing([write], RETRY_S):
            if write.member.query.is_stopping:
                return  # The next start runs the batch again, and the sink skips it if it has it by then.
        with self._batch:
            try:
                self._commit_written([write])
            except Exception as error:
                self._fail([write.member], error)


def _readers(topics: AbstractSet[str], members: Sequence[Member]) -> list[Member]:
    return [member for member in members if member.topics.keys() & topics]
