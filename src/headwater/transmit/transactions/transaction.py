"""The states of a transaction, and functions from one state to the next. Pure: the time is passed in.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort  -> Ongoing ...

A Prepare state is the decision: once it is on disk, the transaction is completed, also after a crash, by writing
markers to its partitions. A transactional id has one producer at a time. A later producer gets the next epoch, and
requests with an older epoch are rejected, which fences zombies.
https://cwiki.apache.org/confluence/display/KAFKA/KIP-98, the first version of its protocol ("TV1").
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from headwater.record import TopicPartition

EPOCH_MAX = 2**15 - 2
"""One below the largest int16, so that the last producer of an id can still be fenced."""
NO_PRODUCER, NO_EPOCH = -1, -1


class TransactionState(StrEnum):
    """The state of a transaction, with Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


class TransactionError(Enum):
    """Reasons to reject a request."""

    UNKNOWN_PRODUCER = "the transactional id belongs to another producer id"
    FENCED = "a newer producer has taken over"
    CONCURRENT = "the previous transaction is still being completed"
    INVALID_STATE = "not allowed in the transaction's current state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The state of a transactional id."""

    id: str
    producer_id: int
    epoch: int
    last_epoch: int = NO_EPOCH
    """The previous epoch, by which a retried InitProducerId is recognised."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()
    """Consumer groups whose offsets are committed with it."""
    started_ms: int = -1
    updated_ms: int = -1

    @property
    def is_decided(self) -> bool:
        """Return whether it is decided but not completed."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_commit(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerClaim:
    """The producer id and epoch that a client claims to have."""

    producer_id: int = NO_PRODUCER
    epoch: int = NO_EPOCH


Outcome = Transaction | TransactionError


def begin_producer(
    known: Transaction | None,
    transactional_id: str,
    claim: ProducerClaim,
    timeout_ms: int,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> Outcome:
    """Give a transactional id to a producer: the next epoch, or a new producer id when the epochs are used up.

    If the previous producer has an ongoing transaction, the outcome is the decision to abort it, and the new
    producer has to retry.
    """
    if known is None:
        return Transaction(
            id=transactional_id, producer_id=new_producer_id(), epoch=0, timeout_ms=timeout_ms, updated_ms=now_ms
        )
    if known.is_decided:
        return TransactionError.CONCURRENT
    if claim.producer_id != NO_PRODUCER:
        if claim.producer_id != known.producer_id:
            return TransactionError.FENCED
        if known.state is not TransactionState.ONGOING and claim.epoch == known.last_epoch:
            return known  # a retry, because the response was lost
        if claim.epoch != known.epoch:
            return TransactionError.FENCED
    if known.state is TransactionState.ONGOING:
        return _fence(known, now_ms)
    ready = replace(
        known,
        state=TransactionState.EMPTY,
        timeout_ms=timeout_ms,
        updated_ms=now_ms,
        last_epoch=known.epoch,
        started_ms=-1,
    )
    if known.epoch >= EPOCH_MAX:
        return replace(ready, producer_id=new_producer_id(), epoch=0, last_epoch=NO_EPOCH)
    return replace(ready, epoch=known.epoch + 1)


def check_claim(known: Transaction | None, claim: ProducerClaim) -> TransactionError | None:
    """Return an error unless the client is the current producer of the transactional id."""
    if known is None or claim.producer_id != known.producer_id:
        return TransactionError.UNKNOWN_PRODUCER
    return None if claim.epoch == known.epoch else TransactionError.FENCED


def check_write(
    known: Transaction | None, claim: ProducerClaim, partition: TopicPartition
) -> TransactionError | None:
    """Return an error unless the producer may write to the partition in its transaction."""
    error = check_claim(known, claim)
    if error is not None or known is None:
        return error
    if known.state is not TransactionState.ONGOING or partition not in known.partitions:
        return TransactionError.INVALID_STATE
    return None


def add(
    known: Transaction | None,
    claim: ProducerClaim,
    now_ms: int,
    *,
    partitions: Iterable[TopicPartition] = (),
    groups: Iterable[str] = (),
) -> Outcome:
    """Add partitions or groups to the transaction; the first ones start it."""
    error = check_claim(known, claim)
    if error is not None or known is None:
        return error or TransactionError.UNKNOWN_PRODUCER
    if known.is_decided:
        return TransactionError.CONCURRENT
    if known.state is TransactionState.ONGOING:
        grown = replace(known, partitions=known.partitions | {*partitions}, groups=known.groups | {*groups})
        return known if grown == known else replace(grown, updated_ms=now_ms)
    return replace(
        known,
        state=TransactionState.ONGOING,
        partitions=frozenset(partitions),
        groups=frozenset(groups),
        started_ms=now_ms,
        updated_ms=now_ms,
    )


def check_offsets(known: Transaction | None, claim: ProducerClaim, group: str) -> TransactionError | None:
    """Return an error unless the producer may commit the group's offsets in its transaction."""
    error = check_claim(known, claim)
    if error is not None or known is None:
        return error
    if known.is_decided:
        return TransactionError.CONCURRENT
    if known.state is not TransactionState.ONGOING or group not in known.groups:
        return TransactionError.INVALID_STATE
    return None


def end(known: Transaction | None, claim: ProducerClaim, now_ms: int, *, commit: bool) -> Outcome:
    """Decide a transaction; repeating the same decision changes nothing."""
    error = check_claim(known, claim)
    if error is not None or known is None:
        return error or TransactionError.UNKNOWN_PRODUCER
    if known.state is TransactionState.ONGOING:
        return replace(
            known,
            state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            updated_ms=now_ms,
        )
    if known.state is TransactionState.EMPTY or known.is_commit != commit:
        return TransactionError.INVALID_STATE
    return TransactionError.CONCURRENT if known.is_decided else known


def complete(known: Transaction, now_ms: int) -> Transaction:
    """Complete a decided transaction, whose markers are all written."""
    assert known.is_decided, f"{known.id} is {known.state}"
    state = TransactionState.COMPLETE_COMMIT if known.is_commit else TransactionState.COMPLETE_ABORT
    return replace(known, state=state, partitions=frozenset(), groups=frozenset(), updated_ms=now_ms)


def time_out(known: Transaction, now_ms: int) -> Transaction | None:
    """Decide to abort a transaction that exceeds its timeout, and fence its producer; None if it does not."""
    if known.state is not TransactionState.ONGOING or now_ms - known.started_ms < known.timeout_ms:
        return None
    return _fence(known, now_ms)


def is_expired(known: Transaction, now_ms: int, after_ms: int) -> bool:
    """Return whether a transactional id has been unused for `after_ms` and can be deleted."""
    idle = known.state is not TransactionState.ONGOING and not known.is_decided
    return idle and now_ms - known.updated_ms >= after_ms


def _fence(known: Transaction, now_ms: int) -> Transaction:
    return replace(known, state=TransactionState.PREPARE_ABORT, epoch=known.epoch + 1, updated_ms=now_ms)
