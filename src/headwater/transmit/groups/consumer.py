"""Consumer groups of the new protocol (KIP-848): the broker assigns, members follow at their own pace.

The group has an epoch, which grows when members, their subscriptions or the topics change, and with it a target:
who is to have which partition. A member moves to it by its heartbeats: first it gives up what it is to lose, and
says so; then it gets the new epoch, and each new partition as soon as its former owner has given it up.

No clock and no IO; every call is given the time, and answered at once. Not thread-safe.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from headwater.record import TopicPartition
from headwater.transmit.groups.assignors import ASSIGNORS, UNIFORM
from headwater.transmit.groups.subscriptions import InvalidPattern, Subscription

JOINS, LEAVES, LEAVES_FOR_NOW = 0, -1, -2
MEMBERS_MAX = 1000

Assignment = frozenset[TopicPartition]
NOTHING: Assignment = frozenset()


class ConsumerError(Enum):
    """Why a member's request is refused; the handlers translate to Kafka's numbers."""

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
    """What a member says; what is None has not changed since it last said it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerReply:
    """What it is told; the assignment only if it is news."""

    member_id: str
    epoch: int
    assignment: Assignment | None = None


@dataclass(slots=True, kw_only=True)
class ConsumerMember:
    """A member: `has` is what it may read, `gives_up` what it is still to let go of."""

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
    has: Assignment = NOTHING
    gives_up: Assignment = NOTHING
    gives_up_until: float = 0.0
    told: Assignment | None = None

    @property
    def is_away(self) -> bool:
        """A static member that has said it will be back."""
        return self.epoch == LEAVES_FOR_NOW


@dataclass(slots=True, kw_only=True)
class ConsumerGroup:
    """One group; `partitions` in the calls below are those of every topic there is."""

    id: str
    epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target: dict[str, Assignment] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)

    @property
    def assignor(self) -> str:
        """What most members ask for."""
        asked = Counter(member.assignor for member in self.members.values() if member.assignor)
        return asked.most_common(1)[0][0] if asked else UNIFORM

    @property
    def state(self) -> str:
        """Named as Kafka's admin tools show it."""
        if not self.members:
            return "Empty"
        settled = all(m.epoch == self.epoch and m.has == self.target.get(m.id) for m in self.members.values())
        return "Stable" if settled else "Reconciling"

    # -- requests ---------------------------------------------------------------------------------------------

    def heartbeat(
        self, request: ConsumerHeartbeat, partitions: Mapping[str, int], now: float, *, members_max: int
    ) -> ConsumerReply | ConsumerError:
        """Take a member in, keep it in, or let it go."""
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
        # Who says everything anew wants to hear everything anew.
        news = member.has != member.told or request.epoch == JOINS or request.topics is not None
        member.told = member.has
        return ConsumerReply(member_id=member.id, epoch=member.epoch, assignment=member.has if news else None)

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
        # A member whose answer was lost comes with its previous epoch once more.
        lost_answer = request.epoch == member.previous_epoch and (request.owned or NOTHING) <= member.has
        return None if request.epoch == member.epoch or lost_answer else ConsumerError.FENCED_EPOCH

    def _by_instance(self, instance_id: str | None) -> ConsumerMember | None:
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def _join(self, request: ConsumerHeartbeat, now: float) -> ConsumerMember:
        """A new member, or one that begins again; a static one takes the place it had."""
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

    def _leave(self, request: ConsumerHeartbeat, partitions: Mapping[str, int], now: float) -> ConsumerReply:
        member = self.members[request.member_id]
        if request.epoch == LEAVES_FOR_NOW:
            # Its partitions wait for it, until its session is over.
            member.epoch, member.last_seen = LEAVES_FOR_NOW, now
        else:
            self.remove([member.id], partitions)
        return ConsumerReply(member_id=request.member_id, epoch=request.epoch)

    def check_offsets(self, member_id: str, epoch: int) -> ConsumerError | None:
        """Whether offsets may be committed or read: by a member in its epoch, or from outside while none is in."""
        if epoch < 0 and not self.members:
            return None
        member = self.members.get(member_id)
        if member is None:
            return ConsumerError.UNKNOWN_MEMBER
        return None if epoch == member.epoch else ConsumerError.STALE_EPOCH

    # -- changes ----------------------------------------------------------------------------------------------

    def remove(self, member_ids: list[str], partitions: Mapping[str, int]) -> None:
        """Take members out at once; the others get what they had."""
        for member_id in member_ids:
            del self.members[member_id]
            self.target.pop(member_id, None)
        self.assign(partitions, force=True)

    def overdue(self, now: float, session_s: float) -> list[str]:
        """Members that fell silent, or do not let go of what they are to lose."""
        return [
            m.id
            for m in self.members.values()
            if m.last_seen + session_s <= now or (m.gives_up and m.gives_up_until <= now)
        ]

    def assign(self, partitions: Mapping[str, int], *, force: bool = False) -> None:
        """Set a new target, if topics have come, gone or grown, or it must be for another reason."""
        wanted = {m.id: m.subscription.topics_of(partitions) for m in self.members.values()}
        there = {topic: partitions[topic] for topics in wanted.values() for topic in topics}
        if there == self._seen and not force:
            return
        self._seen = there
        self.epoch += 1
        self.target = ASSIGNORS[self.assignor](wanted, there, self.target)

    def _reconcile(self, member: ConsumerMember, owned: Assignment | None, now: float) -> None:
        """Bring a member one step nearer to the target."""
        if member.gives_up:
            if owned is None or owned & member.gives_up:
                return
            member.gives_up = NOTHING
        target = self.target[member.id]
        loses = member.has - target
        if loses:
            member.has, member.gives_up = member.has & target, loses
            member.gives_up_until = now + member.rebalance_timeout_s
            return
        others = [m for m in self.members.values() if m is not member]
        taken = frozenset().union(*(m.has | m.gives_up for m in others))
        member.has |= target - taken
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch


def _update(member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
    """Note what a member says anew; whether the target must follow."""
    before = (member.subscription, member.assignor)
    if request.rebalance_timeout_s is not None:
        member.rebalance_timeout_s = request.rebalance_timeout_s
    member.rack = request.rack or member.rack
    member.assignor = request.assignor or member.assignor
    if request.topics is not None or request.pattern is not None:
        member.subscription = member.subscription.updated(request.topics, request.pattern)
    return before != (member.subscription, member.assignor)


class ConsumerGroups:
    """All groups of the new protocol; `sizes` tells the partitions of every topic there is."""

    def __init__(self, sizes: Callable[[], Mapping[str, int]]) -> None:
        self._sizes = sizes
        self._groups: dict[str, ConsumerGroup] = {}

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self._groups.get(group_id)

    def heartbeat(self, group_id: str, request: ConsumerHeartbeat, now: float) -> ConsumerReply | ConsumerError:
        """Hear a member out; a group begins with its first member."""
        group = self._groups.get(group_id) or ConsumerGroup(id=group_id)
        reply = group.heartbeat(request, self._sizes(), now, members_max=MEMBERS_MAX)
        if not isinstance(reply, ConsumerError):
            self._groups[group_id] = group
        return reply

    def delete(self, group_id: str) -> None:
        self._groups.pop(group_id, None)

    def expire(self, now: float, session_s: Callable[[str], float]) -> None:
        """Take out members that fell silent or hold on to what they were to give up."""
        for group in self._groups.values():
            overdue = group.overdue(now, session_s(group.id))
            if overdue:
                group.remove(overdue, self._sizes())
