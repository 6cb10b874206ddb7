"""The members of a share group, the partitions that each fetches from, and their share sessions.

A member sends heartbeats and gets its partitions in the replies. Several members can have the same partition,
because records are acquired one by one. No clock and no I/O: the time is passed to every call. Not thread-safe.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from headwater.record import TopicPartition
from headwater.transmit.groups.heartbeats import NOTHING, Assignment, HeartbeatReply

JOINS, LEAVES = 0, -1
"""Member epochs of heartbeats."""

OPENS, CLOSES = 0, -1
"""Session epochs of fetches and acknowledgements."""

EPOCH_MAX = 2**31 - 1


class MemberError(Enum):
    """Reasons to reject a member's heartbeat; the handlers map them to Kafka's error codes."""

    UNKNOWN_MEMBER = "unknown member"
    FENCED_EPOCH = "fenced member epoch"
    GROUP_FULL = "group full"
    INVALID_REQUEST = "invalid request"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeat:
    """A member's heartbeat: epoch 0 to join, -1 to leave; `topics` may be None if they did not change."""

    member_id: str
    epoch: int
    topics: frozenset[str] | None
    client_id: str = ""
    client_host: str = ""
    rack: str | None = None
    connection: object = None
    """The connection of the heartbeat."""


@dataclass(slots=True, kw_only=True)
class ShareMember:
    """One member of a share group."""

    id: str
    client_id: str
    client_host: str
    rack: str | None
    topics: frozenset[str]
    last_seen: float
    epoch: int = 0
    previous_epoch: int = 0
    assignment: Assignment = NOTHING
    reported: Assignment | None = None
    """The assignment of the last reply."""
    connection: object = None
    """The connection of its last heartbeat."""
    is_disconnected: bool = False
    """True if that connection was closed."""


@dataclass(slots=True, kw_only=True)
class ShareGroup:
    """One share group; its methods take `partitions`, the number of partitions of every existing topic."""

    id: str
    epoch: int = 0
    members: dict[str, ShareMember] = field(default_factory=dict)
    _partitions: dict[str, int] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """The state, named as Kafka's admin tools show it."""
        return "Stable" if self.members else "Empty"

    def heartbeat(
        self, request: ShareHeartbeat, partitions: Mapping[str, int], now: float, *, members_max: int
    ) -> HeartbeatReply | MemberError:
        """Add, keep or remove a member."""
        member = self.members.get(request.member_id)
        if request.epoch == LEAVES:
            if member is None:
                return MemberError.UNKNOWN_MEMBER
            self.remove([member.id], partitions)
            return HeartbeatReply(member_id=request.member_id, epoch=LEAVES)
        if request.epoch == JOINS:
            if request.topics is None or not request.member_id:
                return MemberError.INVALID_REQUEST
            if member is None and len(self.members) >= members_max:
                return MemberError.GROUP_FULL
            member = self._join(request, member, now)
        elif member is None:
            return MemberError.UNKNOWN_MEMBER
        elif request.epoch not in (member.epoch, member.previous_epoch):
            return MemberError.FENCED_EPOCH
        return self._keep(member, request, partitions, now)

    def _join(self, request: ShareHeartbeat, known: ShareMember | None, now: float) -> ShareMember:
        member = ShareMember(
            id=request.member_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rack=request.rack,
            topics=request.topics or frozenset(),
            last_seen=now,
            assignment=known.assignment if known else NOTHING,
        )
        self.members[member.id] = member
        if known is None or known.topics != member.topics:
            self._partitions = {}  # forces a new assignment
        return member

    def _keep(
        self, member: ShareMember, request: ShareHeartbeat, partitions: Mapping[str, int], now: float
    ) -> HeartbeatReply:
        member.last_seen = now
        member.connection, member.is_disconnected = request.connection, False
        if request.topics is not None and request.topics != member.topics:
            member.topics = request.topics
            self._partitions = {}
        self._assign(partitions)
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
        changed = None if member.reported == member.assignment else member.assignment
        member.reported = member.assignment
        return HeartbeatReply(member_id=member.id, epoch=member.epoch, assignment=changed)

    def remove(self, member_ids: list[str], partitions: Mapping[str, int]) -> None:
        for member_id in member_ids:
            del self.members[member_id]
        self._partitions = {}
        self._assign(partitions)

    def timed_out(self, now: float, session_s: float) -> list[str]:
        """Return the members that have sent no heartbeat for `session_s`."""
        return [member.id for member in self.members.values() if member.last_seen + session_s <= now]

    def disconnect(self, connection: object) -> list[str]:
        """Mark the members of a closed connection; return all members whose connection was closed."""
        for member in self.members.values():
            if connection is not None and member.connection is connection:
                member.connection, member.is_disconnected = None, True
        return [member.id for member in self.members.values() if member.is_disconnected]

    def _assign(self, partitions: Mapping[str, int]) -> None:
        """Assign the partitions again if members, their topics or the topics' partitions have changed."""
        topics = {topic for member in self.members.values() for topic in member.topics}
        sizes = {topic: partitions[topic] for topic in topics if topic in partitions}
        if sizes == self._partitions and self.epoch:
            return
        self._partitions = sizes
        self.epoch += 1
        assigned = assign_shared({m.id: m.topics for m in self.members.values()}, sizes)
        for member in self.members.values():
            member.assignment = assigned[member.id]


