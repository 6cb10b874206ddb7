"""A query that runs in a lane: its position, its state, and where its results go."""

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headwater.app import Topic
from headwater.process.kernel import State
from headwater.spark.kernels.spool import Facts
from headwater.spark.lanes.batch_log import BatchLog, BeganBatch
from headwater.spark.lanes.state_files import StateFiles
from headwater.spark.lanes.steps.blueprint import Blueprint
from headwater.spark.lanes.steps.operator_steps import LINEAGE, Notes, OperatorBatch, TopicClock, sources_of
from headwater.spark.source.left_out import LeftOut
from headwater.spark.source.offsets import Offsets, to_json
from headwater.store.batches import LateBatch, ViewBatch
from headwater.store.late import LateRow

PROGRESS_KEPT = 100

_TOPICS, _OPERATORS = "topics", "operators"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The result of a query for a batch: its rows, the rows that came too late, and facts about its operators."""

    rows: pa.Table
    run: str
    batch: int
    offsets: Mapping[str, Mapping[str, int]]
    late_rows: list[LateRow] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)


class MemberSink(Protocol):
    """The destination of a query's results."""

    is_outside: bool
    """True if `write` waits for a system outside of the app, which may be slow."""

    def write(self, result: BatchResult) -> ViewBatch | LateBatch | None:
        """Write a batch outside of the store, and return what is to be written to the store."""

    def committed(self, result: BatchResult) -> None:
        """Report a batch that is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProgress:
    """The offsets of a topic before and after a batch, as in Spark's progress."""

    startOffset: Mapping[str, Any]  # noqa: N815
    endOffset: Mapping[str, Any]  # noqa: N815


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """A report about a batch, with the names of Spark's progress."""

    batchId: int  # noqa: N815
    timestamp: str
    numInputRows: int  # noqa: N815
    inputRowsPerSecond: float  # noqa: N815
    processedRowsPerSecond: float  # noqa: N815
    durationMs: Mapping[str, int]  # noqa: N815
    sources: tuple[SourceProgress, ...]

    @property
    def json(self) -> str:
        """A text that differs for each batch."""
        return f"{self.batchId} {self.timestamp}"


