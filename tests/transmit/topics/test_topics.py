"""Topics and partitions of a running broker."""

import asyncio
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from headwater.errors import ConflictError, InvalidError, UnavailableError
from headwater.record import Record, TopicPartition
from headwater.transmit.log.partition import LogSettings, PartitionLog
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.batch_header import check_batches
from headwater.transmit.records.control import Marker
from headwater.transmit.topics.catalog import Catalog
from headwater.transmit.topics.group_commit import Durability
from headwater.transmit.topics.partition import Partition, RefusedBatch
from headwater.transmit.topics.topics import Topics


def open_topics(data: Path, durability: Durability = Durability.FSYNC, segment_bytes: int = 1 << 30) -> Topics:
    data.mkdir(exist_ok=True)
    catalog = Catalog(data / "meta.db")
    settings = LogSettings(segment_bytes=segment_bytes)
    return Topics(data / "log", catalog, log_settings=settings, durability=durability)


async def close(topics: Topics) -> None:
    await topics.close()
    topics._catalog.close()


def batch(value: bytes = b"v", *, producer_id: int = -1, sequence: int = -1) -> memoryview:
    data = bytearray(encode_batch([Record(value=value)]))
    struct.pack_into(">qhi", data, 43, producer_id, 0 if producer_id >= 0 else -1, sequence)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    check_batches(data)
    return memoryview(data)


@pytest.mark.parametrize("durability", Durability)
def test_an_appended_record_is_visible_when_it_is_durable(tmp_path: Path, durability: Durability) -> None:
    async def scenario() -> None:
        topics = open_topics(tmp_path, durability)
        topics.create("orders", 1, {})
        partition = topics.partition("orders", 0)
        appended = topics.append(partition, batch())
        assert partition.log.high_watermark == (0 if durability is Durability.FSYNC else 1)
        await partition.wait_durable(appended.next_offset)
        assert partition.log.high_watermark == 1
        await close(topics)

    asyncio.run(scenario())


def test_the_longest_name_is_created_and_found_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        names = ["n" * 249, "n" * 248 + "m"]
        topics = open_topics(tmp_path)
        for name in names:
            topics.create(name, 12, {})
            topics.append(topics.partition(name, 11), batch(name.encode()))
        await close(topics)
        topics = open_topics(tmp_path)
        for name in names:
            assert name.encode() in topics.partition(name, 11).log.read(0, 1000)
        await close(topics)

    asyncio.run(scenario())


def test_a_topic_that_cannot_be_created_is_not_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        topics = open_topics(tmp_path)
        (tmp_path / "log").write_bytes(b"a file where the folder should be")
        with pytest.raises(UnavailableError, match="orders"):
            topics.create("orders", 2, {})
        assert topics.entries() == []
        (tmp_path / "log").unlink()
        topics.create("orders", 2, {})
        await close(topics)

    asyncio.run(scenario())


def test_a_topic_that_is_deleted_and_created_again_is_empty(tmp_path: Path) -> None:
    async def scenario() -> None:
        topics = open_topics(tmp_path)
        topics.create("orders", 1, {})
        topics.append(topics.partition("orders", 0), batch())
        topics.delete("orders")
        assert topics.partition("orders", 0) is None
        topics.create("orders", 1, {})
        assert topics.partition("orders", 0).log.end_offset == 0
        assert len(list((tmp_path / "log").iterdir())) == 1
        await close(topics)

    asyncio.run(scenario())


def test_deleting_a_topic_ends_waits_for_durability(tmp_path: Path) -> None:
    async def scenario() -> None:
        topics = open_topics(tmp_path)
        topics.create("orders", 1, {})
        partition = topics.partition("orders", 0)
        waits = asyncio.create_task(partition.wait_durable(topics.append(partition, batch()).next_offset))
        await asyncio.sleep(0)
        topics.delete("orders")
        await waits
        await close(topics)

    asyncio.run(scenario())


def test_topics_grow_but_do_not_shrink(tmp_path: Path) -> None:
    async def scenario() -> None:
        topics = open_topics(tmp_path)
        topics.create("orders", 2, {})
        topics.grow("orders", 3)
        assert topics.partition("orders", 2) is not None
        for partitions in (3, 2, 0, 10_001):
            with pytest.raises(InvalidError):
                topics.grow("orders", partitions)
        with pytest.raises(ConflictError):
            topics.create("orders", 1, {})
        await close(topics)

    asyncio.run(scenario())


