"""A transactional producer for sinks: writes whole record batches, all of them or none.

    with Client(servers) as client:
        producer = TransactionalProducer(client, "shop.totals")   # fences the previous producer of this id
        producer.commit(bodies, timestamp_ms=...)                 # one transaction

A new producer also ends the open transaction of the previous one: it is committed if the commit had begun, and
aborted otherwise. Works with Kafka's brokers as well. Blocking and not thread-safe.
https://cwiki.apache.org/confluence/display/KAFKA/KIP-98
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
)

from headwater.errors import ConflictError, InvalidError
from headwater.record import TopicPartition
from headwater.transmit.client.client import PRODUCE_ERRORS, Client
from headwater.transmit.client.errors import Errors, check_code
from headwater.transmit.records.from_arrow import EncodedRecords, ProducerIdentity, seal_batch
from headwater.transmit.wire.codes import Code

TRANSACTION_TIMEOUT_MS = 300_000
"""The broker aborts after this time: long enough for the largest batch, and below Kafka's limit of 15 minutes."""

_TRANSACTION_KEY = 1
_REQUEST_TIMEOUT_MS = 30_000
_RETRY_S = 30.0
_PAUSE_S = 0.02
_COORDINATOR_LOADING, _NOT_COORDINATOR = 14, 16
_RETRIABLE = (
    Code.CONCURRENT_TRANSACTIONS,
    Code.COORDINATOR_NOT_AVAILABLE,
    _COORDINATOR_LOADING,
    _NOT_COORDINATOR,
    Code.UNKNOWN_TOPIC_OR_PARTITION,  # a new topic that not all brokers know yet
)
_FENCED = (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING)
_ERRORS: Errors = {
    **PRODUCE_ERRORS,
    Code.CORRUPT_MESSAGE: InvalidError,
    Code.INVALID_TRANSACTION_TIMEOUT: InvalidError,
}

Batches = Mapping[TopicPartition, Sequence[EncodedRecords]]


class TransactionalProducer:
    """The only producer of a transactional id. Discard it after any error."""

    def __init__(self, client: Client, transactional_id: str) -> None:
        self._client = client
        self._id = transactional_id
        self._node = self._find_coordinator()
        self._identity = self._init_producer()
        self._sequences: dict[TopicPartition, int] = {}

    def commit(self, batches: Batches, *, timestamp_ms: int) -> None:
        """Append all batches in one transaction, which is committed when this returns.

        After an UnavailableError it is unknown whether it was committed; the next producer of this id completes
        it.
        """
        self._add(list(batches))
        try:
            for partitions in self._by_leader(batches):
                self._produce(batches, partitions, timestamp_ms)
        except InvalidError:
            self._end(commit=False)  # otherwise readers would wait for its end
            raise
        self._end(commit=True)

    # -- steps of a transaction -------------------------------------------------------------------------------

    def _find_coordinator(self) -> int:
        request = {"key": self._id, "key_type": _TRANSACTION_KEY, "coordinator_keys": [self._id]}

        def send() -> tuple[Any, int]:
            response = self._client.call(FindCoordinatorRequest(**request))
            found = response.coordinators[0] if response.coordinators else response
            return found.node_id, found.error_code

        node = _retry(send, f"find the transaction coordinator of {self._id!r}")
        self._client.topics([])  # fetches the addresses of the nodes
        return int(node)

    def _init_producer(self) -> ProducerIdentity:
        def send() -> tuple[Any, int]:
            request = InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                producer_id=-1,
                producer_epoch=-1,
            )
            response = self._client.call(request, node=self._node)
            return ProducerIdentity(response.producer_id, response.producer_epoch), response.error_code

        identity = _retry(send, f"start a transactional producer with id {self._id!r}")
        assert isinstance(identity, ProducerIdentity)
        return identity

    def _add(self, partitions: Sequence[TopicPartition]) -> None:
        topics: dict[str, list[int]] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, []).append(tp.partition)
        shape = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

        def send() -> tuple[Any, int]:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._id,
                v3_and_below_producer_id=self._identity.producer_id,
                v3_and_below_producer_epoch=self._identity.epoch,
                v3_and_below_topics=[shape(name=name, partitions=numbers) for name, numbers in topics.items()],
            )
            response = self._client.call(request, node=self._node)
            codes = {
                result.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            }
            refused = codes - {Code.NONE, Code.OPERATION_NOT_ATTEMPTED}
            return None, next(iter(refused), Code.NONE)

        _retry(send, f"begin a transaction of {self._id!r}")

    def _by_leader(self, batches: Batches) -> list[list[TopicPartition]]:
        leaders: dict[int, list[TopicPartition]] = {}
        for tp in batches:
            leaders.setdefault(self._client.leader(tp), []).append(tp)
        return list(leaders.values())

    def _produce(self, batches: Batches, partitions: Sequence[TopicPartition], timestamp_ms: int) -> None:
        """Send the batches for the partitions of one leader; each request has one batch of each partition."""
        requests = self._requests(batches, partitions, timestamp_ms)
        with closing(self._client.call_all(requests, node=self._client.leader(partitions[0]))) as responses:
            for topic in (topic for response in responses for topic in response.responses):
                for result in topic.partition_responses:
                    attempt = f"append to {topic.name}-{result.index} with transactional id {self._id!r}"
                    _check(result.error_code, attempt, result.error_message)

    def _requests(
        self, batches: Batches, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> Iterator[ProduceRequest]:
        shape = ProduceRequest.TopicProduceData
        for number in range(max(len(batches[tp]) for tp in partitions)):
            topics: dict[str, list[Any]] = {}
            for tp in partitions:
                if number < len(batches[tp]):
                    records = self._seal(tp, batches[tp][number], timestamp_ms)
                    part = shape.PartitionProduceData(index=tp.partition, records=records)
                    topics.setdefault(tp.topic, []).append(part)
            yield ProduceRequest(
                transactional_id=self._id,
                acks=-1,
                timeout_ms=_REQUEST_TIMEOUT_MS,
                topic_data=[shape(name=name, partition_data=parts) for name, parts in topics.items()],
            )

    def _seal(self, tp: TopicPartition, body: EncodedRecords, timestamp_ms: int) -> bytes:
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = (sequence + body.count) % (1 << 31)
        return seal_batch(body, timestamp_ms=timestamp_ms, identity=self._identity, sequence=sequence)

    def _end(self, *, commit: bool) -> None:
        def send() -> tuple[Any, int]:
            request = EndTxnRequest(
                transactional_id=self._id,
                producer_id=self._identity.producer_id,
                producer_epoch=self._identity.epoch,
                committed=commit,
            )
            return None, self._client.call(request, node=self._node).error_code

        _retry(send, f"{'commit' if commit else 'abort'} a transaction of {self._id!r}")


def _retry(send: Callable[[], tuple[Any, int]], attempt: str) -> Any:
    """Send a request until its error is not retriable, for at most _RETRY_S."""
    deadline = time.monotonic() + _RETRY_S
    while True:
        result, code = send()
        if code not in _RETRIABLE or time.monotonic() > deadline:
            _check(code, attempt)
            return result
        time.sleep(_PAUSE_S)


def _check(code: int, attempt: str, message: str | None = None) -> None:
    if code in _FENCED:
        raise ConflictError(
            f"cannot {attempt}: a newer producer with the same id has fenced this one",
            hint="two running pipelines use the same id: stop one of them, or rename it",
        )
    check_code(code, attempt, message, errors=_ERRORS)