class LaneQuery:
    """A query of a lane in the shape of Spark's StreamingQuery."""

    def __init__(self) -> None:
        self.on_stop: Callable[[], None] = lambda: None
        """Called when it is asked to stop: its lane may be waiting for records."""
        self.continued: BatchProgress | None = None
        """The position from which it has continued, before its first batch."""
        self.news: deque[str] = deque()
        """Messages for the terminal, which follow its name."""
        self.busy_since: float | None = None
        """Monotonic time at which its current batch has begun."""
        self._ended = threading.Event()
        self._stopping = False
        self._error: BaseException | None = None
        self._progress: deque[BatchProgress] = deque(maxlen=PROGRESS_KEPT)

    @property
    def isActive(self) -> bool:  # noqa: N802
        return not self._ended.is_set()

    def exception(self) -> BaseException | None:
        """Return the error with which it has ended."""
        return self._error

    @property
    def lastProgress(self) -> BatchProgress | None:  # noqa: N802
        return self._progress[-1] if self._progress else self.continued

    @property
    def recentProgress(self) -> list[BatchProgress]:  # noqa: N802
        return list(self._progress)

    def stop(self) -> None:
        """End it between two batches, and wait until it has ended."""
        self.ask_to_stop()
        self._ended.wait()

    def ask_to_stop(self) -> None:
        """Let it end after the current batch."""
        self._stopping = True
        self.on_stop()

    @property
    def is_stopping(self) -> bool:
        """True if it has been asked to end."""
        return self._stopping

    def end(self, error: BaseException | None = None) -> None:
        """Mark it as ended, by its lane."""
        self._error = error
        self._ended.set()

    def report(self, progress: BatchProgress) -> None:
        """Report a batch that has ended."""
        self.busy_since = None
        self._progress.append(progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlan:
    """The work of a query in a lane.

    `left_out` are the records of each topic that it leaves out. `blueprint` is None for a query that only takes
    the records that do not match the schema of its topic.
    """

    name: str
    topics: tuple[Topic, ...]
    blueprint: Blueprint | None = None
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    is_slow: bool = False


class Member:
    """A query that runs in a lane, from its checkpoint in `folder` or from the offsets `starting`."""

    def __init__(self, plan: MemberPlan, folder: Path, sink: MemberSink, starting: Offsets) -> None:
        self.name = plan.name
        self.topics = {topic.name: topic for topic in plan.topics}
        self.sink = sink
        self.blueprint = plan.blueprint
        self.left_out = plan.left_out
        self.query = LaneQuery()
        self.is_slow = plan.is_slow
        """True if it must not keep other queries waiting."""
        self.log = BatchLog(folder, tuple(self.topics))
        self.unfinished = self.log.unfinished()
        # A partition that is new since the last batch is read from its first record.
        self.position = {**starting, **self.log.position}
        if self.log.done >= 0:
            before = BeganBatch(self.log.done, self.position, 0)
            self.query.continued = progress_of(before, self.position, self.topics, 0, time.time(), {})
        self._files = StateFiles(folder / "state")
        initial = {operator.name: operator.kernel.initial() for operator in self._operators}
        stored = self._files.load(self.log.done if self.has_operators else -1, initial)
        self.states: dict[str, State] = stored.states
        notes: Notes = stored.notes
        self.notes: dict[str, Notes] = {  # Without a lineage, a state may be like no other.
            name: {LINEAGE: uuid.uuid4().hex, **known} for name, known in notes.get(_OPERATORS, {}).items()
        }
        known = notes.get(_TOPICS, {})
        self.clocks = {name: TopicClock.of(topic, known.get(name, {})) for name, topic in self.topics.items()}
        self.due: int | None = 0 if self._uses_clock else None
        """Processing time at which it needs a batch without records; the first batch after a start is due."""

    @property
    def is_new(self) -> bool:
        """True if it has not finished a batch."""
        return self.log.done < 0

    @property
    def next_position(self) -> Offsets:
        """Its position, after the batch that it has to finish if there is one."""
        return self.position if self.unfinished is None else {**self.position, **self.unfinished.end}

    @property
    def _operators(self) -> list[Any]:
        return [] if self.blueprint is None else self.blueprint.operators

    @property
    def _uses_clock(self) -> bool:
        return any(operator.uses_clock for operator in self._operators)

    @property
    def has_operators(self) -> bool:
        """True if it has operators, hence state and watermarks."""
        return bool(self._operators)

    def begin(self, end: Offsets, clock_ms: int) -> BeganBatch:
        """Record the next batch, or return the one that was begun before."""
        self.query.busy_since = time.monotonic()
        if self.unfinished is not None:
            return self.unfinished
        ours = {tp: at for tp, at in end.items() if tp.topic in self.topics}
        batch = BeganBatch(self.log.done + 1, ours, clock_ms)
        self.log.begin(batch)
        self.unfinished = batch
        return batch

    def save(
        self, batch: BeganBatch, done: Iterable[OperatorBatch], clocks: Mapping[str, TopicClock]
    ) -> "SavedBatch":
        """Write the state after a batch; it becomes the member's with `finish`."""
        results = list(done)
        notes = {**self.notes, **{result.operator.name: result.notes for result in results}}
        states = {**self.states, **{result.operator.name: result.state for result in results}}
        if states:
            topics = {name: clock.notes() for name, clock in clocks.items()}
            states = self._files.save(batch.number, states, {_OPERATORS: notes, _TOPICS: topics})
        wake_ups = [result.wake_up for result in results]
        if self._uses_clock:
            clock = batch.clock_ms * 1000
            wake_ups += [topic.next_idle(clock, is_alone=len(clocks) == 1) for topic in clocks.values()]
        due = min((at for at in wake_ups if at is not None), default=None)
        return SavedBatch(
            states, notes, dict(clocks), due, [self._facts(result, states, clocks, due) for result in results]
        )

    def finish(self, batch: BeganBatch, saved: "SavedBatch") -> None:
        """Continue after a batch that is committed."""
        self.log.finish(batch.number)
        if saved.states:
            self._files.forget(batch.number)
        self.states, self.notes, self.clocks, self.due = saved.states, saved.notes, saved.clocks, saved.due
        self.position = {**self.position, **batch.end}
        self.unfinished = None

    def _facts(
        self, result: OperatorBatch, states: Mapping[str, State], clocks: Mapping[str, TopicClock], due: int | None
    ) -> Facts:
        operator = result.operator
        assert self.blueprint is not None
        topics = [topic.name for leaf, topic in self.blueprint.topics.items() if leaf in operator.held_by]
        body = {
            **result.report.facts(states[operator.name], result.notes["watermark"]),
            "sources": sources_of(clocks[name] for name in topics),
            "wakeUpMs": None if due is None or not operator.uses_clock else -(-due // 1000),
        }
        return Facts(operator.name, body, operator.name)


@dataclass(slots=True)
class MemberBatch:
    """The work of one query in a batch."""

    member: Member
    clocks: dict[str, TopicClock]
    operators: dict[int, OperatorBatch] = field(default_factory=dict)
    """The results of its operators, by the placeholder of their output."""
    rows: pa.Table | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SavedBatch:
    """The state of a query after a batch that is not committed yet."""

    states: dict[str, State]
    notes: dict[str, Notes]
    clocks: dict[str, TopicClock]
    due: int | None
    facts: list[Facts]


def progress_of(
    batch: BeganBatch, start: Offsets, topics: Iterable[str], rows: int, began: float, took: Mapping[str, float]
) -> BatchProgress:
    """Describe a batch that began at a time in seconds; `took` are the seconds of its parts."""
    seconds = max(sum(took.values()), 0.001)
    offsets = [to_json(each) for each in (start, batch.end)]
    return BatchProgress(
        batchId=batch.number,
        timestamp=datetime.fromtimestamp(began, UTC).isoformat(timespec="microseconds"),
        numInputRows=rows,
        inputRowsPerSecond=rows / seconds,
        processedRowsPerSecond=rows / seconds,
        durationMs={name: round(part * 1000) for name, part in (*took.items(), ("triggerExecution", seconds))},
        sources=tuple(
            SourceProgress(
                startOffset={topic: offsets[0].get(topic, {})}, endOffset={topic: offsets[1].get(topic, {})}
            )
            for topic in topics
        ),
    )
