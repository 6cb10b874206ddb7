"""Compaction: the records it keeps, batch by batch, and when it is due."""

import struct
from pathlib import Path

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headwater.record import Record
from headwater.transmit.log.compaction import Cleanable, OffsetMap, cleanable_end, compact, is_due
from headwater.transmit.log.retention import expired_by_size, expired_by_time
from headwater.transmit.log.swap import cleaned_path, finish_swaps, swap_in
from headwater.transmit.records.attributes import Compression
from headwater.transmit.records.batch import decode_batch, encode_batch
from headwater.transmit.records.batch_header import check_batches, place, walk
from headwater.transmit.topics.producers import ProducerStates

DAY_MS = 24 * 3600 * 1000


def batch(base: int, *pairs: tuple[str, str | None], compression: Compression = Compression.NONE) -> bytes:
    records = [
        Record(key=key.encode(), value=None if value is None else value.encode(), timestamp_ms=base + n)
        for n, (key, value) in enumerate(pairs)
    ]
    data = bytearray(encode_batch(records, compression=compression))
    place(data, 0, base_offset=base, leader_epoch=0)
    return bytes(data)


def mapped(data: bytes, keys_max: int = 100) -> OffsetMap:
    latest = OffsetMap(end=0, keys_max=keys_max)
    latest.add(data, start=0, bound=1 << 40)
    return latest


def records(data: bytes) -> list[tuple[int, bytes | None, bytes | None, int]]:
    return [(r.offset, r.key, r.value, r.timestamp_ms) for at, _ in walk(data) for r in decode_batch(data, at)]


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abcd"), st.text(max_size=3)), min_size=1, max_size=4), min_size=1
    ),
    st.sampled_from(Compression),
)
def test_the_last_value_of_each_key_is_the_same_before_and_after(
    batches: list[list[tuple[str, str]]], compression: Compression
) -> None:
    data, base = b"", 0
    for pairs in batches:
        data += batch(base, *pairs, compression=compression)
        base += len(pairs)
    left = compact(data, mapped(data), now_ms=0, delete_retention_ms=0)
    everything = {key: (offset, value, time) for offset, key, value, time in records(data)}
    found = records(left)
    assert {key: (offset, value, time) for offset, key, value, time in found} == everything
    assert len(found) == len(everything)
    assert {header.compression for header in check_batches(left)} == {compression}


def test_a_batch_keeps_its_offsets_when_records_are_removed() -> None:
    data = batch(10, ("a", "1"), ("b", "2"), ("a", "3"), ("b", "4"))
    left = compact(data, mapped(data), now_ms=0, delete_retention_ms=0)
    (header,) = check_batches(left)
    assert (header.base_offset, header.last_offset_delta, header.count) == (10, 3, 2)
    assert [offset for offset, *_ in records(left)] == [12, 13]


def test_a_tombstone_is_removed_after_its_retention_and_not_before() -> None:
    data = batch(0, ("a", "1")) + batch(1, ("a", None), ("b", "2"))
    first = compact(data, mapped(data), now_ms=1000, delete_retention_ms=500)
    assert records(first) == [(1, b"a", None, 1), (2, b"b", b"2", 2)]
    assert records(compact(first, mapped(first), now_ms=1500, delete_retention_ms=500)) == records(first)
    assert records(compact(first, mapped(first), now_ms=1501, delete_retention_ms=500)) == [(2, b"b", b"2", 2)]


def test_a_full_offset_map_leaves_the_rest_for_the_next_pass() -> None:
    data = batch(0, ("a", "1")) + batch(1, ("b", "1")) + batch(2, ("a", "2"))
    latest = mapped(data, keys_max=2)
    assert latest.end == 2
    assert len(records(compact(data, latest, now_ms=0, delete_retention_ms=0))) == 3


