"""The new consumer protocol without a broker: epochs, revoking before assigning, fencing."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headwater.record import TopicPartition
from headwater.transmit.groups.assignors import assign_range, assign_uniform
from headwater.transmit.groups.consumer import (
    JOINS,
    LEAVES,
    LEAVES_FOR_NOW,
    ConsumerError,
    ConsumerGroup,
    ConsumerHeartbeat,
)
from headwater.transmit.groups.heartbeats import NOTHING, HeartbeatReply

TOPICS = {"orders": 4}


def tps(*numbers: int, topic: str = "orders") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, n) for n in numbers)


def beat(group: ConsumerGroup, member: str, epoch: int, now: float = 0.0, **fields: Any) -> Any:
    if epoch == JOINS:
        fields = {"topics": frozenset({"orders"}), "owned": NOTHING, "rebalance_timeout_s": 5.0, **fields}
    partitions = fields.pop("partitions", TOPICS)
    request = ConsumerHeartbeat(member_id=member, epoch=epoch, **fields)
    return group.heartbeat(request, partitions, now, members_max=5)


def joined(*members: str) -> ConsumerGroup:
    """Return a group that is stable with these members."""
    group = ConsumerGroup(id="g")
    for member in members:
        beat(group, member, JOINS)
    for _ in range(3):
        for member in members:
            known = group.members[member]
            beat(group, member, known.epoch, owned=known.assigned)
    assert group.state == "Stable"
    return group


def test_a_partition_is_revoked_before_it_is_assigned_to_another_member() -> None:
    group = joined("a")
    assert beat(group, "b", JOINS).assignment == NOTHING
    reply = beat(group, "a", 1)
    assert (reply.epoch, len(reply.assignment)) == (1, 2)
    lost = tps(0, 1, 2, 3) - reply.assignment
    assert beat(group, "b", 2).assignment is None
    assert beat(group, "a", 1, owned=tps(0, 1, 2, 3)).epoch == 1
    assert beat(group, "a", 1, owned=reply.assignment).epoch == 2
    assert beat(group, "b", 2).assignment == lost
    assert group.state == "Stable"


def test_a_member_of_another_epoch_is_fenced() -> None:
    group = joined("a")
    assert beat(group, "a", 9) is ConsumerError.FENCED_EPOCH
    assert beat(group, "unknown", 1) is ConsumerError.UNKNOWN_MEMBER
    assert beat(group, "unknown", LEAVES) is ConsumerError.UNKNOWN_MEMBER
    assert beat(group, "b", JOINS, assignor="sticky") is ConsumerError.UNSUPPORTED_ASSIGNOR
    assert beat(group, "b", JOINS, topics=None, pattern="(") is ConsumerError.INVALID_REGEX
    assert beat(group, "b", JOINS, topics=None) is ConsumerError.INVALID_REQUEST
    assert beat(group, "a", LEAVES_FOR_NOW) is ConsumerError.INVALID_REQUEST


def test_a_member_whose_reply_was_lost_may_retry() -> None:
    group = joined("a")
    grown = {"orders": 6}
    assert beat(group, "a", 1, partitions=grown).epoch == 2
    assert beat(group, "a", 1, owned=tps(0), partitions=grown).epoch == 2
    assert beat(group, "a", 1, owned=tps(9), partitions=grown) is ConsumerError.FENCED_EPOCH


def test_a_full_consumer_group_rejects_new_members() -> None:
    group = joined("a", "b", "c", "d", "e")
    assert beat(group, "f", JOINS) is ConsumerError.GROUP_FULL


def test_members_that_time_out_or_do_not_revoke_are_overdue() -> None:
    group = joined("a", "b")
    assert group.overdue(9.9, session_s=10) == []
    assert group.overdue(10, session_s=10) == ["a", "b"]
    beat(group, "c", JOINS, now=20)
    beat(group, "a", group.members["a"].epoch, now=25)
    beat(group, "b", group.members["b"].epoch, now=20)
    assert group.members["b"].revoking
    assert group.overdue(25, session_s=100) == ["b"]
    group.remove(["b"], TOPICS)
    assert set().union(*group.target.values()) == tps(0, 1, 2, 3)


def test_a_static_member_keeps_its_assignment() -> None:
    group = ConsumerGroup(id="g")
    beat(group, "a", JOINS, instance_id="one")
    assert beat(group, "b", JOINS, instance_id="one") is ConsumerError.UNRELEASED_INSTANCE
    epoch = group.epoch
    beat(group, "a", LEAVES_FOR_NOW, instance_id="one")
    reply = beat(group, "b", JOINS, instance_id="one")
    assert (reply.epoch, reply.assignment) == (epoch, tps(0, 1, 2, 3))
    assert beat(group, "a", epoch, instance_id="one") is ConsumerError.FENCED_INSTANCE


def test_who_may_commit() -> None:
    group = joined("a")
    assert group.check_offsets("a", 1) is None
    assert group.check_offsets("a", 0) is ConsumerError.STALE_EPOCH
    assert group.check_offsets("b", 1) is ConsumerError.UNKNOWN_MEMBER
    assert group.check_offsets("", -1) is ConsumerError.UNKNOWN_MEMBER
    group.remove(["a"], TOPICS)
    assert group.check_offsets("", -1) is None


def test_range_splits_each_topic_alike() -> None:
    both = frozenset({"orders", "people"})
    assigned = assign_range({"a": both, "b": both}, {"orders": 3, "people": 3}, {})
    assert assigned["a"] == tps(0, 1) | tps(0, 1, topic="people")
    assert assigned["b"] == tps(2) | tps(2, topic="people")


def subscriptions(names: str) -> st.SearchStrategy[dict[str, frozenset[str]]]:
    return st.dictionaries(st.sampled_from(names), st.frozensets(st.sampled_from("xyz")), min_size=1)


class Assigning(RuleBasedStateMachine):
    """Members join, leave and change subscriptions; the target is balanced and moves as little as possible."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, frozenset[TopicPartition]] = {}

    @rule(members=subscriptions("abcd"), sizes=st.fixed_dictionaries({t: st.integers(1, 7) for t in "xyz"}))
    def assign(self, members: dict[str, frozenset[str]], sizes: dict[str, int]) -> None:
        wanted = {TopicPartition(t, n) for ts in members.values() for t in ts for n in range(sizes[t])}
        for assignor in (assign_range, assign_uniform):
            given = assignor(members, {t: sizes[t] for ts in members.values() for t in ts}, self.before)
            everything = [tp for some in given.values() for tp in some]
            assert len(everything) == len(wanted)
            assert set(everything) == wanted
            assert all(tp.topic in members[m] for m, some in given.items() for tp in some)
        if len(set(members.values())) == 1:
            loads = sorted(map(len, given.values()))
            assert loads[-1] - loads[0] <= 1
        self.before = given
        again = assign_uniform(members, {t: sizes[t] for ts in members.values() for t in ts}, given)
        assert again == given


