"""A consumer group and the rounds in which its members agree on who reads what.

Members join; when all have (or the time to do so is over) the group has a new generation and one member, the
leader, hands out the partitions. A member that falls silent, leaves or comes anew starts the next round. The
broker does not know what an assignment says.

    EMPTY -> PREPARING (members join) -> COMPLETING (leader assigns) -> STABLE -> PREPARING -> ...

No clock and no waiting here: every call is given the time, and an answer that must wait is given later by calling
the `reply` that came with the request. Not thread-safe.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum


class GroupState(StrEnum):
    """Named as Kafka's admin tools show them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupError(Enum):
    """Why a member's request is refused; the handlers translate to Kafka's numbers."""

    NONE = "none"
    UNKNOWN_MEMBER = "unknown member"
    ILLEGAL_GENERATION = "illegal generation"
    REBALANCE_IN_PROGRESS = "rebalance in progress"
    INCONSISTENT_PROTOCOL = "inconsistent protocol"
    MEMBER_ID_REQUIRED = "member id required"
    FENCED_INSTANCE = "fenced instance"
    GROUP_FULL = "group full"
    NON_EMPTY = "group is not empty"
    NOT_FOUND = "group not found"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A member that wants in, or wants in again."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_s: float
    rebalance_timeout_s: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    knows_member_id_required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """The round a member is in; only the leader is told who else is."""

    error: GroupError = GroupError.NONE
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    member_id: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    """What a member is to read."""

    error: GroupError = GroupError.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """A member, and the reply it is waiting for."""

    id: str
    request: JoinRequest
    last_seen: float
    assignment: bytes = b""
    join_reply: Callable[[JoinReply], None] | None = None
    sync_reply: Callable[[SyncReply], None] | None = None

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.request.protocols if name == protocol), b"")

    @property
    def protocol_names(self) -> list[str]:
        return [name for name, _ in self.request.protocols]

    def is_silent(self, now: float) -> bool:
        """Whether it has not been heard of for too long; one that waits for an answer is not silent."""
        waits = self.join_reply is not None or self.sync_reply is not None
        return not waits and self.last_seen + self.request.session_timeout_s <= now


