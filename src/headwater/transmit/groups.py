"""Consumer groups, Kafka's classic protocol: who is in a group, and which member reads what.

Members join; when all have (or the time to do so is over) the group has a new generation and one member, the
leader, hands out the partitions in `sync`. A heartbeat keeps a member in; a member that falls silent, leaves or
comes anew starts the next round. The broker does not know what an assignment says.

    EMPTY -> PREPARING (members join) -> COMPLETING (leader assigns) -> STABLE -> PREPARING -> ...

No clock and no waiting here: every call is given the time, and an answer that must wait is given later by calling
the `reply` that came with the request. `expire` must be called now and then. Not thread-safe.
"""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum

MEMBERS_MAX = 1000


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
class Member:
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


@dataclass(slots=True, kw_only=True)
class Group:
    """One group and its members, in the order in which they came."""

    id: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    awaited_ids: dict[str, float] = field(default_factory=dict)
    """Ids given out to members that must come back with them, and until when."""
    deadline: float | None = None
    """When the current round goes on without those that are missing."""


class Groups:
    """All groups of the broker."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def all(self) -> Iterable[Group]:
        return self._groups.values()

    # -- requests ---------------------------------------------------------------------------------------------

    def join(self, group_id: str, request: JoinRequest, reply: Callable[[JoinReply], None], now: float) -> None:
        """Take a member in; it is answered when the round is complete."""
        group = self._groups.setdefault(group_id, Group(id=group_id))
        refusal = self._check_join(group, request, now)
        if refusal is not None:
            reply(refusal)
            return
        member = self._static_member(group, request)
        if member is not None:
            self._replace_static(group, member, request, reply, now)
            return
        member = group.members.get(request.member_id)
        if member is None:
            self._add_member(group, request, reply, now)
            return
        self._rejoin(group, member, request, reply, now)

    def sync(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes],
        reply: Callable[[SyncReply], None],
        now: float,
        instance_id: str | None = None,
    ) -> None:
        """Take the leader's assignments; give each member its own once they are there."""
        group = self._groups.get(group_id)
        error = self.check_member(group_id, member_id, generation, instance_id)
        if group is None or error is not GroupError.NONE:
            reply(SyncReply(error=error))
            return
        member = group.members[member_id]
        member.last_seen = now
        if group.state is GroupState.PREPARING:
            reply(SyncReply(error=GroupError.REBALANCE_IN_PROGRESS))
        elif group.state is GroupState.STABLE:
            reply(self._sync_reply(group, member))
        else:
            _answer_sync(
                member, SyncReply(error=GroupError.REBALANCE_IN_PROGRESS)
            )  # if it asks for the second time
            member.sync_reply = reply
            if member_id == group.leader:
                self._assign(group, assignments, now)

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, now: float, instance_id: str | None = None
    ) -> GroupError:
        """Keep a member in; tell it if a new round has begun."""
        error = self.check_member(group_id, member_id, generation, instance_id)
        if error is not GroupError.NONE:
            return error
        group = self._groups[group_id]
        group.members[member_id].last_seen = now
        return GroupError.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING else GroupError.NONE

    def leave(self, group_id: str, member_id: str, instance_id: str | None, now: float) -> GroupError:
        """Take a member out at once."""
        group = self._groups.get(group_id)
        if group is None:
            return GroupError.UNKNOWN_MEMBER
        if instance_id is not None and not member_id:
            member_id = next((m.id for m in group.members.values() if m.request.instance_id == instance_id), "")
        if group.awaited_ids.pop(member_id, None) is not None:
            return GroupError.NONE
        error = self.check_member(group_id, member_id, group.generation, instance_id)
        if error is GroupError.NONE:
            self._remove(group, [member_id], now)
        return error

    def check_member(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> GroupError:
        """Whether a request comes from a member of the current generation."""
        group = self._groups.get(group_id)
        if group is None:
            return GroupError.UNKNOWN_MEMBER
        if member_id not in group.members:
            # A static member that was replaced must not come back, or the two would throw each other out for ever.
            taken = instance_id is not None and any(
                m.request.instance_id == instance_id for m in group.members.values()
            )
            return GroupError.FENCED_INSTANCE if taken else GroupError.UNKNOWN_MEMBER
        return GroupError.NONE if generation == group.generation else GroupError.ILLEGAL_GENERATION

    def check_commit(
        self, group_id: str, member_id: str, generation: int, now: float, instance_id: str | None = None
    ) -> GroupError:
        """Whether a commit is allowed: by a member, or from outside while the group has none."""
        group = self._groups.get(group_id)
        if generation < 0 and not member_id:
            occupied = group is not None and bool(group.members)
            return GroupError.UNKNOWN_MEMBER if occupied else GroupError.NONE
        error = self.check_member(group_id, member_id, generation, instance_id)
        if error is GroupError.NONE and group is not None:
            group.members[member_id].last_seen = now
            if group.state is GroupState.COMPLETING:
                return GroupError.REBALANCE_IN_PROGRESS
        return error

    def delete(self, group_id: str) -> GroupError:
        """Forget a group that has no members."""
        group = self._groups.get(group_id)
        if group is not None and group.members:
            return GroupError.NON_EMPTY
        self._groups.pop(group_id, None)
        return GroupError.NONE

    def expire(self, now: float) -> None:
        """Take out members that fell silent and end rounds whose time is over."""
        for group in list(self._groups.values()):
            for member_id in [m for m, until in group.awaited_ids.items() if until <= now]:
                del group.awaited_ids[member_id]
            silent = [m.id for m in group.members.values() if self._is_silent(m, now)]
            if silent:
                self._remove(group, silent, now)
            if group.deadline is not None and group.deadline <= now:
                self._end_round(group, now)

    # -- joining ----------------------------------------------------------------------------------------------

    def _check_join(self, group: Group, request: JoinRequest, now: float) -> JoinReply | None:
        def refuse(error: GroupError, member_id: str = request.member_id) -> JoinReply:
            return JoinReply(error=error, member_id=member_id)

        if not request.protocols or not request.protocol_type:
            return refuse(GroupError.INCONSISTENT_PROTOCOL)
        others = [m for m in group.members.values() if m.id != request.member_id]
        if others and request.protocol_type != group.protocol_type:
            return refuse(GroupError.INCONSISTENT_PROTOCOL)
        if others and not _common_protocols([m.protocol_names for m in others], request):
            return refuse(GroupError.INCONSISTENT_PROTOCOL)
        if request.instance_id is not None:
            return self._check_static(group, request, refuse)
        if not request.member_id:
            if len(group.members) + len(group.awaited_ids) >= MEMBERS_MAX:
                return refuse(GroupError.GROUP_FULL)
            if request.knows_member_id_required:
                member_id = _new_member_id(request)
                group.awaited_ids[member_id] = now + request.session_timeout_s
                return refuse(GroupError.MEMBER_ID_REQUIRED, member_id)
            return None
        if request.member_id not in group.members and request.member_id not in group.awaited_ids:
            return refuse(GroupError.UNKNOWN_MEMBER)
        return None

    def _check_static(
        self, group: Group, request: JoinRequest, refuse: Callable[..., JoinReply]
    ) -> JoinReply | None:
        known = self._static_member(group, replace(request, member_id=""))
        if not request.member_id:
            return None
        if known is None:
            return refuse(GroupError.UNKNOWN_MEMBER)
        return None if known.id == request.member_id else refuse(GroupError.FENCED_INSTANCE)

    def _static_member(self, group: Group, request: JoinRequest) -> Member | None:
        """The member that had this static name before, if it comes back without its id."""
        if request.instance_id is None or request.member_id:
            return None
        return next((m for m in group.members.values() if m.request.instance_id == request.instance_id), None)

    def _add_member(
        self, group: Group, request: JoinRequest, reply: Callable[[JoinReply], None], now: float
    ) -> None:
        member_id = request.member_id or _new_member_id(request)
        group.awaited_ids.pop(member_id, None)
        group.protocol_type = request.protocol_type
        group.members[member_id] = Member(id=member_id, request=request, last_seen=now, join_reply=reply)
        self._start_round(group, now)

    def _rejoin(
        self,
        group: Group,
        member: Member,
        request: JoinRequest,
        reply: Callable[[JoinReply], None],
        now: float,
    ) -> None:
        unchanged = member.request.protocols == request.protocols
        member.request = request
        member.last_seen = now
        answer_now = unchanged and (
            group.state is GroupState.COMPLETING
            or (group.state is GroupState.STABLE and member.id != group.leader)
        )
        if answer_now:
            reply(self._join_reply(group, member))
            return
        _answer_join(
            member, JoinReply(error=GroupError.REBALANCE_IN_PROGRESS, member_id=member.id)
        )  # an earlier one
        member.join_reply = reply
        self._start_round(group, now)

    def _replace_static(
        self,
        group: Group,
        old: Member,
        request: JoinRequest,
        reply: Callable[[JoinReply], None],
        now: float,
    ) -> None:
        """Let a restarted static member take over its old place; a stable group need not stop for it."""
        _fence(old)
        unchanged = old.request.protocols == request.protocols
        fresh = Member(id=_new_member_id(request), request=request, last_seen=now, assignment=old.assignment)
        group.members = {
            (fresh.id if m is old else m.id): (fresh if m is old else m) for m in group.members.values()
        }
        leader = group.leader
        if leader == old.id:
            group.leader = fresh.id
        if group.state is GroupState.STABLE and unchanged:
            # A leader is told its old id, so that it does not assign: there is nobody to hear it.
            reply(replace(self._join_reply(group, fresh), leader=leader or "", members=()))
            return
        fresh.join_reply = reply
        self._start_round(group, now)

    # -- rounds -----------------------------------------------------------------------------------------------

    def _start_round(self, group: Group, now: float) -> None:
        if group.state is not GroupState.PREPARING:
            for member in group.members.values():
                _answer_sync(member, SyncReply(error=GroupError.REBALANCE_IN_PROGRESS))
            group.state = GroupState.PREPARING
            group.deadline = now + max(m.request.rebalance_timeout_s for m in group.members.values())
        if all(m.join_reply is not None for m in group.members.values()):
            self._end_round(group, now)

    def _end_round(self, group: Group, now: float) -> None:
        """Go on with those who are there."""
        if group.state is GroupState.COMPLETING:
            # The leader never assigned: without those who did not sync, everyone starts over.
            missing = [m.id for m in group.members.values() if m.sync_reply is None]
            group.deadline = None
            self._remove(group, missing, now)
            return
        gone = [m.id for m in group.members.values() if m.join_reply is None and m.request.instance_id is None]
        for member_id in gone:
            del group.members[member_id]
        group.generation += 1
        group.deadline = None
        if not group.members:
            group.state, group.leader, group.protocol = GroupState.EMPTY, None, None
            return
        members = list(group.members.values())
        joined = [m for m in members if m.join_reply is not None]
        if group.leader not in group.members or group.members[group.leader].join_reply is None:
            group.leader = (joined or members)[0].id
        group.protocol = _vote(members)
        group.state = GroupState.COMPLETING
        group.deadline = now + max(m.request.rebalance_timeout_s for m in members)
        for member in members:
            member.last_seen = now
            _answer_join(member, self._join_reply(group, member))

    def _assign(self, group: Group, assignments: dict[str, bytes], now: float) -> None:
        group.state = GroupState.STABLE
        group.deadline = None
        for member in group.members.values():
            member.assignment = assignments.get(member.id, b"")
            member.last_seen = now
            _answer_sync(member, self._sync_reply(group, member))

    def _remove(self, group: Group, member_ids: list[str], now: float) -> None:
        for member_id in member_ids:
            _fence(group.members.pop(member_id), GroupError.UNKNOWN_MEMBER)
        if group.members:
            self._start_round(group, now)
        else:
            group.generation += 1
            group.state, group.leader, group.protocol, group.deadline = GroupState.EMPTY, None, None, None

    def _is_silent(self, member: Member, now: float) -> bool:
        waits = member.join_reply is not None or member.sync_reply is not None
        return not waits and member.last_seen + member.request.session_timeout_s <= now

    def _join_reply(self, group: Group, member: Member) -> JoinReply:
        is_leader = member.id == group.leader
        return JoinReply(
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            leader=group.leader or "",
            member_id=member.id,
            members=tuple(
                (m.id, m.request.instance_id, m.metadata(group.protocol)) for m in group.members.values()
            )
            if is_leader
            else (),
        )

    def _sync_reply(self, group: Group, member: Member) -> SyncReply:
        return SyncReply(protocol_type=group.protocol_type, protocol=group.protocol, assignment=member.assignment)


def _vote(members: list[Member]) -> str:
    """The protocol that all support and most prefer."""
    common = _common_protocols([m.protocol_names for m in members[1:]], members[0].request)
    votes = [next(name for name in m.protocol_names if name in common) for m in members]
    return max(common, key=votes.count)


def _common_protocols(others: list[list[str]], request: JoinRequest) -> list[str]:
    return [name for name, _ in request.protocols if all(name in names for names in others)]


def _new_member_id(request: JoinRequest) -> str:
    return f"{request.instance_id or request.client_id}-{uuid.uuid4()}"


def _fence(member: Member, error: GroupError = GroupError.FENCED_INSTANCE) -> None:
    """Answer a member that is out, if it waits."""
    _answer_join(member, JoinReply(error=error, member_id=member.id))
    _answer_sync(member, SyncReply(error=error))


def _answer_join(member: Member, answer: JoinReply) -> None:
    reply, member.join_reply = member.join_reply, None
    if reply is not None:
        reply(answer)


def _answer_sync(member: Member, answer: SyncReply) -> None:
    reply, member.sync_reply = member.sync_reply, None
    if reply is not None:
        reply(answer)
