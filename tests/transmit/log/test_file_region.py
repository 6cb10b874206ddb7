"""Reads that return a region of a file: the same records as bytes, up to the same bounds."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.record import Record
from headwater.transmit.log.partition import LogSettings, PartitionLog
from headwater.transmit.log.verified_regions import VerifiedRegions
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.batch_header import check_batches, walk
from headwater.transmit.records.file_region import FileRegion

ROLLED = LogSettings(segment_bytes=700_000)


def fill(log: PartitionLog, batches: int, size: int = 5000) -> None:
    for number in range(batches):
        value = bytes([number % 256]) * size
        data = bytearray(encode_batch([Record(value=value, timestamp_ms=number)] * (1 + number % 3)))
        log.append(data, check_batches(data))
    log.high_watermark = log.end_offset


def content(records: bytes | FileRegion) -> bytes:
    return records if isinstance(records, bytes) else records.read()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[PartitionLog]:
    """Return a log that was just written, and one that was reopened."""
    directory = tmp_path_factory.mktemp("logs")
    written = PartitionLog(directory / "written", ROLLED)
    fill(written, 200)
    closed = PartitionLog(directory / "opened", ROLLED)
    fill(closed, 200)
    closed.close()
    return [written, PartitionLog(directory / "opened", ROLLED)]


@given(st.sampled_from([0, 1]), st.integers(0, 398), st.integers(1, 900_000), st.integers(0, 399))
def test_a_region_contains_whole_batches_from_the_offset_up_to_the_bounds(
    logs: list[PartitionLog], which: int, offset: int, max_bytes: int, below: int
) -> None:
    log = logs[which]
    records, next_offset = log.read_region(offset, max_bytes, below)
    data = content(records)
    headers = [header for _, header in walk(data)]
    assert sum(header.size for header in headers) == len(data)
    assert len(data) <= max_bytes or len(headers) == 1
    if headers:
        assert headers[0].base_offset <= offset < headers[0].next_offset
        assert headers[-1].next_offset == next_offset <= below
        check_batches(data)
    else:
        # Nothing is returned only if no batch fits.
        held = next(h for _, h in walk(log.read(offset, 1)))
        assert offset >= below or held.next_offset > below


def test_large_reads_return_a_region_and_small_ones_bytes(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "log", LogSettings())
    fill(log, 100)
    assert isinstance(log.read_region(0, 300_000, log.end_offset)[0], FileRegion)
    assert isinstance(log.read_region(0, 20_000, log.end_offset)[0], bytes)


def test_a_reopened_log_is_verified_once_and_then_returns_regions(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "log", LogSettings())
    fill(log, 100)
    log.close()
    log = PartitionLog(tmp_path / "log", LogSettings())

    def kinds() -> list[type]:
        found, offset = [], 0
        while offset < log.end_offset:
            records, offset = log.read_region(offset, 200_000, log.end_offset)
            found.append(type(records))
        return found

    assert set(kinds()) == {bytes}
    assert set(kinds()[:-1]) == {FileRegion}  # the last one may be small


def test_a_region_outlives_its_file(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "log", LogSettings())
    fill(log, 100)
    expected = log.read(0, 300_000)
    region, _ = log.read_region(0, 300_000, log.end_offset)
    assert isinstance(region, FileRegion)
    log.close()
    for path in log.directory.iterdir():
        path.unlink()
    assert region.read() == expected[: len(region)]


def test_a_region_closes_its_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    fd = os.open(path, os.O_RDONLY)
    try:
        before = len(os.listdir("/proc/self/fd"))
        regions = [FileRegion(fd, 2, 5) for _ in range(10)]
        assert [region.read() for region in regions] == [b"23456"] * 10
        del regions
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(fd)


def test_consecutive_reads_verify_every_region() -> None:
    regions = VerifiedRegions(1_000_000)
    for position in range(0, 1_000_000, 30_000):
        length = min(30_000, 1_000_000 - position)
        assert not regions.covers(position, length)
        regions.add(position, length, is_end=position + length == 1_000_000)
    assert regions.covers(0, 1_000_000)


def test_a_gap_between_reads_is_not_verified() -> None:
    regions = VerifiedRegions(1_000_000)
    regions.add(0, 100_000, is_end=False)
    regions.add(100_500, 899_500, is_end=True)
    assert regions.covers(0, 65_536)
    assert not regions.covers(70_000, 10)
    assert regions.covers(140_000, 860_000)
