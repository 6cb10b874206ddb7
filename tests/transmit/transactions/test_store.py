"""Transactions on disk: states are restored, and offsets follow the decision."""

from dataclasses import replace
from pathlib import Path

import pytest

from headwater.record import TopicPartition
from headwater.transmit.topics.catalog import Catalog, CommittedOffset
from headwater.transmit.transactions.store import TransactionStore
from headwater.transmit.transactions.transaction import Transaction, TransactionState

ORDERS = TopicPartition("orders", 0)
ONGOING = Transaction(
    id="t", producer_id=7, epoch=3, last_epoch=2, timeout_ms=1000, state=TransactionState.ONGOING,
    partitions=frozenset({ORDERS, TopicPartition("orders", 1)}),
    groups=frozenset({"g"}), started_ms=5, updated_ms=6,
)  # fmt: skip


@pytest.mark.parametrize("state", TransactionState)
def test_a_stored_transaction_is_loaded_unchanged(tmp_path: Path, state: TransactionState) -> None:
    Catalog(tmp_path / "meta.db").close()
    store = TransactionStore(tmp_path / "meta.db")
    store.save(replace(ONGOING, state=state))
    store.close()
    store = TransactionStore(tmp_path / "meta.db")
    assert store.transactions() == [replace(ONGOING, state=state)]
    store.delete("t")
    assert store.transactions() == []
    store.close()


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_offsets_are_committed_or_discarded_with_the_decision(tmp_path: Path, state: TransactionState) -> None:
    catalog, store = Catalog(tmp_path / "meta.db"), TransactionStore(tmp_path / "meta.db")
    before = CommittedOffset(offset=1, leader_epoch=0, metadata="old")
    after = CommittedOffset(offset=9, leader_epoch=0, metadata="new")
    catalog.create_topic("orders", 1, {})
    catalog.commit_offsets("g", [(ORDERS, before)], now_ms=0)
    store.save(ONGOING)
    store.add_offsets("t", "g", [(ORDERS, after), (TopicPartition("deleted", 0), after)])
    store.add_offsets("other", "h", [(ORDERS, after)])
    assert catalog.committed_offsets("g") == {ORDERS: before}
    assert store.pending("g") == {ORDERS, TopicPartition("deleted", 0)}
    store.save(replace(ONGOING, state=state))
    assert catalog.committed_offsets("g") == {
        ORDERS: after if state is TransactionState.PREPARE_COMMIT else before
    }
    assert store.pending("g") == set()
    assert store.pending("h") == {ORDERS}
    store.close()
    catalog.close()