@dataclass(slots=True, kw_only=True)
class ClassicGroup:
    """One group and its members, in the order in which they came."""

    id: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    awaited_ids: dict[str, float] = field(default_factory=dict)
    """Ids given out to members that must come back with them, and until when."""
    deadline: float | None = None
    """When the current round goes on without those that are missing."""
    initial_delay_s: float = 0.0
    """How long the first round of an empty group waits for more members, anew with each that comes."""
    first_round_ends: float | None = None
    """While the first round waits for more members: when it ends at the latest."""

    def add(self, request: JoinRequest, reply: Callable[[JoinReply], None], now: float) -> None:
        """Take a new member in."""
        member_id = request.member_id or new_member_id(request)
        self.awaited_ids.pop(member_id, None)
        self.protocol_type = request.protocol_type
        self.members[member_id] = ClassicMember(id=member_id, request=request, last_seen=now, join_reply=reply)
        self.start_round(now)

    def rejoin(
        self,
        member: ClassicMember,
        request: JoinRequest,
        reply: Callable[[JoinReply], None],
        now: float,
    ) -> None:
        """Let a member join again: with something new to say, or because a round has begun."""
        unchanged = member.request.protocols == request.protocols
        member.request = request
        member.last_seen = now
        answer_now = unchanged and (
            self.state is GroupState.COMPLETING or (self.state is GroupState.STABLE and member.id != self.leader)
        )
        if answer_now:
            reply(self.join_reply(member))
            return
        # It may join for the second time, on a new connection.
        _answer_join(member, JoinReply(error=GroupError.REBALANCE_IN_PROGRESS, member_id=member.id))
        member.join_reply = reply
        self.start_round(now)

    def replace_static(
        self,
        old: ClassicMember,
        request: JoinRequest,
        reply: Callable[[JoinReply], None],
        now: float,
    ) -> None:
        """Let a restarted static member take over its old place; a stable group need not stop for it."""
        _fence(old)
        unchanged = old.request.protocols == request.protocols
        fresh = ClassicMember(id=new_member_id(request), request=request, last_seen=now, assignment=old.assignment)
        self.members = {
            (fresh.id if m is old else m.id): (fresh if m is old else m) for m in self.members.values()
        }
        leader = self.leader
        if leader == old.id:
            self.leader = fresh.id
        if self.state is GroupState.STABLE and unchanged:
            # A leader is told its old id, so that it does not assign: there is nobody to hear it.
            reply(replace(self.join_reply(fresh), leader=leader or "", members=()))
            return
        fresh.join_reply = reply
        self.start_round(now)

    def start_round(self, now: float) -> None:
        """Begin a round, and end it at once if everybody has joined."""
        if self.state is not GroupState.PREPARING:
            for member in self.members.values():
                _answer_sync(member, SyncReply(error=GroupError.REBALANCE_IN_PROGRESS))
            self.deadline = now + max(m.request.rebalance_timeout_s for m in self.members.values())
            if self.state is GroupState.EMPTY and self.initial_delay_s > 0:
                self.first_round_ends = self.deadline
            self.state = GroupState.PREPARING
        if self.first_round_ends is not None:
            self.deadline = min(now + self.initial_delay_s, self.first_round_ends)
        elif all(m.join_reply is not None for m in self.members.values()):
            self.end_round(now)

    def end_round(self, now: float) -> None:
        """Go on with those who are there."""
        if self.state is GroupState.COMPLETING:
            # The leader never assigned: without those who did not sync, everyone starts over.
            missing = [m.id for m in self.members.values() if m.sync_reply is None]
            self.deadline = None
            self.remove(missing, now)
            return
        gone = [m.id for m in self.members.values() if m.join_reply is None and m.request.instance_id is None]
        for member_id in gone:
            del self.members[member_id]
        self.generation += 1
        self.deadline = self.first_round_ends = None
        if not self.members:
            self.state, self.leader, self.protocol = GroupState.EMPTY, None, None
            return
        members = list(self.members.values())
        joined = [m for m in members if m.join_reply is not None]
        if self.leader not in self.members or self.members[self.leader].join_reply is None:
            self.leader = (joined or members)[0].id
        self.protocol = _vote(members)
        self.state = GroupState.COMPLETING
        self.deadline = now + max(m.request.rebalance_timeout_s for m in members)
        for member in members:
            member.last_seen = now
            _answer_join(member, self.join_reply(member))

    def await_sync(
        self, member: ClassicMember, assignments: dict[str, bytes], reply: Callable[[SyncReply], None], now: float
    ) -> None:
        """Keep a member waiting for its assignment, until the leader comes with all of them."""
        # It may ask for the second time, on a new connection.
        _answer_sync(member, SyncReply(error=GroupError.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if member.id == self.leader:
            self.assign(assignments, now)

    def assign(self, assignments: dict[str, bytes], now: float) -> None:
        """Give out what the leader has assigned."""
        self.state = GroupState.STABLE
        self.deadline = None
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
            member.last_seen = now
            _answer_sync(member, self.sync_reply(member))

    def remove(self, member_ids: list[str], now: float) -> None:
        """Take members out, and begin a round for the rest."""
        for member_id in member_ids:
            _fence(self.members.pop(member_id), GroupError.UNKNOWN_MEMBER)
        if self.members:
            self.start_round(now)
        else:
            self.generation += 1
            self.state, self.leader, self.protocol = GroupState.EMPTY, None, None
            self.deadline = self.first_round_ends = None

    def join_reply(self, member: ClassicMember) -> JoinReply:
        """What a member is told when a round is complete."""
        is_leader = member.id == self.leader
        return JoinReply(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or "",
            member_id=member.id,
            members=tuple((m.id, m.request.instance_id, m.metadata(self.protocol)) for m in self.members.values())
            if is_leader
            else (),
        )

    def sync_reply(self, member: ClassicMember) -> SyncReply:
        """What a member is told once it is assigned."""
        return SyncReply(protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment)


def _vote(members: list[ClassicMember]) -> str:
    """The protocol that all support and most prefer."""
    common = common_protocols([m.protocol_names for m in members[1:]], members[0].request)
    votes = [next(name for name in m.protocol_names if name in common) for m in members]
    return max(common, key=votes.count)


def common_protocols(others: list[list[str]], request: JoinRequest) -> list[str]:
    return [name for name, _ in request.protocols if all(name in names for names in others)]


def new_member_id(request: JoinRequest) -> str:
    return f"{request.instance_id or request.client_id}-{uuid.uuid4()}"


def _fence(member: ClassicMember, error: GroupError = GroupError.FENCED_INSTANCE) -> None:
    """Answer a member that is out, if it waits."""
    _answer_join(member, JoinReply(error=error, member_id=member.id))
    _answer_sync(member, SyncReply(error=error))


def _answer_join(member: ClassicMember, answer: JoinReply) -> None:
    reply, member.join_reply = member.join_reply, None
    if reply is not None:
        reply(answer)


def _answer_sync(member: ClassicMember, answer: SyncReply) -> None:
    reply, member.sync_reply = member.sync_reply, None
    if reply is not None:
        reply(answer)
