"""The broker's catalog of topics, offsets and producer ids."""

from pathlib import Path

import pytest

from headwater.errors import InvalidError
from headwater.record import TopicPartition
from headwater.transmit.topics.catalog import Catalog, CommittedOffset, check_topic_name

ORDERS = TopicPartition("orders", 0)


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(offset=offset, leader_epoch=0, metadata="nöte")


def test_topics_offsets_and_producer_ids_survive_a_restart(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "meta.db")
    entry = catalog.create_topic("orders", 3, {"cleanup.policy": "compact"})
    catalog.grow_topic("orders", 4)
    catalog.commit_offsets("g", [(ORDERS, at(1)), (TopicPartition("orders", 1), at(2))], now_ms=5)
    catalog.commit_offsets("g", [(ORDERS, at(7))], now_ms=6)
    first_id = catalog.next_producer_id()
    catalog.close()
    catalog = Catalog(tmp_path / "meta.db")
    assert catalog.topic_by_id(entry.id) == catalog.topics["orders"]
    assert catalog.topics["orders"].partitions == 4
    assert catalog.topics["orders"].configs == {"cleanup.policy": "compact"}
    assert catalog.committed_offsets("g") == {ORDERS: at(7), TopicPartition("orders", 1): at(2)}
    assert catalog.next_producer_id() > first_id
    catalog.close()


def test_deleting_a_topic_deletes_its_committed_offsets(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "meta.db")
    for name in ("orders", "other"):
        catalog.create_topic(name, 1, {})
        catalog.commit_offsets("g", [(TopicPartition(name, 0), at(1))], now_ms=0)
    catalog.delete_topic("orders")
    assert catalog.committed_offsets("g") == {TopicPartition("other", 0): at(1)}
    catalog.delete_group("g")
    assert catalog.groups() == []
    catalog.close()


def test_a_failed_commit_stores_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "meta.db")
    with pytest.raises(OverflowError):
        catalog.commit_offsets("g", [(ORDERS, at(1)), (TopicPartition("orders", 1), at(2**70))], now_ms=0)
    assert catalog.committed_offsets("g") == {}
    catalog.commit_offsets("g", [(ORDERS, at(2))], now_ms=0)
    assert catalog.committed_offsets("g") == {ORDERS: at(2)}
    catalog.close()


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "a\n", "x" * 250, "a\x00"])
def test_names_that_kafka_forbids_are_rejected(name: str) -> None:
    with pytest.raises(InvalidError):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["a", "...", "A-b_c.9", "x" * 249, "__consumer_offsets"])
def test_names_that_kafka_allows_are_accepted(name: str) -> None:
    check_topic_name(name)


def test_a_topic_is_found_by_its_id_until_it_is_deleted(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "meta.db")
    first = catalog.create_topic("t", 1, {})
    assert catalog.topic_by_id(first.id) == first
    grown = catalog.grow_topic("t", 2)
    assert catalog.topic_by_id(first.id) == grown
    catalog.delete_topic("t")
    assert catalog.topic_by_id(first.id) is None
    again = catalog.create_topic("t", 1, {})
    assert catalog.topic_by_id(first.id) is None
    assert catalog.topic_by_id(again.id) == again
    catalog.close()