def assign_shared(members: Mapping[str, frozenset[str]], partitions: Mapping[str, int]) -> dict[str, Assignment]:
    """Spread each topic over its subscribers: every partition gets a member, and every member a partition."""
    assigned: dict[str, set[TopicPartition]] = {member: set() for member in members}
    for topic, count in sorted(partitions.items()):
        subscribers = sorted(member for member, topics in members.items() if topic in topics)
        # Members with the fewest partitions come first, so that many small topics do not all go to one member.
        subscribers.sort(key=lambda member: len(assigned[member]))
        for number in range(max(count, len(subscribers))):
            if subscribers:
                member = subscribers[number % len(subscribers)]
                assigned[member].add(TopicPartition(topic, number % count))
    return {member: frozenset(tps) for member, tps in assigned.items()}


# -- sessions -------------------------------------------------------------------------------------------------


class ShareSessionError(Enum):
    """Reasons to reject a fetch or an acknowledgement."""

    NOT_FOUND = "share session not found"
    INVALID_EPOCH = "invalid share session epoch"
    INVALID_REQUEST = "invalid request"


AssignedPartition = tuple[uuid.UUID, int]
"""Topic id and number of a partition."""


@dataclass(slots=True, kw_only=True)
class ShareSession:
    """The partitions that a member fetches from, kept so that requests need not repeat them."""

    epoch: int = 0
    connection: object = None
    """The connection of its last request; when it closes, records acquired in the session are released."""
    places: dict[AssignedPartition, None] = field(default_factory=dict)

    def turn(self) -> list[AssignedPartition]:
        """Return the partitions, starting with a different one each time so that none is starved."""
        places = list(self.places)
        shift = self.epoch % len(places) if places else 0
        return places[shift:] + places[:shift]


class ShareSessions:
    """The sessions of all groups, by group and member."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], ShareSession] = {}

    def step(
        self,
        group: str,
        member: str,
        epoch: int,
        *,
        acknowledges: bool,
        forgets: bool = False,
        connection: object = None,
    ) -> ShareSession | ShareSessionError:
        """Open, continue or close a session, and return it."""
        key = (group, member)
        if epoch == OPENS:
            if acknowledges:
                return ShareSessionError.INVALID_REQUEST
            session = self._sessions[key] = ShareSession(epoch=1, connection=connection)
            return session
        known = self._sessions.get(key)
        if known is None:
            return ShareSessionError.NOT_FOUND
        if epoch == CLOSES:
            if forgets:
                return ShareSessionError.INVALID_REQUEST
            return self._sessions.pop(key)
        if epoch != known.epoch:
            return ShareSessionError.INVALID_EPOCH
        known.connection = connection
        known.epoch = 1 if known.epoch == EPOCH_MAX else known.epoch + 1
        return known

    def drop(self, group: str, member: str) -> None:
        self._sessions.pop((group, member), None)

    def drop_connection(self, connection: object) -> list[tuple[str, str]]:
        """Remove the sessions last used over a connection; return their groups and members."""
        removed = [key for key, session in self._sessions.items() if session.connection is connection]
        for key in removed:
            del self._sessions[key]
        return removed

    def is_open(self, group: str, member: str, session: ShareSession | None = None) -> bool:
        """Return whether a member has a session; if `session` is passed, whether it has this one."""
        known = self._sessions.get((group, member))
        return known is not None and (session is None or known is session)
