"""The share groups of a broker: their members, sessions and partitions, stored on disk, and their dead letters.

The states of records are in `share_partition`, the members in `members`. This module connects them to the log and
the disk: a change is stored before the request is answered. Everything runs in the broker's loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headwater.clock import Clock
from headwater.record import TopicPartition
from headwater.transmit.groups.heartbeats import HeartbeatReply
from headwater.transmit.groups.settings import SHARE_SESSION_MS, GroupSettings
from headwater.transmit.groups.share.dead_letter_writer import DeadLetterWriter, GivenUpRange
from headwater.transmit.groups.share.members import (
    AssignedPartition,
    MemberError,
    ShareGroup,
    ShareHeartbeat,
    ShareSessions,
)
from headwater.transmit.groups.share.share_partition import (
    Acknowledgement,
    ShareError,
    SharePartition,
    Span,
    trimmed,
)
from headwater.transmit.groups.store import GroupKind, GroupStore, StoredShare
from headwater.transmit.records.batch_header import BatchHeader, walk
from headwater.transmit.topics.partition import Partition
from headwater.transmit.topics.producers import is_in_aborted
from headwater.transmit.topics.topics import Topics

MEMBERS_MAX = 200
"""Kafka's default for group.share.max.size."""

Wake = Callable[[], None]
Key = tuple[str, AssignedPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquiredRecords:
    """The result of a fetch for one partition: whole batches, and the ranges in them that the member acquired."""

    records: bytes
    spans: list[Span]


class Waiters:
    """Callbacks of fetches that wait for released records, by group."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[Wake]] = {}

    def add(self, group: str, wake: Wake) -> None:
        self._waiting.setdefault(group, set()).add(wake)

    def discard(self, group: str, wake: Wake) -> None:
        waiting = self._waiting.get(group, set())
        waiting.discard(wake)
        if not waiting:
            self._waiting.pop(group, None)

    def wake(self, group: str) -> None:
        for wake in self._waiting.get(group, ()):
            wake()


def _next_batches(
    share: SharePartition, partition: Partition, settings: GroupSettings, bytes_max: int
) -> tuple[bytes, list[tuple[int, BatchHeader]]]:
    """Read from the next available record; return the data, and position and header of its readable batches."""
    log = partition.log
    bound = partition.last_stable_offset if settings.reads_committed else log.high_watermark
    while (at := share.next_offset(settings.limits)) is not None and at < bound:
        data = log.read(at, bytes_max)
        batches = [(start, header) for start, header in walk(data) if header.next_offset <= bound]
        if not batches:
            break
        aborted = partition.producers.aborted(at, batches[-1][1].next_offset) if settings.reads_committed else []
        readable = [entry for entry in batches if not entry[1].is_control and not is_in_aborted(entry[1], aborted)]
        end = readable[0][1].base_offset if readable else batches[-1][1].next_offset
        if at < end:
            share.skip(at, end - 1)
        if readable:
            return data, readable
    return b"", []


class ShareGroups:
    """All share groups of the broker."""

    def __init__(self, topics: Topics, store: GroupStore, clock: Clock) -> None:
        self.sessions = ShareSessions()
        self.waiters = Waiters()
        self._topics = topics
        self._store = store
        self._clock = clock
        self._groups = {
            name: ShareGroup(id=name) for name, kind in store.kinds().items() if kind is GroupKind.SHARE
        }
        self._shares: dict[Key, SharePartition] = {}
        self._leaving: dict[tuple[str, str], float] = {}
        """Members that have left but not closed their session, and the deadline for that."""
        self._dead_letter_writer = DeadLetterWriter(
            topics.append, self._dead_letter_target, clock, self.settings, self._on_written
        )
        for stored in store.shares():
            if topics.entry(stored.topic_id) is None:
                store.delete_shares(stored.group, stored.topic_id)
                continue
            limits = self.settings(stored.group).limits
            key = (stored.group, (stored.topic_id, stored.partition))
            partition = self.partition(key[1])
            start, spans = stored.start, list(stored.spans)
            if partition is not None:
                start, spans = trimmed(start, spans, partition.log.end_offset)
            self._shares[key] = SharePartition(start, spans, limits)
            self._save(key)  # writes the dead letters that a crash has prevented

    # -- lookup -----------------------------------------------------------------------------------------------

    def settings(self, group: str) -> GroupSettings:
        return GroupSettings(configs=self._store.configs(group))

    def group(self, group: str) -> ShareGroup | None:
        return self._groups.get(group)

    def groups(self) -> list[ShareGroup]:
        return list(self._groups.values())

    def shares(self, group: str) -> dict[AssignedPartition, SharePartition]:
        """Return the partitions that a group has started to read."""
        return {place: share for (name, place), share in self._shares.items() if name == group}

    # -- members ----------------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, request: ShareHeartbeat) -> HeartbeatReply | MemberError:
        """Handle a member's heartbeat, and start the partitions assigned to it."""
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
        if request.epoch < 0 and self.sessions.is_open(group_id, request.member_id):
            # The request that closes its session may still bring its last acknowledgements.
            until = self._clock.monotonic() + self.settings(group_id).limits.lock_s
            self._leaving[group_id, request.member_id] = until
        elif request.epoch < 0:
            self.close_session(group_id, request.member_id)
        for name in reply.assignment or ():
            entry = self._topics.entry(name.topic)
            if entry is not None:
                self.share(group_id, (entry.id, name.partition))
        return reply

    def close_session(self, group: str, member: str, *, is_clean: bool = True) -> None:
        """End a member's session and release its records; `is_clean` if the member closed it itself."""
        self.sessions.drop(group, member)
        self._leaving.pop((group, member), None)
        limits = self.settings(group).limits
        for place, share in self.shares(group).items():
            if share.release(member, limits, is_clean=is_clean):
                self._save((group, place))
        self.waiters.wake(group)

    def disconnect(self, connection: object) -> None:
        """Release the records acquired over a closed connection, and remove members that have no other one."""
        for group_id, member in self.sessions.drop_connection(connection):
            self.close_session(group_id, member, is_clean=False)
        for group in self._groups.values():
            gone = [m for m in group.disconnect(connection) if not self.sessions.is_open(group.id, m)]
            if gone:
                group.remove(gone, self._topics.sizes())

    def delete(self, group: str) -> None:
        """Delete a group and its state."""
        self._groups.pop(group, None)
        for place in self.shares(group):
            del self._shares[group, place]
        self._store.delete(group)

    # -- records ----------------------------------------------------------------------------------------------

    def share(self, group: str, place: AssignedPartition) -> SharePartition | None:
        """Return a group's state of a partition, created at the offset its settings specify.

        Returns None if the partition does not exist.
        """
        partition = self.partition(place)
        if partition is None:
            return None
        key = (group, place)
        share = self._shares.get(key)
        if share is None:
            first = _first_offset(partition, self.settings(group).reset, self._clock.now_ms())
            share = self._shares[key] = SharePartition(first)
            self._save(key)
        elif share.forget_before(partition.log.start_offset):
            self._save(key)
        return share

    def partition(self, place: AssignedPartition) -> Partition | None:
        entry = self._topics.entry(place[0])
        return self._topics.partition(entry.name, place[1]) if entry else None

    def acquire(
        self, group: str, member: str, place: AssignedPartition, *, bytes_max: int, records_max: int, exact: bool
    ) -> AcquiredRecords | None:
        """Acquire records of a partition for a member; return None if none are available."""
        share, partition = self.share(group, place), self.partition(place)
        if share is None or partition is None:
            return None
        limits = self.settings(group).limits
        data, batches = _next_batches(share, partition, self.settings(group), bytes_max)
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
        # From the batch with the first acquired record to the batch with the last.
        inside = [b for b in batches if b[1].next_offset > spans[0].first and b[1].base_offset <= spans[-1].last]
        end = inside[-1][0] + inside[-1][1].size
        return AcquiredRecords(records=data[inside[0][0] : end], spans=spans)

    def acknowledge(
        self, group: str, member: str, place: AssignedPartition, acks: Sequence[Acknowledgement]
    ) -> ShareError | None:
        """Apply a member's acknowledgements and store the result."""
        share = self._shares.get((group, place))
        if share is None:
            return ShareError.INVALID_STATE
        error = share.acknowledge(member, acks, self.settings(group).limits, self._clock.monotonic())
        if error is None:
            self._save((group, place))
            self.waiters.wake(group)
        return error

    def move(self, group: str, place: AssignedPartition, offset: int) -> None:
        """Restart a group's partition at an offset."""
        self._shares[group, place] = SharePartition(offset)
        self._store.set_kind(group, GroupKind.SHARE)
        self._groups.setdefault(group, ShareGroup(id=group))
        self._save((group, place))

    def forget_topic(self, group: str, topic_id: object) -> bool:
        """Delete a group's state of a topic; return whether there was any."""
        places = [place for place in self.shares(group) if place[0] == topic_id]
        for place in places:
            del self._shares[group, place]
            self._store.delete_shares(group, place[0])
        return bool(places)

    # -- time -------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Release records whose lock has expired, and remove members whose session timed out."""
        for key, share in list(self._shares.items()):
            if share.expire(self.settings(key[0]).limits, now):
                self._save(key)
                self.waiters.wake(key[0])
        for group in self._groups.values():
            timed_out = group.timed_out(now, self.settings(group.id).number(SHARE_SESSION_MS) / 1000)
            if timed_out:
                group.remove(timed_out, self._topics.sizes())
            for member in timed_out:
                self.close_session(group.id, member, is_clean=False)
        for group_id, member in [key for key, until in self._leaving.items() if until <= now]:
            self.close_session(group_id, member, is_clean=False)
        self._dead_letter_writer.retry(now)

    async def close(self) -> None:
        """Wait for dead letters that are being written, and close the store."""
        await self._dead_letter_writer.close()
        self._store.close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _save(self, key: Key) -> None:
        """Store a partition's state; first archive given-up records that need no dead letter."""
        share = self._shares[key]
        for span in share.take_given_up():
            partition = self.partition(key[1])
            if partition is not None and self.settings(key[0]).deadletter_topic:
                given_up = GivenUpRange(group=key[0], place=key[1], partition=partition, span=span)
                self._dead_letter_writer.post(given_up)
            else:
                share.archive(span)
        group, (topic_id, number) = key
        self._store.save_share(
            StoredShare(
                group=group,
                topic_id=topic_id,
                partition=number,
                start=share.start,
                spans=tuple(share.spans()),
            )
        )

    def _dead_letter_target(self, topic: str, source: TopicPartition) -> Partition:
        entry = self._topics.entry(topic) or self._topics.create(topic, 1, {})
        partition = self._topics.partition(topic, source.partition % entry.partitions)
        assert partition is not None
        return partition

    def _on_written(self, given_up: GivenUpRange) -> None:
        key = (given_up.group, given_up.place)
        share = self._shares.get(key)
        if share is not None:
            share.archive(given_up.span)
            self._save(key)
            self.waiters.wake(given_up.group)


def _first_offset(partition: Partition, reset: str | int, now_ms: int) -> int:
    """Return the offset at which a group starts: an end of the log, or `reset` milliseconds before now."""
    log = partition.log
    if reset == "earliest":
        return log.start_offset
    if reset == "latest":
        return log.high_watermark
    found = log.offset_of_time(now_ms - int(reset))
    return found.offset if found else log.high_watermark
