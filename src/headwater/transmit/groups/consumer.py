"""Consumer groups of the new protocol (KIP-848): the broker assigns partitions, and members follow step by step.

A group has an epoch and a target assignment. Both change when members, their subscriptions or the topics change.
A member moves to the target with its heartbeats. First it revokes the partitions it loses and confirms that. Then
it gets the new epoch, and each new partition as soon as the previous owner has revoked it.

No clock and no I/O: the time is passed to every call, and every call returns at once. Not thread-safe.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from headwater.transmit.groups.assignors import ASSIGNORS, UNIFORM
from headwater.transmit.groups.heartbeats import NOTHING, Assignment, HeartbeatReply
from headwater.transmit.groups.subscriptions import InvalidPattern, Subscription

JOINS, LEAVES, LEAVES_FOR_NOW = 0, -1, -2
"""Member epochs of requests; the last is for a static member that will return."""

MEMBERS_MAX = 1000


class ConsumerError(Enum):
    """Reasons to reject a member's request; the handlers map them to Kafka's error codes."""

    UNKNOWN_MEMBER = "unknown member"
    FENCED_EPOCH = "fenced member epoch"
    STALE_EPOCH = "stale member epoch"
    FENCED_INSTANCE = "fenced instance"
    UNRELEASED_INSTANCE = "unreleased instance"
    UNSUPPORTED_ASSIGNOR = "unsupported assignor"
    INVALID_REGEX = "invalid regular expression"
    INVALID_REQUEST = "invalid request"
    GROUP_FULL = "group full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A member's heartbeat; fields that are None have not changed since its last one."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_s: float | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""


@dataclass(slots=True, kw_only=True)
class ConsumerMember:
    """A member; it may read `assigned`, and still has to confirm that it has revoked `revoking`."""

    id: str
    instance_id: str | None
    rack: str | None
    client_id: str
    client_host: str
    rebalance_timeout_s: float
    subscription: Subscription
    assignor: str | None
    last_seen: float
    epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING
    revoke_deadline: float = 0.0
    reported: Assignment | None = None
    """The assignment of the last reply."""

    @property
    def is_away(self) -> bool:
        """Return whether it is a static member that left and announced its return."""
        return self.epoch == LEAVES_FOR_NOW


@dataclass(slots=True, kw_only=True)
class ConsumerGroup:
    """One group; its methods take `partitions`, the number of partitions of every existing topic."""

    id: str
    epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target: dict[str, Assignment] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)

    @property
    def assignor(self) -> str:
        """The assignor that most members request."""
        requested = Counter(member.assignor for member in self.members.values() if member.assignor)
        return requested.most_common(1)[0][0] if requested else UNIFORM

    @property
    def state(self) -> str:
        """The group's state, named as in Kafka's admin tools."""
        if not self.members:
            return "Empty"
        settled = all(m.epoch == self.epoch and m.assigned == self.target.get(m.id) for m in self.members.values())
        return "Stable" if settled else "Reconciling"

    # -- requests ---------------------------------------------------------------------------------------------

    def heartbeat(
        self, request: ConsumerHeartbeat, partitions: Mapping[str, int], now: float, *, members_max: int
    ) -> HeartbeatReply | ConsumerError:
        """Add, keep or remove a member."""
        error = self._check(request, members_max)
        if error is not None:
            return error
        try:
            if request.epoch < 0:
                return self._leave(request, partitions, now)
            member = self._join(request, now) if request.epoch == JOINS else self.members[request.member_id]
            changed = _update(member, request)
        except InvalidPattern:
            return ConsumerError.INVALID_REGEX
        member.last_seen = now
        self.assign(partitions, force=changed or member.id not in self.target)
        self._reconcile(member, request.owned, now)
        # A member that resends its full state expects a full reply.
        is_full = member.assigned != member.reported or request.epoch == JOINS or request.topics is not None
        member.reported = member.assigned
        assignment = member.assigned if is_full else None
        return HeartbeatReply(member_id=member.id, epoch=member.epoch, assignment=assignment)

    def _check(self, request: ConsumerHeartbeat, members_max: int) -> ConsumerError | None:
        if request.assignor and request.assignor not in ASSIGNORS:
            return ConsumerError.UNSUPPORTED_ASSIGNOR
        named = self._by_instance(request.instance_id)
        member = self.members.get(request.member_id)
        if request.epoch == JOINS:
            if request.topics is None and request.pattern is None:
                return ConsumerError.INVALID_REQUEST
            if named is not None and named.id != request.member_id and not named.is_away:
                return ConsumerError.UNRELEASED_INSTANCE
            if member is None and named is None and len(self.members) >= members_max:
                return ConsumerError.GROUP_FULL
            return None
        if named is not None and named.id != request.member_id:
            return ConsumerError.FENCED_INSTANCE
        if member is None:
            return ConsumerError.UNKNOWN_MEMBER
        if request.epoch < 0:
            static = member.instance_id is not None
            return None if request.epoch == LEAVES or static else ConsumerError.INVALID_REQUEST
        # A member that did not receive the last reply sends its previous epoch again.
        lost_reply = request.epoch == member.previous_epoch and (request.owned or NOTHING) <= member.assigned
        return None if request.epoch == member.epoch or lost_reply else ConsumerError.FENCED_EPOCH

    def _by_instance(self, instance_id: str | None) -> ConsumerMember | None:
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def _join(self, request: ConsumerHeartbeat, now: float) -> ConsumerMember:
        """Add a new member, or one that starts over; a static one keeps its target."""
        subscription = Subscription.parse(request.topics, request.pattern)
        before = self.members.get(request.member_id) or self._by_instance(request.instance_id)
        member = ConsumerMember(
            id=request.member_id,
            instance_id=request.instance_id,
            rack=request.rack,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_s=300.0,
            subscription=subscription,
            assignor=request.assignor,
            last_seen=now,
        )
        if before is not None:
            del self.members[before.id]
            target = self.target.pop(before.id, None)
            if target is not None and before.subscription == subscription:
                self.target[member.id] = target
        self.members[member.id] = member
        return member

    def _leave(self, request: ConsumerHeartbeat, partitions: Mapping[str, int], now: float) -> HeartbeatReply:
        member = self.members[request.member_id]
        if request.epoch == LEAVES_FOR_NOW:
            # Its partitions stay assigned to it until its session times out.
            member.epoch, member.last_seen = LEAVES_FOR_NOW, now
        else:
            self.remove([member.id], partitions)
        return HeartbeatReply(member_id=request.member_id, epoch=request.epoch)

    def check_offsets(self, member_id: str, epoch: int) -> ConsumerError | None:
        """Return an error unless the client may commit or read offsets of the group.

        A member may do so in its current epoch, any other client only while the group has no members.
        """
        if epoch < 0 and not self.members:
            return None
        member = self.members.get(member_id)
        if member is None:
            return ConsumerError.UNKNOWN_MEMBER
        return None if epoch == member.epoch else ConsumerError.STALE_EPOCH

    # -- changes ----------------------------------------------------------------------------------------------

    def remove(self, member_ids: list[str], partitions: Mapping[str, int]) -> None:
        """Remove members at once and assign their partitions to the others."""
        for member_id in member_ids:
            del self.members[member_id]
            self.target.pop(member_id, None)
        self.assign(partitions, force=True)

    def overdue(self, now: float, session_s: float) -> list[str]:
        """Return the members whose session timed out, or that did not revoke partitions in time."""
        return [
            m.id
            for m in self.members.values()
            if m.last_seen + session_s <= now or (m.revoking and m.revoke_deadline <= now)
        ]

    def assign(self, partitions: Mapping[str, int], *, force: bool = False) -> None:
        """Compute a new target if topics were created, deleted or extended, or if `force` is set."""
        subscribed = {m.id: m.subscription.topics_of(partitions) for m in self.members.values()}
        sizes = {topic: partitions[topic] for topics in subscribed.values() for topic in topics}
        if sizes == self._sizes and not force:
            return
        self._sizes = sizes
        self.epoch += 1
        self.target = ASSIGNORS[self.assignor](subscribed, sizes, self.target)

    def _reconcile(self, member: ConsumerMember, owned: Assignment | None, now: float) -> None:
        """Move a member one step towards its target."""
        if member.revoking:
            if owned is None or owned & member.revoking:
                return
            member.revoking = NOTHING
        target = self.target[member.id]
        lost = member.assigned - target
        if lost:
            member.assigned, member.revoking = member.assigned & target, lost
            member.revoke_deadline = now + member.rebalance_timeout_s
            return
        others = [m for m in self.members.values() if m is not member]
        owned_by_others = frozenset().union(*(m.assigned | m.revoking for m in others))
        member.assigned |= target - owned_by_others
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch


def _update(member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
    """Apply the changes in a heartbeat; return whether the target has to be computed again."""
    before = (member.subscription, member.assignor)
    if request.rebalance_timeout_s is not None:
        member.rebalance_timeout_s = request.rebalance_timeout_s
    member.rack = request.rack or member.rack
    member.assignor = request.assignor or member.assignor
    if request.topics is not None or request.pattern is not None:
        member.subscription = member.subscription.updated(request.topics, request.pattern)
    return before != (member.subscription, member.assignor)


class ConsumerGroups:
    """All groups of the new protocol; `sizes` returns the number of partitions of every topic."""

    def __init__(self, sizes: Callable[[], Mapping[str, int]]) -> None:
        self._sizes = sizes
        self._groups: dict[str, ConsumerGroup] = {}

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self._groups.get(group_id)

    def heartbeat(self, group_id: str, request: ConsumerHeartbeat, now: float) -> HeartbeatReply | ConsumerError:
        """Handle a member's heartbeat; the first one creates the group."""
        group = self._groups.get(group_id) or ConsumerGroup(id=group_id)
        reply = group.heartbeat(request, self._sizes(), now, members_max=MEMBERS_MAX)
        if not isinstance(reply, ConsumerError):
            self._groups[group_id] = group
        return reply

    def delete(self, group_id: str) -> None:
        self._groups.pop(group_id, None)

    def expire(self, now: float, session_s: Callable[[str], float]) -> None:
        """Remove members whose session timed out, or that did not revoke partitions in time."""
        for group in self._groups.values():
            overdue = group.overdue(now, session_s(group.id))
            if overdue:
                group.remove(overdue, self._sizes())
