"""Idempotent producers: new, duplicate and rejected batches."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.transmit.records.attributes import TRANSACTIONAL
from headwater.transmit.records.batch_header import BatchHeader
from headwater.transmit.records.control import Marker
from headwater.transmit.topics.producers import BATCHES_KEPT, SEQUENCE_MAX, Aborted, ProducerStates, Refusal


def batch(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0, attributes: int = 0) -> BatchHeader:
    return BatchHeader(
        base_offset=0, length=100, leader_epoch=0, magic=2, crc=0, attributes=attributes,
        last_offset_delta=count - 1, base_timestamp=0, max_timestamp=0, producer_id=producer,
        producer_epoch=epoch, base_sequence=sequence, count=count,
    )  # fmt: skip


def test_consecutive_batches_are_new() -> None:
    states = ProducerStates()
    for n, header in enumerate([batch(0, 3), batch(3), batch(4, 10)]):
        assert states.check(header) is None
        states.note(header, n)


def test_a_duplicate_batch_returns_its_offset() -> None:
    states = ProducerStates()
    states.note(batch(0, 3), 100)
    states.note(batch(3, 2), 200)
    assert states.check(batch(0, 3)) == 100
    assert states.check(batch(3, 2)) == 200


def test_a_longer_batch_with_a_known_first_sequence_is_rejected() -> None:
    states = ProducerStates()
    states.note(batch(0, 3), 100)
    assert states.check(batch(0, 4)) is Refusal.OUT_OF_ORDER


def test_a_gap_in_the_sequence_is_rejected() -> None:
    states = ProducerStates()
    states.note(batch(0, 3), 0)
    assert states.check(batch(4)) is Refusal.OUT_OF_ORDER


def test_only_the_last_batches_are_deduplicated() -> None:
    states = ProducerStates()
    for sequence in range(BATCHES_KEPT + 1):
        states.note(batch(sequence), sequence)
    assert states.check(batch(1)) == 1
    assert states.check(batch(0)) is Refusal.OUT_OF_ORDER


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    states = ProducerStates()
    states.note(batch(0, 5), 0)
    assert states.check(batch(5, epoch=1)) is Refusal.OUT_OF_ORDER
    assert states.check(batch(0, epoch=1)) is None
    states.note(batch(0, epoch=1), 5)
    assert states.check(batch(5)) is Refusal.STALE_EPOCH
    assert states.check(batch(1, epoch=1)) is None


def test_sequences_wrap_around_to_zero() -> None:
    states = ProducerStates()
    states.note(batch(SEQUENCE_MAX - 1, 2), 0)
    assert states.check(batch(0)) is None
    states.note(batch(0), 2)
    assert states.check(batch(1)) is None
    assert states.check(batch(SEQUENCE_MAX - 1, 2)) == 0


def test_a_batch_may_wrap_around_the_largest_sequence() -> None:
    states = ProducerStates()
    states.note(batch(SEQUENCE_MAX, 3), 0)
    assert states.check(batch(2)) is None
    assert states.check(batch(SEQUENCE_MAX, 3)) == 0


def test_an_unknown_producer_may_continue_at_any_sequence() -> None:
    assert ProducerStates().check(batch(41)) is None


def test_producers_without_an_id_are_never_rejected() -> None:
    states = ProducerStates()
    states.note(batch(-1, producer=-1), 0)
    assert states.check(batch(-1, producer=-1)) is None


def test_producers_do_not_disturb_each_other() -> None:
    states = ProducerStates()
    states.note(batch(0, 3), 0)
    assert states.check(batch(0, 3, producer=8)) is None


def test_batches_written_before_a_restart_are_deduplicated() -> None:
    states = ProducerStates([batch(0, 3)._replace(base_offset=40), batch(3)._replace(base_offset=43)])
    assert states.check(batch(3)) == 43
    assert states.check(batch(4)) is None


def test_control_batches_have_no_sequence() -> None:
    states = ProducerStates([batch(0, 3), batch(-1, attributes=0x20)])
    assert states.check(batch(3)) is None


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=20),
    st.integers(SEQUENCE_MAX - 30, SEQUENCE_MAX),
    st.lists(st.integers(0, BATCHES_KEPT), max_size=20),
)
def test_with_five_in_flight_and_any_retry_each_batch_is_written_once(
    counts: list[int], first: int, answers_received: list[int]
) -> None:
    states = ProducerStates()
    sent, sequence = [], first
    for count in counts:
        sent.append(batch(sequence, count))
        sequence = (sequence + count) % (SEQUENCE_MAX + 1)
    offset, offsets, acknowledged = 0, [], 0
    while acknowledged < len(sent):
        # The client sends its window in order, from the first batch without a response; some responses are lost.
        for number in range(acknowledged, min(acknowledged + BATCHES_KEPT, len(sent))):
            known = states.check(sent[number])
            assert not isinstance(known, Refusal)
            if known is None:
                states.note(sent[number], offset)
                offsets.append(offset)
                offset += sent[number].count
            else:
                assert known == offsets[number]
        acknowledged += answers_received.pop() if answers_received else BATCHES_KEPT
    assert len(offsets) == len(sent)
    assert offset == sum(counts)


# -- transactions ---------------------------------------------------------------------------------------------


def ended(producer: int = 7, epoch: int = 0, *, is_commit: bool = False) -> Marker:
    return Marker(producer_id=producer, producer_epoch=epoch, is_commit=is_commit)


def test_the_last_stable_offset_is_where_the_oldest_open_transaction_starts() -> None:
    states = ProducerStates()
    assert states.last_stable_offset(5) == 5
    states.note(batch(0, producer=1, attributes=TRANSACTIONAL), 10)
    states.note(batch(0, producer=2, attributes=TRANSACTIONAL), 11)
    states.note(batch(1, producer=1, attributes=TRANSACTIONAL), 12)
    assert states.last_stable_offset(13) == 10
    states.note_marker(ended(1, is_commit=True), 13)
    assert states.last_stable_offset(13) == 10  # its marker is not durable yet
    assert states.last_stable_offset(14) == 11
    states.note_marker(ended(2), 14)
    assert states.last_stable_offset(15) == 15


def test_aborted_transactions_are_sorted_by_where_they_start() -> None:
    states = ProducerStates()
    states.note(batch(0, producer=1, attributes=TRANSACTIONAL), 0)
    states.note(batch(0, producer=2, attributes=TRANSACTIONAL), 1)
    states.note_marker(ended(2), 2)
    states.note_marker(ended(1), 3)
    assert states.aborted(0, 4) == [Aborted(1, 0, 3), Aborted(2, 1, 2)]
    assert states.aborted(3, 4) == [Aborted(1, 0, 3)]
    assert states.aborted(0, 1) == [Aborted(1, 0, 3)]
    assert states.aborted(4, 9) == []
    states.forget_aborted(3)
    assert states.aborted(0, 4) == [Aborted(1, 0, 3)]


def test_a_marker_of_a_newer_epoch_fences_the_producer() -> None:
    states = ProducerStates()
    states.note(batch(0, attributes=TRANSACTIONAL), 0)
    assert not states.is_stale(ended(epoch=1))
    states.note_marker(ended(epoch=1), 1)
    assert states.check(batch(1, attributes=TRANSACTIONAL)) is Refusal.STALE_EPOCH
    assert states.check(batch(0, epoch=1)) is None
    assert states.is_stale(ended(epoch=0))


def test_a_batch_is_deduplicated_only_within_its_transaction() -> None:
    states = ProducerStates()
    states.note(batch(0, attributes=TRANSACTIONAL), 0)
    assert states.check(batch(0, attributes=TRANSACTIONAL)) == 0
    states.note_marker(ended(), 1)
    for known in (states, ProducerStates.load(states.dump())):
        # librdkafka reuses the number if it never received the response for the first batch.
        assert known.check(batch(0, attributes=TRANSACTIONAL)) is Refusal.OUT_OF_ORDER
        assert known.check(batch(1, attributes=TRANSACTIONAL)) is None


def test_a_batch_outside_the_open_transaction_is_rejected() -> None:
    states = ProducerStates()
    states.note(batch(0, attributes=TRANSACTIONAL), 0)
    assert states.check(batch(1)) is Refusal.IN_TRANSACTION
    assert states.check(batch(1, attributes=TRANSACTIONAL)) is None


def test_an_idle_producer_is_removed_unless_it_has_an_open_transaction() -> None:
    states = ProducerStates([batch(0, producer=1)])  # read from the log: the time of the write is unknown
    states.note(batch(0, producer=2), 1, 1_000)
    states.note(batch(0, producer=3, attributes=TRANSACTIONAL), 2, 1_000)
    states.expire(10_999, 10_000)
    assert {info.producer_id for info in states.infos()} == {1, 2, 3}
    states.expire(11_000, 10_000)
    assert {info.producer_id for info in states.infos()} == {1, 3}
    states.expire(21_000, 10_000)
    assert {info.producer_id for info in states.infos()} == {3}
    assert states.check(batch(9, producer=2)) is None


EVENTS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 2), st.sampled_from(["plain", "txn", "commit", "abort"]))
)


@given(EVENTS, st.data())
def test_a_snapshot_at_any_point_loses_nothing(events: list[tuple[int, int, str]], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(events)))
    whole, resumed = ProducerStates(), ProducerStates()
    for offset, (producer, epoch, kind) in enumerate(events):
        if offset == cut:
            resumed = ProducerStates.load(resumed.dump())
        for states in (whole, resumed):
            if kind in ("commit", "abort"):
                states.note_marker(ended(producer, epoch, is_commit=kind == "commit"), offset)
            else:
                attributes = TRANSACTIONAL if kind == "txn" else 0
                states.note(batch(0, producer=producer, epoch=epoch, attributes=attributes), offset)
    assert resumed.dump() == whole.dump()
    assert resumed.last_stable_offset(len(events)) == whole.last_stable_offset(len(events))
