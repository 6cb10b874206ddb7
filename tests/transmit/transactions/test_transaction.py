"""The states of a transaction: transitions and invariants."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.record import TopicPartition
from headwater.transmit.transactions.transaction import (
    EPOCH_MAX,
    ProducerClaim,
    Transaction,
    TransactionError,
    TransactionState,
    add,
    begin_producer,
    check_offsets,
    check_write,
    complete,
    end,
    is_expired,
    time_out,
)

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def begin(
    known: Transaction | None, claim: ProducerClaim | None = None, now_ms: int = 0, new_id: int = 7
) -> object:
    return begin_producer(known, "t", claim or ProducerClaim(), 1000, now_ms, lambda: new_id)


def fresh() -> Transaction:
    found = begin(None)
    assert isinstance(found, Transaction)
    return found


def claim_of(known: Transaction) -> ProducerClaim:
    return ProducerClaim(producer_id=known.producer_id, epoch=known.epoch)


def ongoing() -> Transaction:
    found = add(fresh(), claim_of(fresh()), 0, partitions=[P0], groups=["g"])
    assert isinstance(found, Transaction)
    return found


def test_transactions_go_through_all_states_repeatedly() -> None:
    known = ongoing()
    assert (known.state, known.partitions, known.groups) == (TransactionState.ONGOING, {P0}, {"g"})
    for commit, prepared, completed in (
        (True, TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
        (False, TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
    ):
        known = end(known, claim_of(known), 1, commit=commit)
        assert known.state is prepared
        known = complete(known, 2)
        assert (known.state, known.partitions, known.groups) == (completed, frozenset(), frozenset())
        known = add(known, claim_of(known), 3, partitions=[P1])
        assert (known.state, known.partitions, known.started_ms) == (TransactionState.ONGOING, {P1}, 3)


def test_a_new_producer_fences_the_previous_one() -> None:
    old = fresh()
    new = begin(old)
    assert (new.producer_id, new.epoch, new.state) == (old.producer_id, 1, TransactionState.EMPTY)
    assert add(new, claim_of(old), 0, partitions=[P0]) is TransactionError.FENCED
    assert end(new, claim_of(old), 0, commit=True) is TransactionError.FENCED
    assert check_write(new, claim_of(old), P0) is TransactionError.FENCED


def test_a_new_producer_aborts_the_previous_transaction() -> None:
    known = ongoing()
    aborting = begin(known)
    assert (aborting.state, aborting.epoch) == (TransactionState.PREPARE_ABORT, known.epoch + 1)
    assert begin(aborting) is TransactionError.CONCURRENT
    assert end(aborting, claim_of(known), 0, commit=True) is TransactionError.FENCED
    assert begin(complete(aborting, 1)).epoch == known.epoch + 2


def test_a_new_producer_id_is_assigned_when_epochs_are_used_up() -> None:
    last = replace(fresh(), epoch=EPOCH_MAX)
    assert (begin(last, new_id=8).producer_id, begin(last, new_id=8).epoch) == (8, 0)
    open_ = add(last, claim_of(last), 0, partitions=[P0])
    assert begin(open_).epoch == EPOCH_MAX + 1 < 2**15  # even the last epoch can be fenced


def test_a_retried_init_returns_the_same_result() -> None:
    first = fresh()
    bumped = begin(first, claim_of(first))
    assert bumped.epoch == 1
    assert begin(bumped, claim_of(first)) == bumped
    assert begin(begin(bumped), claim_of(first)) is TransactionError.FENCED
    assert begin(bumped, ProducerClaim(producer_id=99, epoch=0)) is TransactionError.FENCED


@pytest.mark.parametrize("commit", [True, False])
def test_a_retried_end_changes_nothing(commit: bool) -> None:
    known = ongoing()
    decided = end(known, claim_of(known), 0, commit=commit)
    assert end(decided, claim_of(known), 0, commit=commit) is TransactionError.CONCURRENT
    assert end(decided, claim_of(known), 0, commit=not commit) is TransactionError.INVALID_STATE
    done = complete(decided, 1)
    assert end(done, claim_of(known), 2, commit=commit) == done
    assert end(done, claim_of(known), 2, commit=not commit) is TransactionError.INVALID_STATE


def test_ending_without_a_transaction_is_an_invalid_state() -> None:
    known = fresh()
    assert end(known, claim_of(known), 0, commit=True) is TransactionError.INVALID_STATE
    assert end(None, ProducerClaim(), 0, commit=True) is TransactionError.UNKNOWN_PRODUCER


def test_a_write_needs_its_partition_in_an_open_transaction() -> None:
    known = ongoing()
    assert check_write(known, claim_of(known), P0) is None
    assert check_write(known, claim_of(known), P1) is TransactionError.INVALID_STATE
    assert check_write(fresh(), claim_of(fresh()), P0) is TransactionError.INVALID_STATE
    assert check_write(known, ProducerClaim(producer_id=1, epoch=0), P0) is TransactionError.UNKNOWN_PRODUCER
    assert check_write(None, claim_of(known), P0) is TransactionError.UNKNOWN_PRODUCER


def test_offsets_need_their_group_in_an_open_transaction() -> None:
    known = ongoing()
    assert check_offsets(known, claim_of(known), "g") is None
    assert check_offsets(known, claim_of(known), "other") is TransactionError.INVALID_STATE
    decided = end(known, claim_of(known), 0, commit=True)
    assert check_offsets(decided, claim_of(known), "g") is TransactionError.CONCURRENT


def test_a_transaction_that_exceeds_its_timeout_is_aborted_and_fenced() -> None:
    known = ongoing()
    assert time_out(known, 999) is None
    late = time_out(known, 1000)
    assert late is not None
    assert (late.state, late.epoch) == (TransactionState.PREPARE_ABORT, known.epoch + 1)
    assert time_out(complete(late, 1001), 10_000) is None


def test_an_unused_id_expires() -> None:
    assert is_expired(fresh(), 100, after_ms=100)
    assert not is_expired(fresh(), 99, after_ms=100)
    assert not is_expired(ongoing(), 10_000, after_ms=100)


STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "add", "commit", "abort", "finish", "late"]), st.integers(0, 3))
)
LEGAL = {
    TransactionState.EMPTY: {TransactionState.EMPTY, TransactionState.ONGOING},
    TransactionState.ONGOING: {
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
    },
    TransactionState.PREPARE_COMMIT: {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT},
    TransactionState.PREPARE_ABORT: {TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT},
    TransactionState.COMPLETE_COMMIT: {
        TransactionState.COMPLETE_COMMIT,
        TransactionState.EMPTY,
        TransactionState.ONGOING,
    },
    TransactionState.COMPLETE_ABORT: {
        TransactionState.COMPLETE_ABORT,
        TransactionState.EMPTY,
        TransactionState.ONGOING,
    },
}


@given(STEPS)
def test_decisions_are_final_and_only_the_last_producer_can_act(steps: list[tuple[str, int]]) -> None:
    known = fresh()
    claims = [claim_of(known)]
    for now_ms, (step, age) in enumerate(steps):
        claim = claims[-1 - age % len(claims)]
        before = known
        outcome: object = known
        if step == "begin":
            outcome = begin(known, now_ms=now_ms)
            if isinstance(outcome, Transaction) and not outcome.is_decided:
                claims.append(claim_of(outcome))
        elif step == "add":
            outcome = add(known, claim, now_ms, partitions=[P0])
        elif step in ("commit", "abort"):
            outcome = end(known, claim, now_ms, commit=step == "commit")
        elif step == "finish" and known.is_decided:
            outcome = complete(known, now_ms)
        elif step == "late":
            outcome = time_out(known, known.started_ms + known.timeout_ms) or known
        if isinstance(outcome, Transaction):
            known = outcome
        assert known.state in LEGAL[before.state]
        assert known.epoch >= before.epoch
        if step in ("add", "commit", "abort") and claim != claim_of(before):
            assert known == before
