"""Transactions on disk, in the broker's `meta.db`: their states, and offsets to commit when they end.

Changes are on disk when a call returns, except for the completion of a transaction. If that is lost, the markers
are written again. Used from the broker's thread only.
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
    """The transactional ids in the file at `path`."""

    def __init__(self, path: Path) -> None:
        self._durable = connect(path, _SCHEMA, synchronous="full")
        self._quick = connect(path, _SCHEMA, synchronous="normal")

    def transactions(self) -> list[Transaction]:
        """Return all transactions."""
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
        """Store a transaction's state; if it is decided, also commit or discard its offsets, atomically."""
        is_complete = not (
            transaction.is_decided or transaction.state in (TransactionState.EMPTY, TransactionState.ONGOING)
        )
        with writing(self._quick if is_complete else self._durable) as db:
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
                    "and topic in (select name from topics)",  # a topic may have been deleted meanwhile
                    (transaction.updated_ms, transaction.id),
                )
            if transaction.is_decided:
                db.execute("delete from pending_offsets where transaction_id = ?", (transaction.id,))

    def delete(self, transaction_id: str) -> None:
        """Delete a transactional id."""
        with writing(self._quick) as db:
            db.execute("delete from transactions where id = ?", (transaction_id,))

    def add_offsets(
        self, transaction_id: str, group: str, offsets: Iterable[tuple[TopicPartition, CommittedOffset]]
    ) -> None:
        """Store offsets to commit when the transaction commits, or to discard when it aborts."""
        with writing(self._durable) as db:
            db.executemany(
                "insert or replace into pending_offsets values (?, ?, ?, ?, ?, ?, ?)",
                (
                    (transaction_id, group, tp.topic, tp.partition, at.offset, at.leader_epoch, at.metadata)
                    for tp, at in offsets
                ),
            )

    def pending(self, group: str) -> set[TopicPartition]:
        """Return the partitions for which an undecided transaction has offsets of the group."""
        found = self._quick.execute("select topic, partition from pending_offsets where group_id = ?", (group,))
        return {TopicPartition(topic, partition) for topic, partition in found}

    def close(self) -> None:
        self._quick.close()
        self._durable.close()
