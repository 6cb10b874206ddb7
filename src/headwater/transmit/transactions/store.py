"""Transactions on the disk, in the broker's `meta.db`: their states, and the offsets that wait for their ends.

What is written here is on the disk when a call returns, but for the completion of a transaction: losing that
only has its markers written once more. Used from the broker's thread only.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from headwater.record import TopicPartition
from headwater.transmit.metadb import connect, writing
from headwater.transmit.topics.catalog import CommittedOffset
from headwater.transmit.transactions.transaction import Transaction, TransactionState

_SCHEMA = """
create table if not exists transactions (
    id text primary key, producer_id integer not null, epoch integer not null, last_epoch integer not null,
    timeout_ms integer not null, state text not null, partitions text not null, groups text not null,
    started_ms integer not null, updated_ms integer not null);
create table if not exists pending_offsets (
    transaction_id text, group_id text, topic text, partition integer, offset integer not null,
    leader_epoch integer not null, metadata text,
    primary key (transaction_id, group_id, topic, partition)) without rowid;
"""


class TransactionStore:
    """Every transactional id, in the file at `path`."""

    def __init__(self, path: Path) -> None:
        self._durable = connect(path, _SCHEMA, synchronous="full")
        self._quick = connect(path, _SCHEMA, synchronous="normal")

    def transactions(self) -> list[Transaction]:
        """All that are known."""
        found = self._durable.execute(
            "select id, producer_id, epoch, last_epoch, timeout_ms, state, partitions, groups, started_ms, "
            "updated_ms from transactions"
        )
        return [
            Transaction(
                id=id_,
                producer_id=producer_id,
                epoch=epoch,
                last_epoch=last_epoch,
                timeout_ms=timeout_ms,
                state=TransactionState(state),
                partitions=frozenset(TopicPartition(*tp) for tp in json.loads(partitions)),
                groups=frozenset(json.loads(groups)),
                started_ms=started_ms,
                updated_ms=updated_ms,
            )
            for id_, producer_id, epoch, last_epoch, timeout_ms, state, partitions, groups, started_ms, updated_ms
            in found
        ]  # fmt: skip

    def save(self, transaction: Transaction) -> None:
        """Keep a transaction's state. A decision settles its offsets too: all of it happens, or nothing."""
        quickly = not (
            transaction.is_decided or transaction.state in (TransactionState.EMPTY, TransactionState.ONGOING)
        )
        with writing(self._quick if quickly else self._durable) as db:
            db.execute(
                "insert or replace into transactions values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    transaction.id,
                    transaction.producer_id,
                    transaction.epoch,
                    transaction.last_epoch,
                    transaction.timeout_ms,
                    transaction.state.value,
                    json.dumps(sorted(transaction.partitions)),
                    json.dumps(sorted(transaction.groups)),
                    transaction.started_ms,
                    transaction.updated_ms,
                ),
            )
            if transaction.state is TransactionState.PREPARE_COMMIT:
                db.execute(
                    "insert or replace into offsets (group_id, topic, partition, offset, leader_epoch, metadata, "
                    "committed_ms) select group_id, topic, partition, offset, leader_epoch, metadata, ? "
                    "from pending_offsets where transaction_id = ? "
                    "and topic in (select name from topics)",  # it may have been deleted meanwhile
                    (transaction.updated_ms, transaction.id),
                )
            if transaction.is_decided:
                db.execute("delete from pending_offsets where transaction_id = ?", (transaction.id,))

    def forget(self, transaction_id: str) -> None:
        """Forget a transactional id."""
        with writing(self._quick) as db:
            db.execute("delete from transactions where id = ?", (transaction_id,))

    def add_offsets(
        self, transaction_id: str, group: str, offsets: Iterable[tuple[TopicPartition, CommittedOffset]]
    ) -> None:
        """Keep offsets that are committed with the transaction, or dropped with it."""
        with writing(self._durable) as db:
            db.executemany(
                "insert or replace into pending_offsets values (?, ?, ?, ?, ?, ?, ?)",
                (
                    (transaction_id, group, tp.topic, tp.partition, at.offset, at.leader_epoch, at.metadata)
                    for tp, at in offsets
                ),
            )

    def pending(self, group: str) -> set[TopicPartition]:
        """Partitions for which a transaction that is not decided holds offsets of the group."""
        found = self._quick.execute("select topic, partition from pending_offsets where group_id = ?", (group,))
        return {TopicPartition(topic, partition) for topic, partition in found}

    def close(self) -> None:
        self._quick.close()
        self._durable.close()
