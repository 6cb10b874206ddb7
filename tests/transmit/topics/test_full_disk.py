"""A full disk: acknowledged records are kept, and operations that free space still work."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Semaphore
from typing import Any, NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from headwater.errors import UnavailableError
from headwater.record import Record, TopicPartition
from headwater.transmit.broker import server
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.groups import store
from headwater.transmit.groups.share.share_groups import ShareGroups
from headwater.transmit.groups.store import GroupKind, GroupStore
from headwater.transmit.log import disk_reserve, index, partition, segment, start_offset
from headwater.transmit.log.disk_reserve import DiskReserve
from headwater.transmit.log.partition import LogSettings, PartitionLog
from headwater.transmit.records.batch import decode_batch, encode_batch
from headwater.transmit.records.batch_header import check_batches, walk
from headwater.transmit.topics import catalog
from headwater.transmit.topics.catalog import Catalog
from headwater.transmit.transactions.coordinator import Coordinator

ORDERS = TopicPartition("orders", 0)
TINY = LogSettings(segment_bytes=1)  # one segment per batch


def full(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def unavailable(*_: Any) -> NoReturn:
    raise UnavailableError("the disk is full")


def full_while(condition: Callable[[], bool], function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: full() if condition() else function(*args, **kwargs)


def append(log: PartitionLog, value: bytes) -> None:
    data = bytearray(encode_batch([Record(value=value)]))
    log.append(data, check_batches(data))
    log.high_watermark = log.end_offset


def values(log: PartitionLog) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = log.start_offset
    while data := log.read(offset, 1 << 20):
        records = [record for at, _ in walk(data) for record in decode_batch(data, at)]
        found += [record.value for record in records]
        offset = records[-1].offset + 1
    return found


def test_a_log_works_without_its_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(index.SparseIndex, "save", full)
        for _ in range(2):
            log = PartitionLog(tmp_path / "p", TINY)
            append(log, b"v")
            append(log, b"v")
            log.close()
        log = PartitionLog(tmp_path / "p", TINY)
        assert values(log) == [b"v"] * 4
        log.close()
    log = PartitionLog(tmp_path / "p", TINY)
    assert values(log) == [b"v"] * 4
    log.close()


def test_a_partly_written_index_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_half(path: Path, content: bytes) -> NoReturn:
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        full()

    log = PartitionLog(tmp_path / "p", TINY)
    append(log, b"v")
    monkeypatch.setattr(Path, "write_bytes", write_half)
    log.close()
    assert [path.suffix for path in (tmp_path / "p").iterdir()] == [".log"]


@pytest.mark.parametrize("fails", ["_open_for_writing", "sync_directory"])
def test_the_open_segment_stays_open_if_the_next_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    log = PartitionLog(tmp_path / "p", LogSettings())
    append(log, b"1")
    with monkeypatch.context() as patch:
        patch.setattr(segment, fails, full)
        with pytest.raises(OSError, match="No space left"):
            log.roll()
    append(log, b"2")
    assert values(log) == [b"1", b"2"]
    log.close()
    log = PartitionLog(tmp_path / "p", LogSettings())
    assert (log.damage, values(log)) == (None, [b"1", b"2"])
    log.close()


def test_deleting_old_records_frees_the_space_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = PartitionLog(tmp_path / "p", TINY)
    for n in range(5):
        append(log, b"%d" % n)
    oldest = log.segments[0].path
    with monkeypatch.context() as patch:
        patch.setattr(partition, "save_start", full_while(oldest.exists, start_offset.save_start))
        log.delete_before(3)
    assert (log.start_offset, values(log)) == (3, [b"3", b"4"])
    log.close()
    log = PartitionLog(tmp_path / "p", TINY)
    assert (log.start_offset, values(log)) == (3, [b"3", b"4"])
    log.close()


def test_a_failed_deletion_starts_the_log_at_its_first_remaining_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PartitionLog(tmp_path / "p", TINY)
    for n in range(5):
        append(log, b"%d" % n)
    with monkeypatch.context() as patch:
        patch.setattr(partition, "save_start", full)
        with pytest.raises(OSError, match="No space left"):
            log.delete_before(3)
    assert (log.start_offset, values(log)) == (1, [b"1", b"2", b"3", b"4"])
    log.delete_before(3)
    assert values(log) == [b"3", b"4"]
    log.close()


def test_records_do_not_use_the_disk_reserve(tmp_path: Path) -> None:
    DiskReserve(tmp_path, reserved_bytes=0).take(1)
    with pytest.raises(OSError, match="No space left on device: 1048576 MB are reserved") as caught:
        DiskReserve(tmp_path, reserved_bytes=1 << 40).take(1)
    assert caught.value.errno == errno.ENOSPC


def test_freed_space_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 100

    def statvfs(_: Path) -> os.statvfs_result:
        return os.statvfs_result((1, 1, 1000, free, free, 0, 0, 0, 0, 255))

    monkeypatch.setattr(disk_reserve.os, "statvfs", statvfs)
    found = DiskReserve(tmp_path, reserved_bytes=10)
    found.take(90)
    free = 10
    with pytest.raises(OSError, match="No space left"):
        found.take(1)
    free = 11
    found.take(1)


def test_a_topic_can_be_deleted_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(tmp_path / "log") as broker, Client(broker.bootstrap_servers) as client:
        client.create_topic("orders", partitions=1)
        client.append(ORDERS, [Record(value=b"before")])
        monkeypatch.setattr(DiskReserve, "take", full)
        with pytest.raises(UnavailableError, match="No space left on device"):
            client.append(ORDERS, [Record(value=b"refused")])
        assert client.fetch(ORDERS, 0) != b""
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        assert admin.delete_topics(["orders"])["orders"].result() is None
        assert "orders" not in admin.list_topics().topics


def test_changes_that_cannot_be_stored_are_rejected_with_an_error_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(tmp_path / "log") as broker, Client(broker.bootstrap_servers) as client:
        client.create_topic("orders", partitions=1)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        monkeypatch.setattr(catalog, "writing", unavailable)
        shorter = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
        orders = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[shorter])
        for requested in (
            admin.create_topics([NewTopic("more", 1)]),
            admin.create_partitions([NewPartitions("orders", 2)]),
            admin.incremental_alter_configs([orders]),
            admin.delete_topics(["orders"]),
        ):
            with pytest.raises(KafkaException) as caught:
                next(iter(requested.values())).result()
            assert caught.value.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR
        assert len(client.topics(["orders"])["orders"].leaders) == 1


def test_the_catalog_reports_a_full_disk_and_keeps_its_content(tmp_path: Path) -> None:
    stored = Catalog(tmp_path / "meta.db")
    stored.create_topic("orders", 1, {})
    pages = stored._durable.execute("pragma page_count").fetchone()[0]
    stored._durable.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(UnavailableError, match=r"cannot write to meta\.db: database or disk is full"):
        for n in range(10_000):
            stored.create_topic(f"more{n}", 1, {"note": "x" * 1000})
    known = set(stored.topics)
    stored.delete_topic("orders")
    stored.close()
    stored = Catalog(tmp_path / "meta.db")
    assert set(stored.topics) == known - {"orders"}
    stored.close()


def test_group_configs_that_cannot_be_written_are_reported_and_the_old_ones_kept(tmp_path: Path) -> None:
    groups = GroupStore(tmp_path / "meta.db")
    groups.set_kind("workers", GroupKind.SHARE)
    groups.set_configs("workers", {"share.auto.offset.reset": "earliest"})
    pages = groups._db.execute("pragma page_count").fetchone()[0]
    groups._db.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(UnavailableError, match=r"cannot write to meta\.db: database or disk is full"):
        groups.set_configs("workers", {f"config.{n}": "x" * 1000 for n in range(1000)})
    groups.close()
    groups = GroupStore(tmp_path / "meta.db")
    assert groups.configs("workers") == {"share.auto.offset.reset": "earliest"}
    assert groups.kinds() == {"workers": GroupKind.SHARE}
    groups.close()


def test_a_group_config_that_cannot_be_written_gets_an_error_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(tmp_path / "log") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        monkeypatch.setattr(store, "writing", unavailable)
        earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        workers = ConfigResource(ResourceType.GROUP, "workers", incremental_configs=[earliest])
        with pytest.raises(KafkaException) as caught:
            next(iter(admin.incremental_alter_configs([workers]).values())).result()
        assert caught.value.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR


def test_members_and_transactions_expire_again_after_the_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = {"expire": Semaphore(0), "tick": Semaphore(0)}
    disk_is_full = True

    def failing(name: str) -> Callable[..., None]:
        def call(*_: Any) -> None:
            rounds[name].release()
            if disk_is_full:
                unavailable()

        return call

    monkeypatch.setattr(server, "EXPIRE_EVERY_S", 0.01)
    monkeypatch.setattr(server, "TRANSACTIONS_EVERY_S", 0.01)
    monkeypatch.setattr(ShareGroups, "expire", failing("expire"))
    monkeypatch.setattr(Coordinator, "tick", failing("tick"))
    with Broker(tmp_path / "log"):
        for done in rounds.values():
            assert done.acquire(timeout=10)
        disk_is_full = False
        for done in rounds.values():
            assert done.acquire(timeout=10)
            assert done.acquire(timeout=10)