@pytest.mark.parametrize("segment_bytes", [1, 1 << 30], ids=["a segment each", "one segment"])
def test_batches_retried_after_a_restart_are_deduplicated(tmp_path: Path, segment_bytes: int) -> None:
    async def scenario() -> None:
        topics = open_topics(tmp_path, segment_bytes=segment_bytes)
        topics.create("orders", 1, {})
        for sequence in range(2):
            topics.append(topics.partition("orders", 0), batch(producer_id=9, sequence=sequence))
        await close(topics)
        topics = open_topics(tmp_path, segment_bytes=segment_bytes)
        partition = topics.partition("orders", 0)
        for sequence in range(3):
            assert topics.append(partition, batch(producer_id=9, sequence=sequence)).base_offset == sequence
        assert partition.log.end_offset == 3
        with pytest.raises(RefusedBatch):
            topics.append(partition, batch(producer_id=9, sequence=7))
        await close(topics)

    asyncio.run(scenario())


def test_after_a_failed_sync_appends_fail_and_waits_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = PartitionLog(tmp_path / "p", LogSettings())
        partition = Partition(TopicPartition("orders", 0), log)
        appended = partition.append(batch())
        waits = asyncio.create_task(partition.wait_durable(appended.next_offset))
        await asyncio.sleep(0)
        partition.fail(OSError(5, "Input/output error"))
        with pytest.raises(UnavailableError):
            await waits
        with pytest.raises(UnavailableError):
            await partition.wait_durable(appended.next_offset)
        with pytest.raises(UnavailableError):
            partition.append(batch())
        log.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("damage", ["none", "newest", "all", "missing"])
def test_producers_are_recovered_from_snapshots_or_the_log(tmp_path: Path, damage: str) -> None:
    async def scenario() -> None:
        topics = open_topics(tmp_path, segment_bytes=1)  # one segment per batch
        topics.create("orders", 1, {})
        partition = topics.partition("orders", 0)
        for producer in range(1, 6):
            topics.append(partition, batch(producer_id=producer, sequence=0))
        topics.append_marker(partition, Marker(producer_id=1, producer_epoch=1, is_commit=False), now_ms=5)
        expected = [(i.producer_id, i.epoch, i.last_sequence) for i in partition.producers.infos()]
        await close(topics)
        snapshots = sorted(partition.log.directory.glob("*.producers"))
        assert [int(path.stem) for path in snapshots] == [5, 6]
        for path in {"none": [], "newest": snapshots[-1:], "all": snapshots, "missing": snapshots}[damage]:
            path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:-3])
        topics = open_topics(tmp_path, segment_bytes=1)
        found = topics.partition("orders", 0).producers
        assert [(i.producer_id, i.epoch, i.last_sequence) for i in found.infos()] == expected
        await close(topics)

    asyncio.run(scenario())


def test_opening_reads_only_the_batches_after_the_newest_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets: list[int] = []
    batches_since = PartitionLog.batches_since

    def spy(log: PartitionLog, offset: int) -> object:
        offsets.append(offset)
        return batches_since(log, offset)

    async def scenario() -> None:
        topics = open_topics(tmp_path)
        topics.create("orders", 1, {})
        for sequence in range(4):
            topics.append(topics.partition("orders", 0), batch(producer_id=9, sequence=sequence))
        await close(topics)
        monkeypatch.setattr(PartitionLog, "batches_since", spy)
        await close(open_topics(tmp_path))
        assert offsets == [4]

    asyncio.run(scenario())


def test_idle_producers_are_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        topics = open_topics(tmp_path)
        topics.create("orders", 1, {})
        partition = topics.partition("orders", 0)
        topics.append(partition, batch(producer_id=9, sequence=0), now_ms=1_000)
        topics.expire_producers(1_000 + 86_399_999, 86_400_000)
        assert [info.producer_id for info in partition.producers.infos()] == [9]
        topics.expire_producers(1_000 + 86_400_000, 86_400_000)
        assert list(partition.producers.infos()) == []
        await close(topics)

    asyncio.run(scenario())
