"""Classic consumer groups, step by step: the time is passed to every call, and replies are collected."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.transmit.groups.classic import MEMBERS_MAX, ClassicGroups
from headwater.transmit.groups.classic_rounds import GroupError, GroupState, JoinReply, JoinRequest, SyncReply

SESSION_S, REBALANCE_S = 10.0, 60.0
RANGE, ROUND_ROBIN, STICKY = (("range", b"t"), ("roundrobin", b"t"), ("sticky", b"t"))


def request(member_id: str = "", **changes: object) -> JoinRequest:
    first = JoinRequest(
        member_id=member_id,
        instance_id=None,
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout_s=SESSION_S,
        rebalance_timeout_s=REBALANCE_S,
        protocol_type="consumer",
        protocols=(RANGE,),
        knows_member_id_required=False,
    )
    return replace(first, **changes)  # type: ignore[arg-type]


class World:
    """One group, and all its replies."""

    def __init__(self, initial_delay_s: float = 0.0) -> None:
        self.groups = ClassicGroups(initial_delay_s)
        self.now = 0.0

    @property
    def state(self) -> GroupState:
        group = self.groups.get("g")
        assert group is not None
        return group.state

    def join(self, member_id: str = "", **changes: object) -> list[JoinReply]:
        replies: list[JoinReply] = []
        self.groups.join("g", request(member_id, **changes), replies.append, self.now)
        return replies

    def sync(
        self, joined: JoinReply, assignments: dict[str, bytes] | None = None, **changes: object
    ) -> list[SyncReply]:
        replies: list[SyncReply] = []
        self.groups.sync(
            "g", joined.member_id, joined.generation, assignments or {}, replies.append, self.now, **changes
        )  # type: ignore[arg-type]
        return replies

    def heartbeat(self, joined: JoinReply, **changes: object) -> GroupError:
        return self.groups.heartbeat("g", joined.member_id, joined.generation, self.now, **changes)  # type: ignore[arg-type]

    def leave(self, member_id: str, instance_id: str | None = None) -> GroupError:
        return self.groups.leave("g", member_id, instance_id, self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.groups.expire(self.now)

    def stable(self, *instance_ids: str | None) -> list[JoinReply]:
        """Add members, one per instance id, until the group is stable; the first is the leader."""
        waiting = [self.join(instance_id=instance_ids[0])]
        first = waiting[0][0].member_id
        waiting += [self.join(instance_id=instance_id) for instance_id in instance_ids[1:]]
        if len(waiting) > 1:
            # The first member rejoins, because the others started a new round.
            waiting[0] = self.join(first, instance_id=instance_ids[0])
        members = [reply for (reply,) in waiting]
        leader = next(m for m in members if m.member_id == m.leader)
        for member in members:
            self.sync(member, {m.member_id: b"for " + m.member_id.encode() for m in members})
        assert leader is members[0]
        assert self.state is GroupState.STABLE
        return members


# -- rounds ---------------------------------------------------------------------------------------------------


def test_the_first_member_becomes_leader_at_once_and_gets_the_members() -> None:
    world = World()
    (joined,) = world.join()
    assert joined.error is GroupError.NONE
    assert joined.leader == joined.member_id
    assert joined.members == ((joined.member_id, None, b"t"),)
    assert (joined.generation, joined.protocol, joined.protocol_type) == (1, "range", "consumer")
    assert world.state is GroupState.COMPLETING


def test_the_first_round_waits_for_the_initial_delay() -> None:
    world = World(initial_delay_s=3.0)
    first = world.join()
    world.wait(2.0)
    second = world.join()
    world.wait(2.0)
    assert (first, second) == ([], [])  # each join restarts the delay
    world.wait(1.0)
    assert first[0].generation == second[0].generation == 1
    assert len(first[0].members) == 2
    third = world.join()
    world.join(second[0].member_id)
    world.join(first[0].member_id)
    assert third[0].generation == 2  # only the first round waits


def test_the_first_round_ends_at_its_deadline() -> None:
    world = World(initial_delay_s=3.0)
    waiting = []
    while world.now < REBALANCE_S:
        waiting.append(world.join())
        world.wait(2.0)
    assert {reply.generation for (reply,) in waiting} == {1}


def test_a_group_that_all_members_leave_in_its_first_round_starts_over() -> None:
    world = World(initial_delay_s=3.0)
    left = world.join()
    group = world.groups.get("g")
    assert group is not None
    world.leave(next(iter(group.members)))
    assert (left[0].error, world.state) == (GroupError.UNKNOWN_MEMBER, GroupState.EMPTY)
    joined = world.join()
    world.wait(2.0)
    assert joined == []
    world.wait(1.0)
    assert joined[0].error is GroupError.NONE


def test_a_second_member_waits_until_the_first_has_rejoined() -> None:
    world = World()
    (first,) = world.join()
    waiting = world.join()
    assert waiting == []
    assert world.heartbeat(first) is GroupError.REBALANCE_IN_PROGRESS
    (first_again,) = world.join(first.member_id)
    (second,) = waiting
    assert first_again.generation == second.generation == 2
    assert second.leader == first.member_id
    assert second.members == ()
    assert {member_id for member_id, _, _ in first_again.members} == {first.member_id, second.member_id}


def test_members_get_the_leaders_assignments() -> None:
    world = World()
    first, second = world.stable(None, None)
    assert world.sync(first)[0].assignment == b"for " + first.member_id.encode()
    assert world.sync(second)[0].assignment == b"for " + second.member_id.encode()
    assert world.heartbeat(second) is GroupError.NONE


def test_a_member_that_syncs_before_the_leader_waits_for_it() -> None:
    world = World()
    (first,) = world.join()
    waiting = world.join()
    (first,) = world.join(first.member_id)
    (second,) = waiting
    synced = world.sync(second)
    assert synced == []
    world.sync(first, {second.member_id: b"all"})
    assert synced == [SyncReply(protocol_type="consumer", protocol="range", assignment=b"all")]


def test_a_member_without_an_assignment_gets_an_empty_one() -> None:
    world = World()
    (joined,) = world.join()
    assert world.sync(joined, {})[0] == SyncReply(protocol_type="consumer", protocol="range", assignment=b"")


def test_a_new_member_interrupts_members_that_wait_for_their_assignment() -> None:
    world = World()
    (first,) = world.join()
    world.join()
    (first,) = world.join(first.member_id)
    second = next(m for m in world.groups.get("g").members if m != first.member_id)
    synced = world.sync(replace(first, member_id=second))
    world.join()
    assert [reply.error for reply in synced] == [GroupError.REBALANCE_IN_PROGRESS]


def test_a_sync_during_a_round_returns_rebalance_in_progress() -> None:
    world = World()
    (first,) = world.join()
    world.join()
    assert world.sync(first)[0].error is GroupError.REBALANCE_IN_PROGRESS


def test_the_next_member_becomes_leader_when_the_leader_leaves() -> None:
    world = World()
    leader, second, third = world.stable(None, None, None)
    assert world.leave(leader.member_id) is GroupError.NONE
    waiting = world.join(third.member_id)
    (second_again,) = world.join(second.member_id)
    assert second_again.leader == waiting[0].leader == second.member_id
    assert {member_id for member_id, _, _ in second_again.members} == {second.member_id, third.member_id}


def test_the_last_member_that_leaves_empties_the_group() -> None:
    world = World()
    (member,) = world.stable(None)
    world.leave(member.member_id)
    assert world.state is GroupState.EMPTY
    assert world.heartbeat(member) is GroupError.UNKNOWN_MEMBER
    (again,) = world.join()
    assert again.generation > member.generation


def test_a_follower_that_joins_again_unchanged_is_answered_at_once() -> None:
    world = World()
    _, follower = world.stable(None, None)
    (again,) = world.join(follower.member_id)
    assert again.generation == follower.generation
    assert world.state is GroupState.STABLE


def test_a_leader_that_joins_again_starts_a_round() -> None:
    world = World()
    leader, follower = world.stable(None, None)
    assert world.join(leader.member_id) == []
    assert world.state is GroupState.PREPARING
    assert world.heartbeat(follower) is GroupError.REBALANCE_IN_PROGRESS


def test_a_follower_that_joins_again_with_other_protocols_starts_a_round() -> None:
    world = World()
    _, follower = world.stable(None, None)
    assert world.join(follower.member_id, protocols=(("range", b"other topics"),)) == []
    assert world.state is GroupState.PREPARING


def test_a_repeated_join_ends_the_previous_one() -> None:
    world = World()
    (first,) = world.join()
    second = world.join(instance_id="i")
    member_id = next(m.id for m in world.groups.get("g").members.values() if m.request.instance_id == "i")
    again = world.join(member_id, instance_id="i")
    assert [reply.error for reply in second] == [GroupError.REBALANCE_IN_PROGRESS]
    world.join(first.member_id)
    assert [reply.error for reply in again] == [GroupError.NONE]


def test_a_repeated_sync_ends_the_previous_one() -> None:
    world = World()
    (first,) = world.join()
    waiting = world.join()
    (first,) = world.join(first.member_id)
    once, again = world.sync(waiting[0]), world.sync(waiting[0])
    assert [reply.error for reply in once] == [GroupError.REBALANCE_IN_PROGRESS]
    world.sync(first, {})
    assert [reply.error for reply in again] == [GroupError.NONE]


# -- protocols ------------------------------------------------------------------------------------------------


def test_the_protocol_that_all_have_and_most_prefer_is_chosen() -> None:
    world = World()
    (first,) = world.join(protocols=(RANGE, ROUND_ROBIN, STICKY))
    world.join(protocols=(STICKY, ROUND_ROBIN))
    world.join(protocols=(STICKY, ROUND_ROBIN, RANGE))
    (first,) = world.join(first.member_id, protocols=(RANGE, ROUND_ROBIN, STICKY))
    assert first.protocol == "sticky"


@pytest.mark.parametrize(
    "changes",
    [
        {"protocols": (STICKY,)},
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocol_type": ""},
    ],
)
def test_a_member_with_inconsistent_protocols_is_rejected(changes: dict[str, object]) -> None:
    world = World()
    world.stable(None)
    (refused,) = world.join(**changes)
    assert refused.error is GroupError.INCONSISTENT_PROTOCOL
    assert world.state is GroupState.STABLE


def test_a_single_member_may_change_its_protocol() -> None:
    world = World()
    (member,) = world.stable(None)
    (again,) = world.join(member.member_id, protocols=(STICKY,))
    assert (again.error, again.protocol) == (GroupError.NONE, "sticky")


# -- ids ------------------------------------------------------------------------------------------------------


def test_a_new_member_gets_an_id_to_rejoin_with() -> None:
    world = World()
    (refused,) = world.join(knows_member_id_required=True)
    assert refused.error is GroupError.MEMBER_ID_REQUIRED
    assert refused.member_id.startswith("client-")
    (joined,) = world.join(refused.member_id, knows_member_id_required=True)
    assert (joined.error, joined.member_id) == (GroupError.NONE, refused.member_id)


def test_an_id_that_is_not_used_in_time_is_unknown() -> None:
    world = World()
    (refused,) = world.join(knows_member_id_required=True)
    world.wait(SESSION_S)
    assert world.join(refused.member_id)[0].error is GroupError.UNKNOWN_MEMBER


def test_an_id_is_unknown_after_leaving_with_it() -> None:
    world = World()
    (refused,) = world.join(knows_member_id_required=True)
    assert world.leave(refused.member_id) is GroupError.NONE
    assert world.join(refused.member_id)[0].error is GroupError.UNKNOWN_MEMBER


def test_an_id_that_was_never_assigned_is_unknown() -> None:
    world = World()
    assert world.join("stranger")[0].error is GroupError.UNKNOWN_MEMBER
    assert world.leave("stranger") is GroupError.UNKNOWN_MEMBER
    assert world.sync(JoinReply(member_id="stranger", generation=1))[0].error is GroupError.UNKNOWN_MEMBER


def test_a_request_of_an_older_generation_is_rejected() -> None:
    world = World()
    (member,) = world.stable(None)
    old = replace(member, generation=member.generation - 1)
    assert world.heartbeat(old) is GroupError.ILLEGAL_GENERATION
    assert world.sync(old)[0].error is GroupError.ILLEGAL_GENERATION


def test_a_full_group_rejects_new_members() -> None:
    world = World()
    for _ in range(MEMBERS_MAX):
        world.join(knows_member_id_required=True)
    assert world.join()[0].error is GroupError.GROUP_FULL
    world.wait(SESSION_S)
    assert world.join()[0].error is GroupError.NONE


# -- timeouts -------------------------------------------------------------------------------------------------


def test_a_member_whose_session_times_out_is_removed() -> None:
    world = World()
    first, second = world.stable(None, None)
    world.wait(SESSION_S - 1)
    assert world.heartbeat(first) is GroupError.NONE
    world.wait(1)
    assert world.heartbeat(second) is GroupError.UNKNOWN_MEMBER
    assert world.heartbeat(first) is GroupError.REBALANCE_IN_PROGRESS
    (alone,) = world.join(first.member_id)
    assert [member_id for member_id, _, _ in alone.members] == [first.member_id]


def test_a_round_continues_without_members_that_do_not_join() -> None:
    world = World()
    (first,) = world.join(session_timeout_s=REBALANCE_S * 2)
    world.sync(first)
    waiting = world.join()
    world.wait(REBALANCE_S - 1)
    assert waiting == []
    world.wait(1)
    (second,) = waiting
    assert second.leader == second.member_id
    assert world.heartbeat(first) is GroupError.UNKNOWN_MEMBER


def test_a_leader_that_never_assigns_is_removed() -> None:
    world = World()
    (first,) = world.join(session_timeout_s=REBALANCE_S * 2)
    waiting = world.join(session_timeout_s=REBALANCE_S * 2)
    (first,) = world.join(first.member_id, session_timeout_s=REBALANCE_S * 2)
    (second,) = waiting
    synced = world.sync(second)
    world.wait(REBALANCE_S)
    assert [reply.error for reply in synced] == [GroupError.REBALANCE_IN_PROGRESS]
    assert world.heartbeat(first) is GroupError.UNKNOWN_MEMBER
    (alone,) = world.join(second.member_id)
    assert alone.leader == second.member_id


def test_a_member_that_waits_for_a_reply_does_not_time_out() -> None:
    world = World()
    (first,) = world.join(session_timeout_s=REBALANCE_S)
    waiting = world.join()
    world.wait(SESSION_S + 1)
    assert waiting == []
    world.join(first.member_id, session_timeout_s=REBALANCE_S)
    assert waiting[0].error is GroupError.NONE


# -- static members -------------------------------------------------------------------------------------------


def test_a_restarted_static_member_causes_no_rebalance() -> None:
    world = World()
    first, second = world.stable("a", "b")
    (back,) = world.join(instance_id="b")
    assert world.state is GroupState.STABLE
    assert back.generation == second.generation
    assert back.member_id != second.member_id
    assert world.sync(back)[0].assignment == b"for " + second.member_id.encode()
    assert world.heartbeat(first) is GroupError.NONE


def test_a_restarted_static_leader_does_not_assign() -> None:
    world = World()
    first, _ = world.stable("a", "b")
    (back,) = world.join(instance_id="a")
    # A leader assigns partitions to the members in its reply, and this one has none.
    assert back.leader == first.member_id != back.member_id
    assert back.members == ()
    # When it rejoins, it is the leader.
    assert world.join(back.member_id, instance_id="a") == []
    assert world.state is GroupState.PREPARING


def test_a_static_member_that_was_replaced_is_fenced() -> None:
    world = World()
    _, old = world.stable("a", "b")
    (back,) = world.join(instance_id="b")
    assert world.join(old.member_id, instance_id="b")[0].error is GroupError.FENCED_INSTANCE
    assert world.heartbeat(old, instance_id="b") is GroupError.FENCED_INSTANCE
    assert world.sync(old, instance_id="b")[0].error is GroupError.FENCED_INSTANCE
    commit = world.groups.check_commit("g", old.member_id, old.generation, world.now, instance_id="b")
    assert commit is GroupError.FENCED_INSTANCE
    assert world.leave(old.member_id, "b") is GroupError.FENCED_INSTANCE
    assert world.heartbeat(back, instance_id="b") is GroupError.NONE


def test_a_static_member_that_is_replaced_while_it_waits_is_fenced() -> None:
    world = World()
    (first,) = world.join(instance_id="a")
    waiting = world.join(instance_id="b")
    back = world.join(instance_id="b")
    assert [reply.error for reply in waiting] == [GroupError.FENCED_INSTANCE]
    world.join(first.member_id, instance_id="a")
    assert [reply.error for reply in back] == [GroupError.NONE]


def test_a_static_member_leaves_by_its_name() -> None:
    world = World()
    _, second = world.stable("a", "b")
    assert world.leave("", "b") is GroupError.NONE
    assert world.heartbeat(second) is GroupError.UNKNOWN_MEMBER
    assert world.leave("", "b") is GroupError.UNKNOWN_MEMBER


def test_a_static_member_may_miss_a_round_until_its_session_ends() -> None:
    world = World()
    first, second = world.stable("a", "b")
    world.wait(SESSION_S - 1)
    world.heartbeat(first)
    world.heartbeat(second)
    newcomer = world.join(rebalance_timeout_s=1.0)
    for _ in range(20):
        world.wait(REBALANCE_S / 20)
    assert newcomer[0].error is GroupError.NONE


# -- commits and deletion -------------------------------------------------------------------------------------


def test_commits_are_accepted_from_members_and_from_other_clients_while_the_group_is_empty() -> None:
    world = World()
    check = world.groups.check_commit
    assert check("g", "", -1, world.now) is GroupError.NONE
    assert check("g", "an id of its own", -1, world.now) is GroupError.NONE
    (joined,) = world.join()
    assert check("g", joined.member_id, 1, world.now) is GroupError.REBALANCE_IN_PROGRESS
    world.sync(joined, {})
    assert check("g", joined.member_id, 1, world.now) is GroupError.NONE
    assert check("g", joined.member_id, 0, world.now) is GroupError.ILLEGAL_GENERATION
    assert check("g", "stranger", 1, world.now) is GroupError.UNKNOWN_MEMBER
    assert check("g", "", -1, world.now) is GroupError.UNKNOWN_MEMBER
    assert check("g", "an id of its own", -1, world.now) is GroupError.UNKNOWN_MEMBER
    world.join()
    assert check("g", joined.member_id, 1, world.now) is GroupError.NONE  # when the next round starts
    assert check("other", "gone", 3, world.now) is GroupError.UNKNOWN_MEMBER


def test_a_commit_counts_as_a_heartbeat() -> None:
    world = World()
    (member,) = world.stable(None)
    world.wait(SESSION_S - 1)
    world.groups.check_commit("g", member.member_id, member.generation, world.now)
    world.wait(SESSION_S - 1)
    assert world.heartbeat(member) is GroupError.NONE


def test_only_an_empty_group_can_be_deleted() -> None:
    world = World()
    (member,) = world.stable(None)
    assert world.groups.delete("g") is GroupError.NON_EMPTY
    world.leave(member.member_id)
    assert world.groups.delete("g") is GroupError.NONE
    assert world.groups.get("g") is None


# -- invariants -----------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "rejoin", "rejoin", "sync", "sync", "heartbeat", "leave", "wait"]),
        st.integers(0, 5),
        st.sampled_from([None, None, "a", "b"]),
        st.sampled_from([(RANGE,), (RANGE, STICKY), (STICKY,)]),
    ),
    max_size=50,
)


@given(STEPS)
@settings(max_examples=200)
def test_every_request_gets_a_reply(
    steps: list[tuple[str, int, str | None, tuple[tuple[str, bytes], ...]]],
) -> None:
    world = World()
    answers: list[list[JoinReply] | list[SyncReply]] = []
    for kind, number, instance_id, protocols in steps:
        group = world.groups.get("g")
        members = list(group.members.values()) if group else []
        member = members[number % len(members)] if members else None
        if kind == "join":
            answers.append(
                world.join(instance_id=instance_id, protocols=protocols, knows_member_id_required=number > 3)
            )
        elif kind == "wait":
            world.wait(number * 4.0)
        elif group is None or member is None:
            continue
        elif kind == "rejoin":
            answers.append(world.join(member.id, instance_id=member.request.instance_id, protocols=protocols))
        elif kind == "sync":
            known = JoinReply(member_id=member.id, generation=group.generation)
            answers.append(world.sync(known, {m.id: m.id.encode() for m in members}))
        elif kind == "heartbeat":
            world.heartbeat(JoinReply(member_id=member.id, generation=group.generation))
        else:
            world.leave(member.id)
        check_invariants(world)
    for _ in range(40):  # all members have stopped; time passes
        world.wait(SESSION_S)
        check_invariants(world)
    assert all(len(replies) == 1 for replies in answers)
    group = world.groups.get("g")
    assert group is None or (group.state, group.members, group.reserved_ids) == (GroupState.EMPTY, {}, {})


def check_invariants(world: World) -> None:
    group = world.groups.get("g")
    if group is None:
        return
    waits = [m for m in group.members.values() if m.join_reply is not None]
    assert (group.state is GroupState.EMPTY) == (not group.members)
    assert group.state is GroupState.PREPARING or not waits
    assert (group.deadline is not None) == (group.state in (GroupState.PREPARING, GroupState.COMPLETING))
    if group.state in (GroupState.COMPLETING, GroupState.STABLE):
        assert group.leader in group.members
        assert all(group.protocol in m.protocol_names for m in group.members.values())
    instances = [m.request.instance_id for m in group.members.values() if m.request.instance_id]
    assert len(instances) == len(set(instances))
