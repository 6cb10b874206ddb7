"""Consumer groups, Kafka's classic protocol: the groups there are, and the requests of their members.

A request is checked here; what it does to its group is in `membership`. `expire` must be called now and then.
Not thread-safe.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from headwater.transmit.groups.classic_rounds import (
    ClassicGroup,
    ClassicMember,
    GroupError,
    GroupState,
    JoinReply,
    JoinRequest,
    SyncReply,
    common_protocols,
    new_member_id,
)

MEMBERS_MAX = 1000


class ClassicGroups:
    """All groups of the broker."""

    def __init__(self, initial_delay_s: float = 0.0) -> None:
        self._groups: dict[str, ClassicGroup] = {}
        self._initial_delay_s = initial_delay_s

    def get(self, group_id: str) -> ClassicGroup | None:
        return self._groups.get(group_id)

    def all(self) -> Iterable[ClassicGroup]:
        return self._groups.values()

    # -- requests ---------------------------------------------------------------------------------------------

    def join(self, group_id: str, request: JoinRequest, reply: Callable[[JoinReply], None], now: float) -> None:
        """Take a member in; it is answered when the round is complete."""
        group = self._groups.setdefault(group_id, ClassicGroup(id=group_id, initial_delay_s=self._initial_delay_s))
        refusal = _check_join(group, request, now)
        if refusal is not None:
            reply(refusal)
            return
        member = _static_member(group, request)
        if member is not None:
            group.replace_static(member, request, reply, now)
            return
        member = group.members.get(request.member_id)
        if member is None:
            group.add(request, reply, now)
            return
        group.rejoin(member, request, reply, now)

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
            reply(group.sync_reply(member))
        else:
            group.await_sync(member, assignments, reply, now)

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
            group.remove([member_id], now)
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
        if generation < 0 and (group is None or not group.members):
            # A consumer that assigns partitions to itself; it may have made up an id all the same.
            return GroupError.NONE
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
            silent = [m.id for m in group.members.values() if m.is_silent(now)]
            if silent:
                group.remove(silent, now)
            if group.deadline is not None and group.deadline <= now:
                group.end_round(now)


def _check_join(group: ClassicGroup, request: JoinRequest, now: float) -> JoinReply | None:
    def refuse(error: GroupError, member_id: str = request.member_id) -> JoinReply:
        return JoinReply(error=error, member_id=member_id)

    if not request.protocols or not request.protocol_type:
        return refuse(GroupError.INCONSISTENT_PROTOCOL)
    others = [m for m in group.members.values() if m.id != request.member_id]
    if others and request.protocol_type != group.protocol_type:
        return refuse(GroupError.INCONSISTENT_PROTOCOL)
    if others and not common_protocols([m.protocol_names for m in others], request):
        return refuse(GroupError.INCONSISTENT_PROTOCOL)
    if request.instance_id is not None:
        return _check_static(group, request, refuse)
    if not request.member_id:
        if len(group.members) + len(group.awaited_ids) >= MEMBERS_MAX:
            return refuse(GroupError.GROUP_FULL)
        if request.knows_member_id_required:
            member_id = new_member_id(request)
            group.awaited_ids[member_id] = now + request.session_timeout_s
            return refuse(GroupError.MEMBER_ID_REQUIRED, member_id)
        return None
    if request.member_id not in group.members and request.member_id not in group.awaited_ids:
        return refuse(GroupError.UNKNOWN_MEMBER)
    return None


def _check_static(group: ClassicGroup, request: JoinRequest, refuse: Callable[..., JoinReply]) -> JoinReply | None:
    known = _static_member(group, replace(request, member_id=""))
    if not request.member_id:
        return None
    if known is None:
        return refuse(GroupError.UNKNOWN_MEMBER)
    return None if known.id == request.member_id else refuse(GroupError.FENCED_INSTANCE)


def _static_member(group: ClassicGroup, request: JoinRequest) -> ClassicMember | None:
    """The member that had this static name before, if it comes back without its id."""
    if request.instance_id is None or request.member_id:
        return None
    return next((m for m in group.members.values() if m.request.instance_id == request.instance_id), None)
