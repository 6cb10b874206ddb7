"""The broker's periodic work, one partition at a time."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater.clock import ManualClock
from headwater.record import Record, TopicPartition
from headwater.transmit.configs import DEFAULT_TOPIC_CONFIG
from headwater.transmit.log.file_names import index_path
from headwater.transmit.log.partition import LogSettings, PartitionLog
from headwater.transmit.log.pool import FilePool
from headwater.transmit.log.scan import scan
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.batch_header import check_batches
from headwater.transmit.topics import upkeep
from headwater.transmit.topics.partition import Partition
from headwater.transmit.topics.upkeep import Upkeep


class NoTopics:
    def partitions(self) -> list[Any]:
        return []


def append(log: PartitionLog, value: bytes, key: bytes | None = None, timestamp_ms: int = 1000) -> None:
    data = bytearray(encode_batch([Record(key=key, value=value, timestamp_ms=timestamp_ms)]))
    log.append(data, check_batches(data))
    log.high_watermark = log.sync()


def keeper() -> Upkeep:
    return Upkeep(NoTopics(), ManualClock(), retention_every_s=1, clean_every_s=1)


def test_after_a_crash_only_bytes_beyond_the_saved_index_are_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "SAVE_INDEX_BYTES", 1000)
    partition = Partition(TopicPartition("orders", 0), PartitionLog(tmp_path / "p", LogSettings()))
    keeping = keeper()
    for n in range(20):
        append(partition.log, b"%d" % n * 100)
    asyncio.run(keeping.roll(partition, 1000))
    asyncio.run(keeping.roll(partition, 1000))
    assert index_path(partition.log.segments[-1].path).exists()
    append(partition.log, b"later")
    shutil.copytree(tmp_path / "p", tmp_path / "crashed")
    scanned: list[int] = []
    monkeypatch.setattr(
        "headwater.transmit.log.segment.scan",
        lambda fd, *, at, **rest: scanned.append(at) or scan(fd, at=at, **rest),
    )
    log = PartitionLog(tmp_path / "crashed", LogSettings())
    assert scanned[0] > 2000
    assert log.end_offset == 21
    assert b"later" in log.read(20, 1000)
    assert b"77777" in log.read(7, 1000)
    keeping.close()
    log.close()
    partition.log.close()


def test_a_damaged_segment_is_not_compacted_and_loses_nothing(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "p", LogSettings(segment_bytes=300))
    for n in range(10):
        append(log, b"%d" % n * 50, b"k")
    log.close()
    path = sorted((tmp_path / "p").glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    before = {file.name: file.read_bytes() for file in (tmp_path / "p").glob("*.log")}
    log = PartitionLog(tmp_path / "p", LogSettings(segment_bytes=300))
    config = replace(DEFAULT_TOPIC_CONFIG, compact=True, delete=False, min_cleanable_dirty_ratio=0.0)
    keeping = keeper()
    asyncio.run(keeping.clean(Partition(TopicPartition("orders", 0), log, config), 5000))
    assert {file.name: file.read_bytes() for file in (tmp_path / "p").glob("*.log")} == before
    keeping.close()
    log.close()


def test_a_pool_bounds_the_number_of_open_files(tmp_path: Path) -> None:
    pool = FilePool(limit=3)
    log = PartitionLog(tmp_path / "p", LogSettings(segment_bytes=1), pool)
    for n in range(20):
        append(log, b"%d" % n)
    assert len(pool) == 0
    for _ in range(2):
        assert [b"%d" % n in log.read(n, 1) for n in range(20)] == [True] * 20
        assert len(pool) == 3
    log.close()
    assert len(pool) == 0
