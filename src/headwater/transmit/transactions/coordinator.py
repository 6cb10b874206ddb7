"""The coordinator of transactions: states from `transactions`, kept in `ledger`, carried out in the partitions.

A decision is on the disk before anything follows from it. The markers are then written by a task of its own; one
that could not be written (the process was killed, a disk failed) is tried again at the start and at every tick.
Belongs to the broker's loop.
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
    """Bounds on transactions; Kafka's names and defaults."""

    timeout_ms_max: int = 15 * 60_000
    """transaction.max.timeout.ms"""
    id_expiration_ms: int = 7 * 24 * 3_600_000
    """transactional.id.expiration.ms"""


class Coordinator:
    """All transactional ids of the broker."""

    def __init__(
        self, ledger: TransactionStore, topics: Topics, settings: TransactionSettings, now_ms: Callable[[], int]
    ) -> None:
        self.settings = settings
        self._ledger = ledger
        self._topics = topics
        self._now_ms = now_ms
        self._known = {transaction.id: transaction for transaction in ledger.transactions()}
        self._ending: dict[str, asyncio.Task[None]] = {}

    def get(self, transaction_id: str) -> Transaction | None:
        return self._known.get(transaction_id)

    def all(self) -> Iterable[Transaction]:
        return self._known.values()

    # -- requests ---------------------------------------------------------------------------------------------

    def begin_producer(
        self, transaction_id: str, claim: ProducerClaim, timeout_ms: int, new_producer_id: Callable[[], int]
    ) -> Outcome:
        """Give the id to a producer; while an older one's transaction is being aborted, CONCURRENT."""
        known = self._known.get(transaction_id)
        outcome = transactions.begin_producer(
            known, transaction_id, claim, timeout_ms, self._now_ms(), new_producer_id
        )
        outcome = self._keep(outcome)
        if isinstance(outcome, Transaction) and outcome.is_decided:
            self._carry_out(outcome)
            return TransactionError.CONCURRENT
        return outcome

    def add_partitions(
        self, transaction_id: str, claim: ProducerClaim, partitions: Iterable[TopicPartition]
    ) -> Outcome:
        """Take partitions into the transaction."""
        known = self._known.get(transaction_id)
        return self._keep(transactions.add(known, claim, self._now_ms(), partitions=partitions))

    def add_group(self, transaction_id: str, claim: ProducerClaim, group: str) -> Outcome:
        """Take a group's offsets into the transaction."""
        known = self._known.get(transaction_id)
        return self._keep(transactions.add(known, claim, self._now_ms(), groups=[group]))

    def check_write(
        self, transaction_id: str, claim: ProducerClaim, partition: TopicPartition
    ) -> TransactionError | None:
        """Whether a producer may write to a partition within its transaction."""
        return transactions.check_write(self._known.get(transaction_id), claim, partition)

    def check_offsets(self, transaction_id: str, claim: ProducerClaim, group: str) -> TransactionError | None:
        """Whether a producer may commit a group's offsets within its transaction."""
        return transactions.check_offsets(self._known.get(transaction_id), claim, group)

    def add_offsets(
        self, transaction_id: str, group: str, offsets: Iterable[tuple[TopicPartition, CommittedOffset]]
    ) -> None:
        """Keep a group's offsets until the transaction is decided."""
        self._ledger.add_offsets(transaction_id, group, offsets)

    def pending_offsets(self, group: str) -> set[TopicPartition]:
        """Partitions whose committed offset may still change by a transaction that is not decided."""
        has_any = any(
            group in known.groups for known in self._known.values() if known.state is TransactionState.ONGOING
        )
        return self._ledger.pending(group) if has_any else set()

    async def end(self, transaction_id: str, claim: ProducerClaim, *, commit: bool) -> TransactionError | None:
        """Decide a transaction and carry the decision out: readers see it when this returns."""
        known = self._known.get(transaction_id)
        outcome = self._keep(transactions.end(known, claim, self._now_ms(), commit=commit))
        if isinstance(outcome, TransactionError):
            return outcome
        if outcome.is_decided:
            await asyncio.shield(self._carry_out(outcome))
        return None

    # -- what happens by itself -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Carry out what is decided but not done, abort what has taken too long, forget what is not used."""
        now_ms = self._now_ms()
        for known in list(self._known.values()):
            late = transactions.time_out(known, now_ms)
            if late is not None:
                logger.warning(
                    "aborting transaction %r of producer %d: it was open for more than %d ms",
                    known.id, known.producer_id, known.timeout_ms,
                )  # fmt: skip
                self._keep(late)
                self._carry_out(late)
            elif known.is_decided:
                self._carry_out(known)
            elif transactions.is_expired(known, now_ms, self.settings.id_expiration_ms):
                self._ledger.forget(known.id)
                del self._known[known.id]

    async def close(self) -> None:
        """Finish what is being carried out, and close the file."""
        await asyncio.gather(*self._ending.values())
        self._ledger.close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _keep(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Transaction) and self._known.get(outcome.id) != outcome:
            self._ledger.save(outcome)
            self._known[outcome.id] = outcome
        return outcome

    def _carry_out(self, decided: Transaction) -> "asyncio.Task[None]":
        running = self._ending.get(decided.id)
        if running is None:
            running = self._ending[decided.id] = asyncio.create_task(self._write_markers(decided))
            running.add_done_callback(lambda _: self._ending.pop(decided.id, None))
        return running

    async def _write_markers(self, decided: Transaction) -> None:
        marker = Marker(producer_id=decided.producer_id, producer_epoch=decided.epoch, is_commit=decided.is_commit)
        written = []
        try:
            for name in sorted(decided.partitions):
                partition = self._topics.partition(name.topic, name.partition)
                if partition is None:
                    continue  # the topic was deleted meanwhile
                with suppress(RefusedBatch):  # a newer epoch has written there: nothing of this one is open
                    appended = self._topics.append_marker(partition, marker, now_ms=self._now_ms())
                    written.append((partition, appended.next_offset))
            for partition, offset in written:
                await partition.wait_durable(offset)
        except (OSError, HeadwaterError) as error:
            logger.error("cannot end transaction %r yet, trying again: %s", decided.id, error)
            return
        self._keep(transactions.complete(decided, self._now_ms()))
