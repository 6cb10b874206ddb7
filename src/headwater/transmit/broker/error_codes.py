"""Kafka's error codes for the errors of topics, groups and transactions."""

from headwater.errors import ConflictError, CorruptError, HeadwaterError, InvalidError, UnavailableError
from headwater.transmit.configs import InvalidConfig
from headwater.transmit.groups.classic_rounds import GroupError
from headwater.transmit.groups.consumer import ConsumerError
from headwater.transmit.groups.share.members import MemberError, ShareSessionError
from headwater.transmit.groups.share.share_partition import ShareError
from headwater.transmit.topics.admission import TooLarge
from headwater.transmit.topics.catalog import check_topic_name
from headwater.transmit.topics.conditional_append import ExpectationFailed
from headwater.transmit.topics.producers import Refusal
from headwater.transmit.topics.topics import RefusedBatch
from headwater.transmit.transactions.transaction import TransactionError
from headwater.transmit.wire.codes import Code

CLASSIC_GROUP_CODES = {
    GroupError.NONE: Code.NONE,
    GroupError.UNKNOWN_MEMBER: Code.UNKNOWN_MEMBER_ID,
    GroupError.ILLEGAL_GENERATION: Code.ILLEGAL_GENERATION,
    GroupError.REBALANCE_IN_PROGRESS: Code.REBALANCE_IN_PROGRESS,
    GroupError.INCONSISTENT_PROTOCOL: Code.INCONSISTENT_GROUP_PROTOCOL,
    GroupError.MEMBER_ID_REQUIRED: Code.MEMBER_ID_REQUIRED,
    GroupError.FENCED_INSTANCE: Code.FENCED_INSTANCE_ID,
    GroupError.GROUP_FULL: Code.GROUP_MAX_SIZE_REACHED,
    GroupError.NON_EMPTY: Code.NON_EMPTY_GROUP,
    GroupError.NOT_FOUND: Code.GROUP_ID_NOT_FOUND,
}

CONSUMER_GROUP_CODES = {
    ConsumerError.UNKNOWN_MEMBER: Code.UNKNOWN_MEMBER_ID,
    ConsumerError.FENCED_EPOCH: Code.FENCED_MEMBER_EPOCH,
    ConsumerError.STALE_EPOCH: Code.STALE_MEMBER_EPOCH,
    ConsumerError.FENCED_INSTANCE: Code.FENCED_INSTANCE_ID,
    ConsumerError.UNRELEASED_INSTANCE: Code.UNRELEASED_INSTANCE_ID,
    ConsumerError.UNSUPPORTED_ASSIGNOR: Code.UNSUPPORTED_ASSIGNOR,
    ConsumerError.INVALID_REGEX: Code.INVALID_REGULAR_EXPRESSION,
    ConsumerError.INVALID_REQUEST: Code.INVALID_REQUEST,
    ConsumerError.GROUP_FULL: Code.GROUP_MAX_SIZE_REACHED,
}

SHARE_MEMBER_CODES = {
    MemberError.UNKNOWN_MEMBER: Code.UNKNOWN_MEMBER_ID,
    MemberError.FENCED_EPOCH: Code.FENCED_MEMBER_EPOCH,
    MemberError.GROUP_FULL: Code.GROUP_MAX_SIZE_REACHED,
    MemberError.INVALID_REQUEST: Code.INVALID_REQUEST,
}
SHARE_SESSION_CODES = {
    ShareSessionError.NOT_FOUND: Code.SHARE_SESSION_NOT_FOUND,
    ShareSessionError.INVALID_EPOCH: Code.INVALID_SHARE_SESSION_EPOCH,
    ShareSessionError.INVALID_REQUEST: Code.INVALID_REQUEST,
}
ACKNOWLEDGEMENT_CODES = {
    None: Code.NONE,
    ShareError.INVALID_STATE: Code.INVALID_RECORD_STATE,
    ShareError.INVALID_REQUEST: Code.INVALID_REQUEST,
}

TRANSACTION_CODES = {
    TransactionError.UNKNOWN_PRODUCER: Code.INVALID_PRODUCER_ID_MAPPING,
    TransactionError.FENCED: Code.INVALID_PRODUCER_EPOCH,
    TransactionError.CONCURRENT: Code.CONCURRENT_TRANSACTIONS,
    TransactionError.INVALID_STATE: Code.INVALID_TXN_STATE,
}

_REFUSED_BATCH_CODES = {
    Refusal.STALE_EPOCH: Code.INVALID_PRODUCER_EPOCH,
    Refusal.OUT_OF_ORDER: Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Refusal.IN_TRANSACTION: Code.INVALID_TXN_STATE,
    Refusal.NOT_IN_TRANSACTION: Code.INVALID_TXN_STATE,
}


def append_code(error: Exception) -> Code:
    """Return the code for records that were not appended."""
    match error:
        case RefusedBatch():
            return _REFUSED_BATCH_CODES[error.refusal]
        case ExpectationFailed():
            return Code.OPERATION_NOT_ATTEMPTED
        case TooLarge():
            return Code.MESSAGE_TOO_LARGE
        case CorruptError():
            return Code.CORRUPT_MESSAGE
        case InvalidError():
            return Code.INVALID_RECORD
    return Code.KAFKA_STORAGE_ERROR


def transactional_append_code(error: TransactionError) -> Code:
    """Return the code for a batch that is not part of the producer's current transaction."""
    # The batch arrived after the end of its transaction, or without its start: the producer has to abort.
    return Code.INVALID_PRODUCER_EPOCH if error is TransactionError.FENCED else Code.INVALID_TXN_STATE


def create_topic_code(name: str, error: HeadwaterError) -> Code:
    """Return the code for a topic that was not created."""
    match error:
        case ConflictError():
            return Code.TOPIC_ALREADY_EXISTS
        case InvalidConfig():
            return Code.INVALID_CONFIG
        case UnavailableError():
            return Code.KAFKA_STORAGE_ERROR
    try:
        check_topic_name(name)
    except InvalidError:
        return Code.INVALID_TOPIC_EXCEPTION
    return Code.INVALID_PARTITIONS
