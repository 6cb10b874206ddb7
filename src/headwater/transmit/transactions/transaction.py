"""What a transaction goes through, as a function from one state to the next. Pure: time is handed in.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort  -> Ongoing ...

Reaching a Prepare state is the decision: once it is on the disk, what remains (markers in the partitions) is only
work, and is done after a crash too. A transactional id has one producer at a time. Who comes later gets the next
epoch, and everything that carries an older one is refused: the zombie is fenced.
https://cwiki.apache.org/confluence/display/KAFKA/KIP-98, the first of its protocols ("TV1").
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from headwater.record import TopicPartition

EPOCH_MAX = 2**15 - 2
"""One below the largest number that fits, so that the last producer of an id can still be fenced."""
NO_PRODUCER, NO_EPOCH = -1, -1


class TransactionState(StrEnum):
    """Where a transaction is; Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


class TransactionError(Enum):
    """Why a request cannot be met."""

    UNKNOWN_PRODUCER = "the transactional id belongs to another producer id"
    FENCED = "a newer producer has taken over"
    CONCURRENT = "the transaction before is still being ended"
    INVALID_STATE = "this cannot be done in the transaction's state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What is known of a transactional id."""

    id: str
    producer_id: int
    epoch: int
    last_epoch: int = NO_EPOCH
    """The epoch before, by which a repeated InitProducerId is recognised."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()
    """Consumer groups whose offsets are committed with it."""
    started_ms: int = -1
    updated_ms: int = -1

    @property
    def is_decided(self) -> bool:
        """Whether its end is settled but not yet carried out."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_commit(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerClaim:
    """The identity that a client says it has."""

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
    """Give a transactional id to a producer: the next epoch, or where those are used up a new producer id.

    An ongoing transaction of the producer before is decided to abort first; the outcome is then that decision, and
    the new producer asks again.
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
            return known  # the same request again: its answer was lost
        if claim.epoch != known.epoch:
            return TransactionError.FENCED
    if known.state is TransactionState.ONGOING:
        return _fence(known, now_ms)
    fresh = replace(
        known,
        state=TransactionState.EMPTY,
        timeout_ms=timeout_ms,
        updated_ms=now_ms,
        last_epoch=known.epoch,
        started_ms=-1,
    )
    if known.epoch >= EPOCH_MAX:
        return replace(fresh, producer_id=new_producer_id(), epoch=0, last_epoch=NO_EPOCH)
    return replace(fresh, epoch=known.epoch + 1)


def check_claim(known: Transaction | None, claim: ProducerClaim) -> TransactionError | None:
    """Whether a client is the producer that its transactional id has now."""
    if known is None or claim.producer_id != known.producer_id:
        return TransactionError.UNKNOWN_PRODUCER
    return None if claim.epoch == known.epoch else TransactionError.FENCED


def check_write(
    known: Transaction | None, claim: ProducerClaim, partition: TopicPartition
) -> TransactionError | None:
    """Whether a producer may write to a partition within its transaction."""
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
    """Take partitions or groups into the transaction; the first ones start it."""
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
    """Whether a producer may commit a group's offsets within its transaction."""
    error = check_claim(known, claim)
    if error is not None or known is None:
        return error
    if known.is_decided:
        return TransactionError.CONCURRENT
    if known.state is not TransactionState.ONGOING or group not in known.groups:
        return TransactionError.INVALID_STATE
    return None


def end(known: Transaction | None, claim: ProducerClaim, now_ms: int, *, commit: bool) -> Outcome:
    """Decide a transaction; deciding it again the same way changes nothing."""
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
    """A decided transaction whose markers are all written."""
    assert known.is_decided, f"{known.id} is {known.state}"
    state = TransactionState.COMPLETE_COMMIT if known.is_commit else TransactionState.COMPLETE_ABORT
    return replace(known, state=state, partitions=frozenset(), groups=frozenset(), updated_ms=now_ms)


def time_out(known: Transaction, now_ms: int) -> Transaction | None:
    """Decide to abort a transaction that has been open for too long, and fence its producer."""
    if known.state is not TransactionState.ONGOING or now_ms - known.started_ms < known.timeout_ms:
        return None
    return _fence(known, now_ms)


def is_expired(known: Transaction, now_ms: int, after_ms: int) -> bool:
    """Whether a transactional id has not been used for so long that it can be forgotten."""
    idle = known.state is not TransactionState.ONGOING and not known.is_decided
    return idle and now_ms - known.updated_ms >= after_ms


def _fence(known: Transaction, now_ms: int) -> Transaction:
    return replace(known, state=TransactionState.PREPARE_ABORT, epoch=known.epoch + 1, updated_ms=now_ms)