def test_records_of_aborted_batches_are_removed_and_replace_no_others() -> None:
    data = batch(0, ("a", "1")) + batch(1, ("a", "aborted"))
    latest = OffsetMap(end=0)

    def is_aborted(header: object) -> bool:
        return header.base_offset == 1  # type: ignore[attr-defined]

    latest.add(data, start=0, bound=2, is_aborted=is_aborted)
    left = compact(data, latest, now_ms=0, delete_retention_ms=0, is_aborted=is_aborted)
    assert [value for _, _, value, _ in records(left)] == [b"1"]


def test_the_last_batch_of_a_producer_is_kept_even_without_records() -> None:
    last_of_producer = bytearray(batch(0, ("a", "1"), ("a", "2")))
    struct.pack_into(">qhi", last_of_producer, 43, 7, 0, 5)
    struct.pack_into(">I", last_of_producer, 17, crc32c(last_of_producer[21:]))
    data = bytes(last_of_producer) + batch(2, ("a", "3"))
    left = compact(data, mapped(data), now_ms=DAY_MS, delete_retention_ms=0)
    first, _ = check_batches(left)
    assert (first.producer_id, first.count) == (7, 0)
    again = check_batches(bytes(last_of_producer))[0]
    assert ProducerStates(check_batches(left)).check(again) == 0
    later = compact(left, mapped(left), now_ms=DAY_MS + 2, delete_retention_ms=0)
    assert [header.base_offset for header in check_batches(later)] == [2]


def segments(*newest: int, size: int = 100) -> list[Cleanable]:
    return [
        Cleanable(base_offset=n * 10, next_offset=n * 10 + 10, size=size, oldest_ms=time, newest_ms=time)
        for n, time in enumerate(newest)
    ]


def test_a_pass_ends_before_recent_or_undecided_records() -> None:
    found = segments(100, 200, 900)
    limits = {"dirty_from": 0, "now_ms": 1000}
    assert cleanable_end(found, bound=30, min_lag_ms=0, **limits) == 30
    assert cleanable_end(found, bound=25, min_lag_ms=0, **limits) == 20
    assert cleanable_end(found, bound=30, min_lag_ms=500, **limits) == 20
    assert cleanable_end(found, bound=30, min_lag_ms=950, **limits) == 0


def test_a_pass_is_due_by_dirty_ratio_or_by_age() -> None:
    found = segments(100, 200, 900)
    limits = {"end": 30, "now_ms": 1000, "max_lag_ms": 10_000}
    assert is_due(found, dirty_from=0, ratio=1.0, **limits)
    assert is_due(found, dirty_from=20, ratio=0.33, **limits)
    assert not is_due(found, dirty_from=20, ratio=0.34, **limits)
    assert not is_due(found, dirty_from=30, ratio=0.0, **limits)
    assert is_due(found, dirty_from=20, ratio=0.34, **{**limits, "max_lag_ms": 99})


def test_segments_expire_oldest_first() -> None:
    times = [100, 900, 200]
    assert expired_by_time(times, now_ms=1000, retention_ms=500) == 1
    assert expired_by_time(times, now_ms=2000, retention_ms=500) == 3
    assert expired_by_time(times, now_ms=2000, retention_ms=-1) == 0
    assert expired_by_size([50, 50, 50], total_bytes=200, retention_bytes=100) == 2
    assert expired_by_size([50, 50, 50], total_bytes=200, retention_bytes=101) == 1
    assert expired_by_size([50, 50, 50], total_bytes=200, retention_bytes=-1) == 0


def test_an_interrupted_swap_is_finished_and_an_incomplete_file_is_discarded(tmp_path: Path) -> None:
    for base in (0, 10, 20):
        (tmp_path / f"{base:020d}.log").write_bytes(b"old")
    (tmp_path / f"{0:020d}-{20:020d}.swap").write_bytes(b"new")
    cleaned_path(tmp_path, 20).write_bytes(b"half")
    finish_swaps(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"{0:020d}.log", f"{20:020d}.log"]
    assert (tmp_path / names[0]).read_bytes() == b"new"
    cleaned_path(tmp_path, 0).write_bytes(b"newer")
    assert swap_in(cleaned_path(tmp_path, 0), 30).read_bytes() == b"newer"
    assert [path.name for path in tmp_path.iterdir()] == [names[0]]
