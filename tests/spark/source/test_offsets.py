"""Options, limits and splits, without Spark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidError
from headwater.record import EARLIEST, LATEST, TopicPartition
from headwater.spark.source.offsets import from_json, limit_offsets, read_options, split, to_json

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}
partitions = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 4))
offsets = st.dictionaries(partitions, st.integers(0, 10**12), max_size=8)


def test_stream_starts_at_latest_and_batch_at_earliest() -> None:
    options = {**SERVERS, "subscribe": "orders"}
    assert read_options(options, streaming=True).starting.everywhere == LATEST
    assert read_options(options, streaming=False).starting.everywhere == EARLIEST


def test_option_names_ignore_case() -> None:
    options = read_options({**SERVERS, "SUBSCRIBE": "a, b", "MAXOFFSETSPERTRIGGER": "7"}, streaming=True)
    assert options.topics == ("a", "b")
    assert options.max_offsets_per_trigger == 7


def test_offsets_by_partition_are_read_from_json() -> None:
    options = read_options(
        {**SERVERS, "subscribe": "a", "startingOffsets": '{"a": {"0": 23, "1": -2}}'}, streaming=True
    )
    assert dict(options.starting.each) == {TopicPartition("a", 0): 23, TopicPartition("a", 1): EARLIEST}


def test_timestamp_takes_precedence_over_offsets() -> None:
    options = read_options(
        {**SERVERS, "subscribe": "a", "startingTimestamp": "1000", "startingOffsets": "earliest"}, streaming=True
    )
    assert options.starting.is_time
    assert options.starting.everywhere == 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "a"}, "kafka.bootstrap.servers"),
        ({**SERVERS}, "exactly one of"),
        ({**SERVERS, "subscribe": "a", "assign": '{"a":[0]}'}, "exactly one of"),
        ({**SERVERS, "subscribe": "a", "startingOffsets": "middle"}, "startingOffsets"),
        ({**SERVERS, "subscribe": "a", "startingOffsets": "[1]"}, "startingOffsets"),
        ({**SERVERS, "assign": "[1]"}, "assign"),
        ({**SERVERS, "subscribePattern": "("}, "subscribePattern"),
        ({**SERVERS, "subscribe": "a", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({**SERVERS, "subscribe": "a", "minPartitions": "many"}, "minPartitions"),
        ({**SERVERS, "subscribe": "a", "failOnDataLoss": "perhaps"}, "failOnDataLoss"),
    ],
)
def test_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        read_options(options, streaming=True)


@given(offsets)
def test_offsets_survive_json(some: dict[TopicPartition, int]) -> None:
    assert from_json(to_json(some)) == some


@given(
    st.dictionaries(partitions, st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1),
    st.integers(1, 500),
)
def test_limit_advances_every_partition_with_a_backlog_within_bounds(
    places: dict[TopicPartition, tuple[int, int]], max_rows: int
) -> None:
    start = {tp: at for tp, (at, _) in places.items()}
    latest = {tp: at + more for tp, (at, more) in places.items()}
    end = limit_offsets(start, latest, max_rows)
    taken = {tp: end[tp] - start[tp] for tp in places}
    for tp, (_, more) in places.items():
        assert (1 if more else 0) <= taken[tp] <= more
    assert sum(taken.values()) <= max_rows + len(places)


@given(
    st.dictionaries(partitions, st.tuples(st.integers(0, 1000), st.integers(0, 1000))),
    st.none() | st.integers(1, 30),
)
def test_splits_cover_each_offset_once(
    places: dict[TopicPartition, tuple[int, int]], min_partitions: int | None
) -> None:
    start = {tp: at for tp, (at, _) in places.items()}
    end = {tp: at + more for tp, (at, more) in places.items()}
    seen = [(r.partition, n) for r in split(start, end, min_partitions) for n in range(r.start, r.end)]
    assert sorted(seen) == sorted((tp, n) for tp in places for n in range(start[tp], end[tp]))
