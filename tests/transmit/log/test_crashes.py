"""What crashes at seeded points have found, each as a case of its own; `torture.storage` looks for more."""

import random
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from headwater.errors import CorruptError
from headwater.record import Record, TopicPartition
from headwater.transmit.log.archive import copy_to_archive, link_to_archive
from headwater.transmit.log.partition import LogSettings, PartitionLog
from headwater.transmit.records.batch import check_batches, encode_batch
from headwater.transmit.topics.topics import Partition
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
def test_what_readers_see_after_a_kill_survives_the_loss_of_power(tmp_path: Path, seed: int) -> None:
    disk = Disk(tmp_path, random.Random(seed))
    with disk.watching():
        append(PartitionLog(tmp_path / "orders-0", SMALL), b"never synced")
    disk.revive(None)  # the process was killed; the system still has what it wrote
    with disk.watching():
        assert PartitionLog(tmp_path / "orders-0", SMALL).high_watermark == 1
    disk.lose_power()
    log = PartitionLog(tmp_path / "orders-0", SMALL)
    assert log.end_offset == 1
    log.close()


def archived(folder: Path) -> tuple[PartitionLog, Path]:
    """A log of three segments, the first of them in the archive; and the copy there."""
    log = PartitionLog(folder / "orders-0", SMALL)
    for n in range(3):
        append(log, b"%d" % n * 200)
    first = log.segments[0]
    copy = copy_to_archive(first.path, folder / "archive")
    log.replace([first], lambda: link_to_archive(first.path, copy))
    return log, copy


def test_a_deletion_that_was_cut_short_in_the_archive_is_finished(tmp_path: Path) -> None:
    log, copy = archived(tmp_path)
    path = log.segments[0].path
    content = copy.read_bytes()
    log.delete_before(log.segments[1].base_offset)
    log.close()
    path.symlink_to(copy)  # the copy went first, then the machine
    again = PartitionLog(tmp_path / "orders-0", SMALL)
    assert (again.start_offset, len(again.segments)) == (1, 2)
    assert not path.is_symlink()
    again.close()
    path.write_bytes(content)  # or nothing had gone yet but the mark of the start
    again = PartitionLog(tmp_path / "orders-0", SMALL)
    assert (again.start_offset, again.segments[0].base_offset) == (1, 0)
    again.delete_before(1)  # which is not repeated by itself: producers may have to be read from the file
    assert not path.exists()
    again.close()


def test_a_producer_is_known_by_batches_that_count_as_deleted_in_a_sealed_segment(tmp_path: Path) -> None:
    def opened() -> Partition:
        return Partition(NAME, PartitionLog(tmp_path / "orders-0", SMALL))

    partition = opened()
    partition.append(produced(0))
    partition.delete_before(1)
    partition.log.roll()
    again = opened()  # the other was killed before it had saved what it knew of producers
    assert again.append(produced(0)).base_offset == 0  # a repetition
    again.log.close()
    partition.log.close()


def test_an_archive_that_is_away_is_named(tmp_path: Path) -> None:
    log, copy = archived(tmp_path)
    log.close()
    copy.unlink()
    with pytest.raises(CorruptError, match="which is not there") as caught:
        PartitionLog(tmp_path / "orders-0", SMALL)
    assert "mount the archive" in str(caught.value.hint)


def test_a_producer_is_known_though_its_batches_were_deleted_before_a_kill(tmp_path: Path) -> None:
    def opened() -> Partition:
        return Partition(NAME, PartitionLog(tmp_path / "orders-0", SMALL))

    partition = opened()
    for sequence in range(5):
        partition.append(produced(sequence))
    partition.log.roll()
    partition.delete_before(partition.log.end_offset)
    again = opened()  # the other was killed
    assert (again.log.start_offset, again.log.end_offset) == (5, 5)
    assert again.append(produced(4)).base_offset == 4  # a repetition
    assert again.append(produced(5)).base_offset == 5
    again.log.close()
    partition.log.close()


def test_a_producer_is_known_though_its_records_were_deleted_in_the_open_segment(tmp_path: Path) -> None:
    def opened() -> Partition:
        return Partition(NAME, PartitionLog(tmp_path / "orders-0", LogSettings()))

    partition = opened()
    partition.append(produced(0))
    partition.delete_before(1)
    again = opened()  # the other was killed
    assert again.append(produced(0)).base_offset == 0  # a repetition
    assert again.log.end_offset == 1
    again.log.close()
    partition.log.close()
