"""A share partition: records are acquired, released, acknowledged or given up."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headwater.transmit.groups.share.share_partition import (
    Ack,
    Acknowledgement,
    RecordState,
    ShareError,
    ShareLimits,
    SharePartition,
    Span,
    trimmed,
)

MEMBERS = st.sampled_from("abc")
LIMITS = ShareLimits(lock_s=10, deliveries_max=3, in_flight_max=20)


def acquire(partition: SharePartition, member: str, first: int, last: int, **kw: Any) -> list[tuple[int, ...]]:
    arguments = {"records_max": 100, "now": 0.0, "limits": LIMITS, **kw}
    found = partition.acquire(member, [(first, last)], **arguments)
    return [(span.first, span.last, span.count) for span in found]


def say(partition: SharePartition, member: str, first: int, last: int, *kinds: Ack) -> ShareError | None:
    return partition.acknowledge(member, [Acknowledgement(first=first, last=last, kinds=kinds)], LIMITS, now=0.0)


def test_accepted_records_move_the_start() -> None:
    partition = SharePartition(5)
    assert acquire(partition, "a", 5, 9) == [(5, 9, 1)]
    assert say(partition, "a", 5, 6, Ack.ACCEPT) is None
    assert (partition.start, partition.end) == (7, 10)
    assert say(partition, "a", 8, 9, Ack.ACCEPT) is None
    assert partition.start == 7
    assert say(partition, "a", 7, 7, Ack.ACCEPT) is None
    assert (partition.start, partition.end) == (10, 10)


def test_a_record_is_acquired_by_one_member_at_a_time() -> None:
    partition = SharePartition(0)
    acquire(partition, "a", 0, 4)
    assert acquire(partition, "b", 0, 6) == [(5, 6, 1)]
    assert say(partition, "b", 0, 0, Ack.ACCEPT) is ShareError.INVALID_STATE


def test_released_records_are_delivered_again_with_their_count() -> None:
    partition = SharePartition(0)
    acquire(partition, "a", 0, 4)
    assert say(partition, "a", 0, 4, Ack.ACCEPT, Ack.RELEASE, Ack.ACCEPT, Ack.RELEASE, Ack.GAP) is None
    assert partition.next_offset(LIMITS) == 1
    assert acquire(partition, "b", 1, 5) == [(1, 1, 2), (3, 3, 2), (5, 5, 1)]


def test_an_expired_lock_counts_as_a_delivery() -> None:
    partition = SharePartition(0)
    for count in range(1, LIMITS.deliveries_max + 1):
        assert acquire(partition, "a", 0, 1, now=count * 100.0) == [(0, 1, count)]
        assert not partition.expire(LIMITS, now=count * 100.0 + 9.9)
        assert partition.expire(LIMITS, now=count * 100.0 + 10)
    (letter,) = partition.take_given_up()
    assert (letter.first, letter.last, letter.count, letter.state) == (0, 1, 3, RecordState.ARCHIVING)
    assert partition.start == 0
    partition.archive(letter)
    assert partition.start == 2


def test_renewing_extends_a_lock() -> None:
    partition = SharePartition(0)
    acquire(partition, "a", 0, 1)
    partition.acknowledge("a", [Acknowledgement(first=0, last=0, kinds=[Ack.RENEW])], LIMITS, now=9.0)
    partition.expire(LIMITS, now=10.0)
    assert acquire(partition, "b", 0, 1, now=10.0) == [(1, 1, 2)]


def test_a_partly_invalid_acknowledgement_changes_nothing() -> None:
    partition = SharePartition(0)
    acquire(partition, "a", 0, 3)
    acks = [Acknowledgement(first=0, last=1, kinds=[1]), Acknowledgement(first=3, last=4, kinds=[1])]
    assert partition.acknowledge("a", acks, LIMITS, now=0) is ShareError.INVALID_STATE
    assert partition.start == 0
    assert say(partition, "a", 0, 3, Ack.ACCEPT, Ack.ACCEPT) is ShareError.INVALID_REQUEST
    assert say(partition, "a", 3, 0, Ack.ACCEPT) is ShareError.INVALID_REQUEST


def test_the_number_of_records_in_flight_is_limited() -> None:
    partition = SharePartition(0)
    assert acquire(partition, "a", 0, 99) == [(0, 19, 1)]
    assert partition.next_offset(LIMITS) is None
    say(partition, "a", 0, 4, Ack.ACCEPT)
    assert partition.next_offset(LIMITS) == 20
    assert acquire(partition, "a", 0, 99) == [(20, 24, 1)]


def test_whole_batches_are_acquired_unless_the_number_is_exact() -> None:
    batches = [(0, 4), (5, 9)]
    got = SharePartition(0).acquire("a", batches, records_max=3, limits=LIMITS, now=0)
    assert [(s.first, s.last) for s in got] == [(0, 4)]
    got = SharePartition(0).acquire("a", batches, records_max=7, limits=LIMITS, now=0, exact=True)
    assert [(s.first, s.last) for s in got] == [(0, 6)]


def test_offsets_that_the_log_skips_are_archived() -> None:
    partition = SharePartition(0)
    assert acquire(partition, "a", 3, 4) == [(3, 4, 1)]
    assert partition.start == 3


def test_offsets_without_readable_records_are_skipped() -> None:
    partition = SharePartition(0)
    partition.skip(0, 2)
    assert (partition.start, partition.end) == (3, 3)
    acquire(partition, "a", 3, 8)
    say(partition, "a", 5, 6, Ack.RELEASE)
    partition.skip(4, 10)  # acquired records stay with their member
    assert partition.next_offset(LIMITS) == 11
    assert say(partition, "a", 3, 4, Ack.ACCEPT) is None
    assert (partition.start, say(partition, "a", 7, 8, Ack.ACCEPT)) == (7, None)
    assert (partition.start, partition.end) == (11, 11)


def test_records_deleted_from_the_log_are_discarded() -> None:
    partition = SharePartition(0)
    acquire(partition, "a", 0, 9)
    assert partition.forget_before(5)
    assert partition.start == 5
    assert say(partition, "a", 0, 6, Ack.ACCEPT) is None
    assert partition.start == 7


def test_stored_spans_release_acquired_records_and_omit_finished_ones() -> None:
    partition = SharePartition(0)
    acquire(partition, "a", 0, 9)
    say(partition, "a", 2, 5, Ack.ACCEPT, Ack.REJECT, Ack.RELEASE, Ack.ACCEPT)
    again = SharePartition(partition.start, partition.spans())
    assert acquire(again, "b", 0, 9) == [(0, 1, 2), (4, 4, 2), (6, 9, 2)]
    assert [letter.first for letter in again.take_given_up()] == [3]


def test_states_beyond_the_end_of_a_shortened_log_are_discarded() -> None:
    partition = SharePartition(2)
    acquire(partition, "a", 2, 9)
    say(partition, "a", 5, 9, Ack.ACCEPT)
    start, spans = trimmed(partition.start, partition.spans(), end=4)
    again = SharePartition(start, spans, LIMITS)
    assert (again.start, again.end) == (2, 4)
    assert trimmed(7, [], end=4) == (4, [])


class Sharing(RuleBasedStateMachine):
    """Members, time and restarts in any order, against a simple model of each record."""

    RECORDS = 60

    def __init__(self) -> None:
        super().__init__()
        self.partition = SharePartition(0)
        self.now = 0.0
        self.holder: dict[int, tuple[str, float]] = {}
        self.count = dict.fromkeys(range(self.RECORDS), 0)
        self.done: set[int] = set()
        self.dying: list[Span] = []

    @rule(
        member=st.sampled_from("abc"), size=st.integers(1, 15), exact=st.booleans(), records_max=st.integers(1, 9)
    )
    def fetch(self, member: str, size: int, exact: bool, records_max: int) -> None:
        at = self.partition.next_offset(LIMITS)
        if at is None or at >= self.RECORDS:
            return
        batches = [(n, min(n + size, self.RECORDS) - 1) for n in range(at - at % size, self.RECORDS, size)]
        found = self.partition.acquire(
            member, batches, records_max=records_max, limits=LIMITS, now=self.now, exact=exact
        )
        offsets = [n for span in found for n in range(span.first, span.last + 1)]
        assert offsets
        assert not exact or len(offsets) <= records_max
        for span in found:
            for n in range(span.first, span.last + 1):
                assert n not in self.holder
                assert n not in self.done
                self.count[n] += 1
                assert span.count == self.count[n] <= LIMITS.deliveries_max
                self.holder[n] = (member, self.now + LIMITS.lock_s)

    @precondition(lambda self: self.holder)
    @rule(data=st.data(), length=st.integers(1, 8), kind=st.sampled_from(list(Ack)))
    def acknowledge(self, data: st.DataObject, length: int, kind: Ack) -> None:
        first = data.draw(st.sampled_from(sorted(self.holder)))
        member = self.holder[first][0]
        last = first
        while last + 1 < first + length and self.holder.get(last + 1, ("", 0))[0] == member:
            last += 1
        acks = [Acknowledgement(first=first, last=last, kinds=[kind])]
        assert self.partition.acknowledge(member, acks, LIMITS, self.now) is None
        for n in range(first, last + 1):
            if kind is Ack.RENEW:
                self.holder[n] = (member, self.now + LIMITS.lock_s)
                continue
            del self.holder[n]
            if kind in (Ack.ACCEPT, Ack.GAP):
                self.done.add(n)
        self.collect()

    @rule(first=st.integers(0, RECORDS - 1), member=st.sampled_from("abc"))
    def acknowledge_without_acquiring(self, first: int, member: str) -> None:
        if self.holder.get(first, ("", 0))[0] != member:
            acks = [Acknowledgement(first=first, last=first, kinds=[Ack.ACCEPT])]
            assert self.partition.acknowledge(member, acks, LIMITS, self.now) is ShareError.INVALID_STATE

    @rule(seconds=st.floats(0, 12))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.partition.expire(LIMITS, self.now)
        self.holder = {n: held for n, held in self.holder.items() if held[1] > self.now}
        self.collect()

    @rule(member=st.sampled_from("abc"), is_clean=st.booleans())
    def leave(self, member: str, is_clean: bool) -> None:
        self.partition.release(member, LIMITS, is_clean=is_clean)
        for n, held in self.holder.items():
            if is_clean and held[0] == member:
                self.count[n] -= 1
        self.holder = {n: held for n, held in self.holder.items() if held[0] != member}
        self.collect()

    @rule()
    def write_dead_letters(self) -> None:
        for letter in self.dying:
            self.partition.archive(letter)
        self.dying = []

    @rule()
    def restart(self) -> None:
        kept = self.partition.spans()
        self.partition = SharePartition(self.partition.start, kept, LIMITS)
        # A delivery in progress still counts.
        self.holder, self.dying = {}, []
        self.collect()

    def collect(self) -> None:
        for letter in self.partition.take_given_up():
            self.dying.append(letter)
            self.done.update(range(letter.first, letter.last + 1))

    @invariant()
    def every_record_is_accounted_for(self) -> None:
        spans = self.partition._spans
        assert [s.first for s in spans] == [self.partition.start, *(s.last + 1 for s in spans)][: len(spans)]
        assert all(n in self.done for n in range(self.partition.start))
        for span in spans:
            for n in range(span.first, span.last + 1):
                assert (span.state is RecordState.ACQUIRED) == (n in self.holder)
                assert (span.state > RecordState.ACQUIRED) == (n in self.done)

    def teardown(self) -> None:
        """In the end, every record is acknowledged or archived."""
        for _ in range(self.RECORDS * LIMITS.deliveries_max * 4):
            at = self.partition.next_offset(LIMITS)
            if at is None or at >= self.RECORDS:
                self.wait(LIMITS.lock_s)
                self.write_dead_letters()
                at = self.partition.next_offset(LIMITS)
                if at is None or at >= self.RECORDS:
                    break
            self.fetch("z", 7, False, 7)
        assert self.partition.start == self.RECORDS


Sharing.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestSharing = Sharing.TestCase


@pytest.mark.parametrize("start", [0, 7])
def test_counts(start: int) -> None:
    partition = SharePartition(start)
    acquire(partition, "a", start, start + 9)
    say(partition, "a", start + 1, start + 2, Ack.ACCEPT)
    say(partition, "a", start + 4, start + 4, Ack.RELEASE)
    counts = partition.counts()
    assert (counts.available, counts.acquired, counts.done) == (1, 7, 2)