class Reconciling(RuleBasedStateMachine):
    """Members send heartbeats in any order, some slowly; no partition is ever read by two members."""

    def __init__(self) -> None:
        super().__init__()
        self.group = ConsumerGroup(id="g")
        self.owned: dict[str, frozenset[TopicPartition]] = {}
        self.epochs: dict[str, int] = {}
        self.sizes = dict(TOPICS)
        self.next = 0

    @initialize()
    def first(self) -> None:
        self.join()

    @precondition(lambda self: len(self.owned) < 5)
    @rule()
    def join(self) -> None:
        name = f"m{self.next}"
        self.next += 1
        self.owned[name] = NOTHING
        self.take(name, beat(self.group, name, JOINS, partitions=self.sizes))

    @precondition(lambda self: self.owned)
    @rule(data=st.data(), reports=st.booleans())
    def heartbeat(self, data: st.DataObject, reports: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.owned)))
        fields = {"owned": self.owned[name]} if reports else {}
        self.take(name, beat(self.group, name, self.epochs[name], partitions=self.sizes, **fields))

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.owned)))
        del self.owned[name], self.epochs[name]
        assert isinstance(beat(self.group, name, LEAVES, partitions=self.sizes), HeartbeatReply)

    @rule()
    def grow(self) -> None:
        self.sizes["orders"] = min(self.sizes["orders"] + 1, 9)

    def take(self, name: str, reply: Any) -> None:
        assert isinstance(reply, HeartbeatReply)
        assert reply.epoch >= self.epochs.get(name, 0)
        self.epochs[name] = reply.epoch
        if reply.assignment is not None:
            self.owned[name] = reply.assignment

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        owned = [tp for some in self.owned.values() for tp in some]
        assert len(owned) == len(set(owned))

    def teardown(self) -> None:
        """With heartbeats alone the group becomes stable, and all partitions are assigned."""
        for _ in range(4):
            for name in self.owned:
                fields = {"owned": self.owned[name], "partitions": self.sizes}
                self.take(name, beat(self.group, name, self.epochs[name], **fields))
        if self.owned:
            assert self.group.state == "Stable"
            assert set().union(*self.owned.values()) == tps(*range(self.sizes["orders"]))


for machine in (Assigning, Reconciling):
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestAssigning = Assigning.TestCase
TestReconciling = Reconciling.TestCase
