"""Who is in a share group, which partitions each member fetches from, and the sessions in which it does.

A member says that it is there by heartbeats and is told its partitions in return; several members may have the
same one, because records are lent out one by one. No clock and no IO; every call is given the time. Not
thread-safe.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from headwater.record import TopicPartition

JOINS, LEAVES = 0, -1
OPENS, CLOSES = 0, -1
EPOCH_MAX = 2**31 - 1

Assignment = frozenset[TopicPartition]


class MemberError(Enum):
    """Why a member's heartbeat is refused; the handlers translate to Kafka's numbers."""

    UNKNOWN_MEMBER = "unknown member"
    FENCED_EPOCH = "fenced member epoch"
    GROUP_FULL = "group full"
    INVALID_REQUEST = "invalid request"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeat:
    """What a member says: it joins with epoch 0 and leaves with -1; topics that did not change may be None."""

    member_id: str
    epoch: int
    topics: frozenset[str] | None
    client_id: str = ""
    client_host: str = ""
    rack: str | None = None
    connection: object = None
    """Over which it says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareReply:
    """What it is told; the assignment only if it is news."""

    member_id: str
    epoch: int
    assignment: Assignment | None = None


@dataclass(slots=True, kw_only=True)
class ShareMember:
    """A member as the group knows it."""

    id: str
    client_id: str
    client_host: str
    rack: str | None
    topics: frozenset[str]
    last_seen: float
    epoch: int = 0
    previous_epoch: int = 0
    assignment: Assignment = frozenset()
    told: Assignment | None = None
    connection: object = None
    """Over which it was last heard of."""
    is_cut_off: bool = False
    """That connection is gone."""


@dataclass(slots=True, kw_only=True)
class ShareGroup:
    """One share group; `partitions` in the calls below are those of every topic there is."""

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
    ) -> ShareReply | MemberError:
        """Take a member in, keep it in, or let it go."""
        member = self.members.get(request.member_id)
        if request.epoch == LEAVES:
            if member is None:
                return MemberError.UNKNOWN_MEMBER
            self.remove([member.id], partitions)
            return ShareReply(member_id=request.member_id, epoch=LEAVES)
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
            assignment=known.assignment if known else frozenset(),
        )
        self.members[member.id] = member
        if known is None or known.topics != member.topics:
            self._partitions = {}  # so that it is assigned
        return member

    def _keep(
        self, member: ShareMember, request: ShareHeartbeat, partitions: Mapping[str, int], now: float
    ) -> ShareReply:
        member.last_seen = now
        member.connection, member.is_cut_off = request.connection, False
        if request.topics is not None and request.topics != member.topics:
            member.topics = request.topics
            self._partitions = {}
        self._assign(partitions)
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
        news = None if member.told == member.assignment else member.assignment
        member.told = member.assignment
        return ShareReply(member_id=member.id, epoch=member.epoch, assignment=news)

    def remove(self, member_ids: list[str], partitions: Mapping[str, int]) -> None:
        for member_id in member_ids:
            del self.members[member_id]
        self._partitions = {}
        self._assign(partitions)

    def silent(self, now: float, session_s: float) -> list[str]:
        """Members that have not been heard of for too long."""
        return [member.id for member in self.members.values() if member.last_seen + session_s <= now]

    def cut_off(self, connection: object) -> list[str]:
        """A connection is gone: members that were last heard of over it, or over another that is gone."""
        for member in self.members.values():
            if connection is not None and member.connection is connection:
                member.connection, member.is_cut_off = None, True
        return [member.id for member in self.members.values() if member.is_cut_off]

    def _assign(self, partitions: Mapping[str, int]) -> None:
        """Hand the partitions out anew, if members, their topics or the topics' partitions have changed."""
        wanted = {topic for member in self.members.values() for topic in member.topics}
        there = {topic: partitions[topic] for topic in wanted if topic in partitions}
        if there == self._partitions and self.epoch:
            return
        self._partitions = there
        self.epoch += 1
        assigned = assign_shared({m.id: m.topics for m in self.members.values()}, there)
        for member in self.members.values():
            member.assignment = assigned[member.id]


def assign_shared(members: Mapping[str, frozenset[str]], partitions: Mapping[str, int]) -> dict[str, Assignment]:
    """Spread each topic over its members: every partition has a member, and every member a partition."""
    given: dict[str, set[TopicPartition]] = {member: set() for member in members}
    for topic, count in sorted(partitions.items()):
        those = sorted(member for member, topics in members.items() if topic in topics)
        # Who has least so far comes first, so that a row of small topics does not end with the same member.
        those.sort(key=lambda member: len(given[member]))
        for turn in range(max(count, len(those))):
            if those:
                given[those[turn % len(those)]].add(TopicPartition(topic, turn % count))
    return {member: frozenset(some) for member, some in given.items()}


# -- sessions -------------------------------------------------------------------------------------------------


class ShareSessionError(Enum):
    """Why a fetch or an acknowledgement is refused."""

    NOT_FOUND = "share session not found"
    INVALID_EPOCH = "invalid share session epoch"
    INVALID_REQUEST = "invalid request"


AssignedPartition = tuple[uuid.UUID, int]
"""A partition by its topic's id."""


@dataclass(slots=True, kw_only=True)
class ShareSession:
    """The partitions a member fetches from, so that it need not name them each time."""

    epoch: int = 0
    connection: object = None
    """Over which it was last used: what is lent in the session is lent to whoever is at its other end."""
    places: dict[AssignedPartition, None] = field(default_factory=dict)

    def turn(self) -> list[AssignedPartition]:
        """The partitions, beginning with another one each time, so that none is starved."""
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
        """Open, continue or close a session; a closed one is given back for the last time."""
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
        """End the sessions that were last used over a connection; of whom they were, group and member."""
        gone = [key for key, session in self._sessions.items() if session.connection is connection]
        for key in gone:
            del self._sessions[key]
        return gone

    def is_open(self, group: str, member: str, session: ShareSession | None = None) -> bool:
        """Whether a member has a session; this one, if it is given."""
        known = self._sessions.get((group, member))
        return known is not None and (session is None or known is session)
