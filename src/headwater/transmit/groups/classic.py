"""Consumer groups of Kafka's classic protocol: the groups of a broker, and the requests of their members.

Requests are checked here and applied to their group in `classic_rounds`. `expire` must be called periodically.
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
    """All classic groups of the broker."""

    def __init__(self, initial_delay_s: float = 0.0) -> None:
        self._groups: dict[str, ClassicGroup] = {}
        self._initial_delay_s = initial_delay_s

    def get(self, group_id: str) -> ClassicGroup | None:
        return self._groups.get(group_id)

    def all(self) -> Iterable[ClassicGroup]:
        return self._groups.values()

    # -- requests ---------------------------------------------------------------------------------------------

    def join(self, group_id: str, request: JoinRequest, reply: Callable[[JoinReply], None], now: float) -> None:
        """Add a member; `reply` is called when the round is complete."""
        group = self._groups.setdefault(group_id, ClassicGroup(id=group_id, initial_delay_s=self._initial_delay_s))
        rejection = _check_join(group, request, now)
        if rejection is not None:
            reply(rejection)
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
        """Take the leader's assignments, and reply to each member once they are known."""
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
        """Keep a member in its group; return REBALANCE_IN_PROGRESS if a new round has started."""
        error = self.check_member(group_id, member_id, generation, instance_id)
        if error is not GroupError.NONE:
            return error
        group = self._groups[group_id]
        group.members[member_id].last_seen = now
        return GroupError.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING else GroupError.NONE

    def leave(self, group_id: str, member_id: str, instance_id: str | None, now: float) -> GroupError:
        """Remove a member at once."""
        group = self._groups.get(group_id)
        if group is None:
            return GroupError.UNKNOWN_MEMBER
        if instance_id is not None and not member_id:
            member_id = next((m.id for m in group.members.values() if m.request.instance_id == instance_id), "")
        if group.reserved_ids.pop(member_id, None) is not None:
            return GroupError.NONE
        error = self.check_member(group_id, member_id, group.generation, instance_id)
        if error is GroupError.NONE:
            group.remove([member_id], now)
        return error

    def check_member(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> GroupError:
        """Return NONE if a request comes from a member of the current generation, else the error."""
        group = self._groups.get(group_id)
        if group is None:
            return GroupError.UNKNOWN_MEMBER
        if member_id not in group.members:
            # A static member that was replaced must not return, or the two would replace each other endlessly.
            is_replaced = instance_id is not None and any(
                m.request.instance_id == instance_id for m in group.members.values()
            )
            return GroupError.FENCED_INSTANCE if is_replaced else GroupError.UNKNOWN_MEMBER
        return GroupError.NONE if generation == group.generation else GroupError.ILLEGAL_GENERATION

    def check_commit(
        self, group_id: str, member_id: str, generation: int, now: float, instance_id: str | None = None
    ) -> GroupError:
        """Return NONE if a commit is allowed: from a member, or from any client while the group has no members."""
        group = self._groups.get(group_id)
        if generation < 0 and (group is None or not group.members):
            # A consumer that assigns partitions to itself; it may send an arbitrary member id.
            return GroupError.NONE
        error = self.check_member(group_id, member_id, generation, instance_id)
        if error is GroupError.NONE and group is not None:
            group.members[member_id].last_seen = now
            if group.state is GroupState.COMPLETING:
                return GroupError.REBALANCE_IN_PROGRESS
        return error

    def delete(self, group_id: str) -> GroupError:
        """Delete a group that has no members."""
        group = self._groups.get(group_id)
        if group is not None and group.members:
            return GroupError.NON_EMPTY
        self._groups.pop(group_id, None)
        return GroupError.NONE

    def expire(self, now: float) -> None:
        """Remove members whose session timed out, and end rounds whose deadline has passed."""
        for group in list(self._groups.values()):
            for member_id in [m for m, until in group.reserved_ids.items() if until <= now]:
                del group.reserved_ids[member_id]
            timed_out = [m.id for m in group.members.values() if m.is_timed_out(now)]
            if timed_out:
                group.remove(timed_out, now)
            if group.deadline is not None and group.deadline <= now:
                group.end_round(now)


def _check_join(group: ClassicGroup, request: JoinRequest, now: float) -> JoinReply | None:
    def reject(error: GroupError, member_id: str = request.member_id) -> JoinReply:
        return JoinReply(error=error, member_id=member_id)

    if not request.protocols or not request.protocol_type:
        return reject(GroupError.INCONSISTENT_PROTOCOL)
    others = [m for m in group.members.values() if m.id != request.member_id]
    if others and request.protocol_type != group.protocol_type:
        return reject(GroupError.INCONSISTENT_PROTOCOL)
    if others and not common_protocols([m.protocol_names for m in others], request):
        return reject(GroupError.INCONSISTENT_PROTOCOL)
    if request.instance_id is not None:
        return _check_static(group, request, reject)
    if not request.member_id:
        if len(group.members) + len(group.reserved_ids) >= MEMBERS_MAX:
            return reject(GroupError.GROUP_FULL)
        if request.knows_member_id_required:
            member_id = new_member_id(request)
            group.reserved_ids[member_id] = now + request.session_timeout_s
            return reject(GroupError.MEMBER_ID_REQUIRED, member_id)
        return None
    if request.member_id not in group.members and request.member_id not in group.reserved_ids:
        return reject(GroupError.UNKNOWN_MEMBER)
    return None


def _check_static(group: ClassicGroup, request: JoinRequest, reject: Callable[..., JoinReply]) -> JoinReply | None:
    known = _static_member(group, replace(request, member_id=""))
    if not request.member_id:
        return None
    if known is None:
        return reject(GroupError.UNKNOWN_MEMBER)
    return None if known.id == request.member_id else reject(GroupError.FENCED_INSTANCE)


def _static_member(group: ClassicGroup, request: JoinRequest) -> ClassicMember | None:
    """Return the member with this instance id, if the request of a restarted one has no member id."""
    if request.instance_id is None or request.member_id:
        return None
    return next((m for m in group.members.values() if m.request.instance_id == request.instance_id), None)
