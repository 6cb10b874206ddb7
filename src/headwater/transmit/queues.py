"""Share groups while the broker runs: their members, sessions and partitions, kept on disk, with dead letters.

What a record's fate means is in `shares`, who is a member in `share_members`. Here they meet the log and the disk:
a change that is answered is in the store before. Everything happens in the broker's loop.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headwater.clock import Clock
from headwater.errors import HeadwaterError
from headwater.record import Record, TopicPartition
from headwater.transmit.batch import decode_batch, encode_batch, walk
from headwater.transmit.deadletters import letters
from headwater.transmit.group_configs import SHARE_SESSION_MS, GroupSettings
from headwater.transmit.group_store import GroupKind, GroupStore, StoredShare
from headwater.transmit.share_members import (
    MemberError,
    Place,
    Sessions,
    ShareGroup,
    ShareHeartbeat,
    ShareReply,
)
from headwater.transmit.shares import Acknowledgement, ShareError, SharePartition, Span
from headwater.transmit.topics import Partition, Topics

logger = logging.getLogger(__name__)

MEMBERS_MAX = 200
"""Kafka's own default of group.share.max.size."""
LETTER_RETRY_S = 5.0
_READ_BYTES = 1 << 20

Wake = Callable[[], None]
Key = tuple[str, Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """What a fetch gets of one partition: whole batches, and the ranges in them that are the member's."""

    records: bytes
    spans: list[Span]


class Queues:
    """All share groups of the broker."""

    def __init__(self, topics: Topics, store: GroupStore, clock: Clock) -> None:
        self.sessions = Sessions()
        self._topics = topics
        self._store = store
        self._clock = clock
        self._groups = {
            name: ShareGroup(id=name) for name, kind in store.kinds().items() if kind is GroupKind.SHARE
        }
        self._shares: dict[Key, SharePartition] = {}
        self._waiting: dict[str, set[Wake]] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self._late: list[tuple[float, Key, Span]] = []
        for stored in store.shares():
            if topics.entry(stored.topic_id) is None:
                store.delete_shares(stored.group, stored.topic_id)
                continue
            limits = self.settings(stored.group).limits
            key = (stored.group, (stored.topic_id, stored.partition))
            self._shares[key] = SharePartition(stored.start, stored.spans, limits)

    # -- what there is ----------------------------------------------------------------------------------------

    def settings(self, group: str) -> GroupSettings:
        return GroupSettings(configs=self._store.configs(group))

    def group(self, group: str) -> ShareGroup | None:
        return self._groups.get(group)

    def groups(self) -> list[ShareGroup]:
        return list(self._groups.values())

    def shares(self, group: str) -> dict[Place, SharePartition]:
        """The partitions that a group has begun."""
        return {place: share for (name, place), share in self._shares.items() if name == group}

    # -- members ----------------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, request: ShareHeartbeat) -> ShareReply | MemberError:
        """Keep a member in, and begin the partitions it is given."""
        group = self._groups.get(group_id)
        if group is None:
            if request.epoch != 0:
                return MemberError.UNKNOWN_MEMBER
            group = ShareGroup(id=group_id)
        reply = group.heartbeat(request, self._topics.sizes(), self._clock.monotonic(), members_max=MEMBERS_MAX)
        if isinstance(reply, MemberError):
            return reply
        self._groups[group_id] = group
        self._store.set_kind(group_id, GroupKind.SHARE)
        if request.epoch < 0:
            self._release(group_id, request.member_id)
        for name in reply.assignment or ():
            entry = self._topics.entry(name.topic)
            if entry is not None:
                self.share(group_id, (entry.id, name.partition))
        return reply

    def close_session(self, group: str, member: str) -> None:
        """Take back what a member has, because it fetches no more."""
        self.sessions.drop(group, member)
        self._release(group, member)

    def _release(self, group: str, member: str) -> None:
        limits = self.settings(group).limits
        for place, share in self.shares(group).items():
            if share.release(member, limits):
                self._save((group, place))
        self._wake(group)

    def delete(self, group: str) -> None:
        """Forget a group and where it stood."""
        self._groups.pop(group, None)
        for place in self.shares(group):
            del self._shares[group, place]
        self._store.delete(group)

    # -- records ----------------------------------------------------------------------------------------------

    def share(self, group: str, place: Place) -> SharePartition | None:
        """A group's partition, begun where its settings say; None if there is no such partition."""
        partition = self.partition(place)
        if partition is None:
            return None
        key = (group, place)
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = SharePartition(self._first_offset(group, partition))
            self._save(key)
        elif share.forget_before(partition.log.start_offset):
            self._save(key)
        return share

    def partition(self, place: Place) -> Partition | None:
        entry = self._topics.entry(place[0])
        return self._topics.partition(entry.name, place[1]) if entry else None

    def _first_offset(self, group: str, partition: Partition) -> int:
        reset = self.settings(group).reset
        log = partition.log
        if reset == "earliest":
            return log.start_offset
        if reset == "latest":
            return log.high_watermark
        found = log.offset_of_time(self._clock.now_ms() - int(reset))
        return found.offset if found else log.high_watermark

    def lend(
        self, group: str, member: str, place: Place, *, bytes_max: int, records_max: int, exact: bool
    ) -> Lent | None:
        """Give a member records of a partition; None if there are none to give."""
        share, partition = self.share(group, place), self.partition(place)
        if share is None or partition is None:
            return None
        limits = self.settings(group).limits
        at = share.next_offset(limits)
        if at is None or at >= partition.log.high_watermark:
            return None
        data = partition.log.read(at, bytes_max)
        batches = [(start, header) for start, header in walk(data) if not header.is_control]
        spans = share.acquire(
            member,
            [(header.base_offset, header.next_offset - 1) for _, header in batches],
            records_max=records_max,
            limits=limits,
            now=self._clock.monotonic(),
            exact=exact,
        )
        if not spans:
            return None
        # From the batch that holds the first record lent to the one that holds the last.
        inside = [b for b in batches if b[1].next_offset > spans[0].first and b[1].base_offset <= spans[-1].last]
        end = inside[-1][0] + inside[-1][1].size
        return Lent(records=data[inside[0][0] : end], spans=spans)

    def acknowledge(
        self, group: str, member: str, place: Place, acks: Sequence[Acknowledgement]
    ) -> ShareError | None:
        """Note what a member says of its records, on the disk too."""
        share = self._shares.get((group, place))
        if share is None:
            return ShareError.INVALID_STATE
        error = share.acknowledge(member, acks, self.settings(group).limits, self._clock.monotonic())
        if error is None:
            self._save((group, place))
            self._wake(group)
        return error

    def move(self, group: str, place: Place, offset: int) -> None:
        """Start a partition of a group anew, at an offset."""
        self._shares[group, place] = SharePartition(offset)
        self._store.set_kind(group, GroupKind.SHARE)
        self._groups.setdefault(group, ShareGroup(id=group))
        self._save((group, place))

    def forget_topic(self, group: str, topic_id: object) -> bool:
        """Forget where a group stood in a topic; whether it stood anywhere."""
        places = [place for place in self.shares(group) if place[0] == topic_id]
        for place in places:
            del self._shares[group, place]
            self._store.delete_shares(group, place[0])
        return bool(places)

    # -- waiting ----------------------------------------------------------------------------------------------

    def on_available(self, group: str, wake: Wake) -> None:
        """Call `wake` when records of the group have come back."""
        self._waiting.setdefault(group, set()).add(wake)

    def forget(self, group: str, wake: Wake) -> None:
        self._waiting.get(group, set()).discard(wake)

    def _wake(self, group: str) -> None:
        for wake in self._waiting.get(group, ()):
            wake()

    # -- time -------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Take back what was lent for too long, and let silent members go."""
        for key, share in list(self._shares.items()):
            if share.expire(self.settings(key[0]).limits, now):
                self._save(key)
                self._wake(key[0])
        for group in self._groups.values():
            silent = group.silent(now, self.settings(group.id).number(SHARE_SESSION_MS) / 1000)
            if silent:
                group.remove(silent, self._topics.sizes())
            for member in silent:
                self.close_session(group.id, member)
        due = [item for item in self._late if item[0] <= now]
        if due:
            self._late = [item for item in self._late if item[0] > now]
            for _, key, letter in due:
                self._start_letter(key, letter)

    async def close(self) -> None:
        """Wait for dead letters that are being written."""
        await asyncio.gather(*self._writing, return_exceptions=True)
        self._store.close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _save(self, key: Key) -> None:
        """Keep how a partition stands; first bury what nobody wants a letter of."""
        share = self._shares[key]
        for letter in share.take_letters():
            if self.settings(key[0]).deadletter_topic:
                self._start_letter(key, letter)
            else:
                share.bury(letter)
        group, (topic_id, partition) = key
        self._store.save_share(
            StoredShare(
                group=group,
                topic_id=topic_id,
                partition=partition,
                start=share.start,
                spans=tuple(share.spans()),
            )
        )

    def _start_letter(self, key: Key, letter: Span) -> None:
        task = asyncio.get_running_loop().create_task(self._write_letter(key, letter))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write_letter(self, key: Key, letter: Span) -> None:
        """Write the letters of a range, wait until they are safe, and only then let the range go."""
        group, place = key
        source = self.partition(place)
        if source is None or key not in self._shares:
            return
        settings = self.settings(group)
        try:
            records = _records_of(source, letter) if settings.copies_record else None
            target = self._letter_partition(settings.deadletter_topic, source.name)
            for batch in letters(group, source.name, letter, records, self._clock.now_ms()):
                appended = self._topics.append(target, memoryview(bytearray(encode_batch(batch))))
                await target.wait_durable(appended.next_offset)
        except (HeadwaterError, OSError) as error:
            logger.error(
                "cannot write dead letters of group %r for %s, offsets %d to %d, will try again: %s",
                group, source.name, letter.first, letter.last, error,
            )  # fmt: skip
            self._late.append((self._clock.monotonic() + LETTER_RETRY_S, key, letter))
            return
        share = self._shares.get(key)
        if share is not None:
            share.bury(letter)
            self._save(key)
            self._wake(group)

    def _letter_partition(self, topic: str, source: TopicPartition) -> Partition:
        entry = self._topics.entry(topic) or self._topics.create(topic, 1, {})
        partition = self._topics.partition(topic, source.partition % entry.partitions)
        assert partition is not None
        return partition


def _records_of(partition: Partition, span: Span) -> dict[int, Record]:
    """The records of a range, as far as the log still has them."""
    found: dict[int, Record] = {}
    at = max(span.first, partition.log.start_offset)
    while at <= span.last:
        data = partition.log.read(at, _READ_BYTES)
        if not data:
            break
        for place, header in walk(data):
            at = header.next_offset
            if not header.is_control and header.base_offset <= span.last:
                found |= {r.offset: r for r in decode_batch(data, place) if span.first <= r.offset <= span.last}
    return found
