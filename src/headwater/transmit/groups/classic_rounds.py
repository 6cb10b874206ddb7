"""A classic consumer group and its rebalance rounds.

Members join. When all have joined, or the deadline has passed, the group gets a new generation, and one member,
the leader, assigns the partitions. A member that times out, leaves or joins starts the next round. The broker does
not interpret assignments.

    EMPTY -> PREPARING (members join) -> COMPLETING (leader assigns) -> STABLE -> PREPARING -> ...

No clock and no blocking: the time is passed to every call, and a delayed reply is sent by calling the `reply` that
was passed with the request. Not thread-safe.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum


class GroupState(StrEnum):
    """The state of a group, named as in Kafka's admin tools."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupError(Enum):
    """Reasons to reject a member's request; the handlers map them to Kafka's error codes."""

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
    """A member's request to join, or to join again."""

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
    """The result of a round; only the leader gets the list of members."""

    error: GroupError = GroupError.NONE
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    member_id: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    """A member's assignment."""

    error: GroupError = GroupError.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """A member, and the callbacks for replies that it waits for."""

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

    def is_timed_out(self, now: float) -> bool:
        """Return whether its session timed out, which cannot happen while it waits for a reply."""
        waits = self.join_reply is not None or self.sync_reply is not None
        return not waits and self.last_seen + self.request.session_timeout_s <= now


@dataclass(slots=True, kw_only=True)
class ClassicGroup:
    """One group and its members, in the order in which they joined."""

    id: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    reserved_ids: dict[str, float] = field(default_factory=dict)
    """Ids sent to new members, with which they have to join again, and the deadline for that."""
    deadline: float | None = None
    """The time at which the current round continues without missing members."""
    initial_delay_s: float = 0.0
    """The time that the first round of an empty group waits for another member after each join."""
    first_round_deadline: float | None = None
    """While the first round waits for more members: its latest end."""

    def add(self, request: JoinRequest, reply: Callable[[JoinReply], None], now: float) -> None:
        """Add a new member."""
        member_id = request.member_id or new_member_id(request)
        self.reserved_ids.pop(member_id, None)
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
        """Let a member join again: with new metadata, or because a round has started."""
        unchanged = member.request.protocols == request.protocols
        member.request = request
        member.last_seen = now
        reply_now = unchanged and (
            self.state is GroupState.COMPLETING or (self.state is GroupState.STABLE and member.id != self.leader)
        )
        if reply_now:
            reply(self.join_reply(member))
            return
        # An earlier join of the same member may still wait, on another connection.
        _reply_to_join(member, JoinReply(error=GroupError.REBALANCE_IN_PROGRESS, member_id=member.id))
        member.join_reply = reply
        self.start_round(now)

    def replace_static(
        self,
        old: ClassicMember,
        request: JoinRequest,
        reply: Callable[[JoinReply], None],
        now: float,
    ) -> None:
        """Replace a static member by its restarted self; a stable group does not rebalance for it."""
        _fence(old)
        unchanged = old.request.protocols == request.protocols
        restarted = ClassicMember(
            id=new_member_id(request), request=request, last_seen=now, assignment=old.assignment
        )
        self.members = {
            (restarted.id if m is old else m.id): (restarted if m is old else m) for m in self.members.values()
        }
        leader = self.leader
        if leader == old.id:
            self.leader = restarted.id
        if self.state is GroupState.STABLE and unchanged:
            # A leader gets its old id, so that it does not assign: no other member waits for an assignment.
            reply(replace(self.join_reply(restarted), leader=leader or "", members=()))
            return
        restarted.join_reply = reply
        self.start_round(now)

    def start_round(self, now: float) -> None:
        """Start a round, and end it at once if all members have joined."""
        if self.state is not GroupState.PREPARING:
            for member in self.members.values():
                _reply_to_sync(member, SyncReply(error=GroupError.REBALANCE_IN_PROGRESS))
            self.deadline = now + max(m.request.rebalance_timeout_s for m in self.members.values())
            if self.state is GroupState.EMPTY and self.initial_delay_s > 0:
                self.first_round_deadline = self.deadline
            self.state = GroupState.PREPARING
        if self.first_round_deadline is not None:
            self.deadline = min(now + self.initial_delay_s, self.first_round_deadline)
        elif all(m.join_reply is not None for m in self.members.values()):
            self.end_round(now)

    def end_round(self, now: float) -> None:
        """End the round with the members that have joined."""
        if self.state is GroupState.COMPLETING:
            # The leader never assigned: remove the members that did not sync, and start over.
            missing = [m.id for m in self.members.values() if m.sync_reply is None]
            self.deadline = None
            self.remove(missing, now)
            return
        gone = [m.id for m in self.members.values() if m.join_reply is None and m.request.instance_id is None]
        for member_id in gone:
            del self.members[member_id]
        self.generation += 1
        self.deadline = self.first_round_deadline = None
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
            _reply_to_join(member, self.join_reply(member))

    def await_sync(
        self, member: ClassicMember, assignments: dict[str, bytes], reply: Callable[[SyncReply], None], now: float
    ) -> None:
        """Make a member wait for its assignment until the leader sends all of them."""
        # An earlier sync of the same member may still wait, on another connection.
        _reply_to_sync(member, SyncReply(error=GroupError.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if member.id == self.leader:
            self.assign(assignments, now)

    def assign(self, assignments: dict[str, bytes], now: float) -> None:
        """Send the members the leader's assignments."""
        self.state = GroupState.STABLE
        self.deadline = None
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
            member.last_seen = now
            _reply_to_sync(member, self.sync_reply(member))

    def remove(self, member_ids: list[str], now: float) -> None:
        """Remove members, and start a round for the others."""
        for member_id in member_ids:
            _fence(self.members.pop(member_id), GroupError.UNKNOWN_MEMBER)
        if self.members:
            self.start_round(now)
        else:
            self.generation += 1
            self.state, self.leader, self.protocol = GroupState.EMPTY, None, None
            self.deadline = self.first_round_deadline = None

    def join_reply(self, member: ClassicMember) -> JoinReply:
        """Return the reply to a member's join when a round is complete."""
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
        """Return the reply to a member's sync."""
        return SyncReply(protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment)


def _vote(members: list[ClassicMember]) -> str:
    """Return the protocol that all members support and most prefer."""
    common = common_protocols([m.protocol_names for m in members[1:]], members[0].request)
    votes = [next(name for name in m.protocol_names if name in common) for m in members]
    return max(common, key=votes.count)


def common_protocols(others: list[list[str]], request: JoinRequest) -> list[str]:
    return [name for name, _ in request.protocols if all(name in names for names in others)]


def new_member_id(request: JoinRequest) -> str:
    return f"{request.instance_id or request.client_id}-{uuid.uuid4()}"


def _fence(member: ClassicMember, error: GroupError = GroupError.FENCED_INSTANCE) -> None:
    """Reply to a removed member with an error, if it waits for a reply."""
    _reply_to_join(member, JoinReply(error=error, member_id=member.id))
    _reply_to_sync(member, SyncReply(error=error))


def _reply_to_join(member: ClassicMember, join_reply: JoinReply) -> None:
    reply, member.join_reply = member.join_reply, None
    if reply is not None:
        reply(join_reply)


def _reply_to_sync(member: ClassicMember, sync_reply: SyncReply) -> None:
    reply, member.sync_reply = member.sync_reply, None
    if reply is not None:
        reply(sync_reply)
