"""The transaction coordinator: state changes from `transaction`, stored in `store`, completed in the partitions.

A decision is on disk before its markers are written, which is done in a separate task. Markers that could not be
written (the process was killed, a disk failed) are retried at the start and at every tick. Runs in the broker's
loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from headwater.errors import HeadwaterError
from headwater.record import TopicPartition
from headwater.transmit.records.control import Marker
from headwater.transmit.topics.catalog import CommittedOffset
from headwater.transmit.topics.partition import RefusedBatch
from headwater.transmit.topics.topics import Topics
from headwater.transmit.transactions import transaction as transactions
from headwater.transmit.transactions.store import TransactionStore
from headwater.transmit.transactions.transaction import (
    Outcome,
    ProducerClaim,
    Transaction,
    TransactionError,
    TransactionState,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Limits of transactions, with Kafka's names and defaults."""

    timeout_ms_max: int = 15 * 60_000
    """transaction.max.timeout.ms"""
    id_expiration_ms: int = 7 * 24 * 3_600_000
    """transactional.id.expiration.ms"""


class Coordinator:
    """All transactional ids of the broker."""

    def __init__(
        self, store: TransactionStore, topics: Topics, settings: TransactionSettings, now_ms: Callable[[], int]
    ) -> None:
        self.settings = settings
        self._store = store
        self._topics = topics
        self._now_ms = now_ms
        self._known = {transaction.id: transaction for transaction in store.transactions()}
        self._completing: dict[str, asyncio.Task[None]] = {}

    def get(self, transaction_id: str) -> Transaction | None:
        return self._known.get(transaction_id)

    def all(self) -> Iterable[Transaction]:
        return self._known.values()

    # -- requests ---------------------------------------------------------------------------------------------

    def begin_producer(
        self, transaction_id: str, claim: ProducerClaim, timeout_ms: int, new_producer_id: Callable[[], int]
    ) -> Outcome:
        """Give the id to a producer; return CONCURRENT while the previous producer's transaction is aborted."""
        known = self._known.get(transaction_id)
        outcome = transactions.begin_producer(
            known, transaction_id, claim, timeout_ms, self._now_ms(), new_producer_id
        )
        outcome = self._save(outcome)
        if isinstance(outcome, Transaction) and outcome.is_decided:
            self._complete(outcome)
            return TransactionError.CONCURRENT
        return outcome

    def add_partitions(
        self, transaction_id: str, claim: ProducerClaim, partitions: Iterable[TopicPartition]
    ) -> Outcome:
        """Add partitions to the transaction."""
        known = self._known.get(transaction_id)
        return self._save(transactions.add(known, claim, self._now_ms(), partitions=partitions))

    def add_group(self, transaction_id: str, claim: ProducerClaim, group: str) -> Outcome:
        """Add a group to the transaction, to commit its offsets."""
        known = self._known.get(transaction_id)
        return self._save(transactions.add(known, claim, self._now_ms(), groups=[group]))

    def check_write(
        self, transaction_id: str, claim: ProducerClaim, partition: TopicPartition
    ) -> TransactionError | None:
        """Return an error unless the producer may write to the partition in its transaction."""
        return transactions.check_write(self._known.get(transaction_id), claim, partition)

    def check_offsets(self, transaction_id: str, claim: ProducerClaim, group: str) -> TransactionError | None:
        """Return an error unless the producer may commit the group's offsets in its transaction."""
        return transactions.check_offsets(self._known.get(transaction_id), claim, group)

    def add_offsets(
        self, transaction_id: str, group: str, offsets: Iterable[tuple[TopicPartition, CommittedOffset]]
    ) -> None:
        """Store a group's offsets until the transaction is decided."""
        self._store.add_offsets(transaction_id, group, offsets)

    def pending_offsets(self, group: str) -> set[TopicPartition]:
        """Return the partitions whose committed offset an undecided transaction may change."""
        has_any = any(
            group in known.groups for known in self._known.values() if known.state is TransactionState.ONGOING
        )
        return self._store.pending(group) if has_any else set()

    async def end(self, transaction_id: str, claim: ProducerClaim, *, commit: bool) -> TransactionError | None:
        """Decide a transaction and complete it; the outcome is visible to readers when this returns."""
        known = self._known.get(transaction_id)
        outcome = self._save(transactions.end(known, claim, self._now_ms(), commit=commit))
        if isinstance(outcome, TransactionError):
            return outcome
        if outcome.is_decided:
            await asyncio.shield(self._complete(outcome))
        return None

    # -- periodic work ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Complete decided transactions, abort those that exceed their timeout, delete unused ids."""
        now_ms = self._now_ms()
        for known in list(self._known.values()):
            aborted = transactions.time_out(known, now_ms)
            if aborted is not None:
                logger.warning(
                    "aborting transaction %r of producer %d: it exceeds its timeout of %d ms",
                    known.id, known.producer_id, known.timeout_ms,
                )  # fmt: skip
                self._save(aborted)
                self._complete(aborted)
            elif known.is_decided:
                self._complete(known)
            elif transactions.is_expired(known, now_ms, self.settings.id_expiration_ms):
                self._store.delete(known.id)
                del self._known[known.id]

    async def close(self) -> None:
        """Wait for transactions that are being completed, and close the store."""
        await asyncio.gather(*self._completing.values())
        self._store.close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _save(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Transaction) and self._known.get(outcome.id) != outcome:
            self._store.save(outcome)
            self._known[outcome.id] = outcome
        return outcome

    def _complete(self, decided: Transaction) -> "asyncio.Task[None]":
        running = self._completing.get(decided.id)
        if running is None:
            running = self._completing[decided.id] = asyncio.create_task(self._write_markers(decided))
            running.add_done_callback(lambda _: self._completing.pop(decided.id, None))
        return running

    async def _write_markers(self, decided: Transaction) -> None:
        marker = Marker(producer_id=decided.producer_id, producer_epoch=decided.epoch, is_commit=decided.is_commit)
        written = []
        try:
            for name in sorted(decided.partitions):
                partition = self._topics.partition(name.topic, name.partition)
                if partition is None:
                    continue  # the topic was deleted meanwhile
                with suppress(RefusedBatch):  # a newer epoch has written there, so this transaction is not open
                    appended = self._topics.append_marker(partition, marker, now_ms=self._now_ms())
                    written.append((partition, appended.next_offset))
            for partition, offset in written:
                await partition.wait_durable(offset)
        except (OSError, HeadwaterError) as error:
            logger.error("cannot complete transaction %r, retrying: %s", decided.id, error)
            return
        self._save(transactions.complete(decided, self._now_ms()))
