"""Regression tests for bugs found by crashes at seeded points; `torture.storage` searches for more."""

import random
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from headwater.errors import CorruptError
from headwater.record import Record, TopicPartition
from headwater.transmit.log.archive import copy_to_archive, link_to_archive
from headwater.transmit.log.partition import LogSettings, PartitionLog
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.batch_header import check_batches
from headwater.transmit.topics.partition import Partition
from support.disk import Disk

SMALL = LogSettings(segment_bytes=300)
NAME = TopicPartition("orders", 0)


def append(log: PartitionLog, value: bytes) -> None:
    data = bytearray(encode_batch([Record(value=value)]))
    log.append(data, check_batches(data))


def produced(sequence: int) -> memoryview:
    data = bytearray(encode_batch([Record(value=b"x" * 100)]))
    struct.pack_into(">qhi", data, 43, 7, 0, sequence)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return memoryview(data)


@pytest.mark.parametrize("seed", range(10))
def test_what_readers_see_after_a_kill_survives_a_power_failure(tmp_path: Path, seed: int) -> None:
    disk = Disk(tmp_path, random.Random(seed))
    with disk.watching():
        append(PartitionLog(tmp_path / "orders-0", SMALL), b"never synced")
    disk.revive(None)  # the process was killed, but the system still has its writes
    with disk.watching():
        assert PartitionLog(tmp_path / "orders-0", SMALL).high_watermark == 1
    disk.lose_power()
    log = PartitionLog(tmp_path / "orders-0", SMALL)
    assert log.end_offset == 1
    log.close()


def archived(folder: Path) -> tuple[PartitionLog, Path]:
    """Return a log of three segments, the first of which is archived, and the path of its copy."""
    log = PartitionLog(folder / "orders-0", SMALL)
    for n in range(3):
        append(log, b"%d" % n * 200)
    first = log.segments[0]
    copy = copy_to_archive(first.path, folder / "archive")
    log.replace([first], lambda: link_to_archive(first.path, copy))
    return log, copy


def test_an_interrupted_deletion_in_the_archive_is_finished(tmp_path: Path) -> None:
    log, copy = archived(tmp_path)
    path = log.segments[0].path
    content = copy.read_bytes()
    log.delete_before(log.segments[1].base_offset)
    log.close()
    path.symlink_to(copy)  # the copy was deleted, then the machine crashed
    again = PartitionLog(tmp_path / "orders-0", SMALL)
    assert (again.start_offset, len(again.segments)) == (1, 2)
    assert not path.is_symlink()
    again.close()
    path.write_bytes(content)  # or nothing was deleted yet, only the start offset saved
    again = PartitionLog(tmp_path / "orders-0", SMALL)
    assert (again.start_offset, again.segments[0].base_offset) == (1, 0)
    again.delete_before(1)  # not repeated automatically: producers may have to be read from the file
    assert not path.exists()
    again.close()


def test_producers_are_recovered_from_deleted_batches_in_a_sealed_segment(tmp_path: Path) -> None:
    def opened() -> Partition:
        return Partition(NAME, PartitionLog(tmp_path / "orders-0", SMALL))

    partition = opened()
    partition.append(produced(0))
    partition.delete_before(1)
    partition.log.roll()
    again = opened()  # the first one was killed before it saved its producers
    assert again.append(produced(0)).base_offset == 0  # a duplicate
    again.log.close()
    partition.log.close()


def test_a_missing_archive_is_reported(tmp_path: Path) -> None:
    log, copy = archived(tmp_path)
    log.close()
    copy.unlink()
    with pytest.raises(CorruptError, match="which does not exist") as caught:
        PartitionLog(tmp_path / "orders-0", SMALL)
    assert "mount the archive" in str(caught.value.hint)


def test_producers_survive_a_kill_after_their_batches_were_deleted(tmp_path: Path) -> None:
    def opened() -> Partition:
        return Partition(NAME, PartitionLog(tmp_path / "orders-0", SMALL))

    partition = opened()
    for sequence in range(5):
        partition.append(produced(sequence))
    partition.log.roll()
    partition.delete_before(partition.log.end_offset)
    again = opened()  # the first one was killed
    assert (again.log.start_offset, again.log.end_offset) == (5, 5)
    assert again.append(produced(4)).base_offset == 4  # a duplicate
    assert again.append(produced(5)).base_offset == 5
    again.log.close()
    partition.log.close()


def test_producers_are_recovered_from_deleted_records_in_the_open_segment(tmp_path: Path) -> None:
    def opened() -> Partition:
        return Partition(NAME, PartitionLog(tmp_path / "orders-0", LogSettings()))

    partition = opened()
    partition.append(produced(0))
    partition.delete_before(1)
    again = opened()  # the first one was killed
    assert again.append(produced(0)).base_offset == 0  # a duplicate
    assert again.log.end_offset == 1
    again.log.close()
    partition.log.close()
