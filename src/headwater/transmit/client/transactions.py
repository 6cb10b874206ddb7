"""A transactional producer for our own sinks, by our own client: whole record batches, all of them or none.

    with Client(servers) as client:
        producer = TransactionalProducer(client, "shop.totals")   # fences whoever had the name before
        producer.commit(bodies, timestamp_ms=...)                 # one transaction

Taking the name over decides what the one before has left: what it was committing is committed, the rest aborted.
Works with Kafka's brokers as with ours. Blocking; one thread. https://cwiki.apache.org/confluence/display/KAFKA/KIP-98
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
"""After that the broker aborts; long enough for the largest batch, and below Kafka's limit of 15 minutes."""

_TRANSACTION_KEY = 1
_REQUEST_TIMEOUT_MS = 30_000
_PATIENCE_S = 30.0
_PAUSE_S = 0.02
_COORDINATOR_LOADING, _NOT_COORDINATOR = 14, 16
_AGAIN = (
    Code.CONCURRENT_TRANSACTIONS,
    Code.COORDINATOR_NOT_AVAILABLE,
    _COORDINATOR_LOADING,
    _NOT_COORDINATOR,
    Code.UNKNOWN_TOPIC_OR_PARTITION,  # made a moment ago, and not everywhere known
)
_FENCED = (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING)
_ERRORS: Errors = {
    **PRODUCE_ERRORS,
    Code.CORRUPT_MESSAGE: InvalidError,
    Code.INVALID_TRANSACTION_TIMEOUT: InvalidError,
}

Batches = Mapping[TopicPartition, Sequence[EncodedRecords]]


class TransactionalProducer:
    """The one producer of a transactional id. After any error it is of no more use."""

    def __init__(self, client: Client, transactional_id: str) -> None:
        self._client = client
        self._id = transactional_id
        self._node = self._find_coordinator()
        self._identity = self._take_over()
        self._sequences: dict[TopicPartition, int] = {}

    def commit(self, batches: Batches, *, timestamp_ms: int) -> None:
        """Append all batches in one transaction; it is decided when this returns.

        An UnavailableError leaves open whether it was committed: the next who takes the name over finds out.
        """
        self._add(list(batches))
        try:
            for partitions in self._by_leader(batches):
                self._produce(batches, partitions, timestamp_ms)
        except InvalidError:
            self._end(commit=False)  # Otherwise readers would wait for the end of it.
            raise
        self._end(commit=True)

    # -- the steps --------------------------------------------------------------------------------------------

    def _find_coordinator(self) -> int:
        request = {"key": self._id, "key_type": _TRANSACTION_KEY, "coordinator_keys": [self._id]}

        def ask() -> tuple[Any, int]:
            answer = self._client.call(FindCoordinatorRequest(**request))
            found = answer.coordinators[0] if answer.coordinators else answer
            return found.node_id, found.error_code

        node = _patiently(ask, f"find the coordinator of transactions of {self._id!r}")
        self._client.topics([])  # so that the node's address is known
        return int(node)

    def _take_over(self) -> ProducerIdentity:
        def ask() -> tuple[Any, int]:
            request = InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                producer_id=-1,
                producer_epoch=-1,
            )
            answer = self._client.call(request, node=self._node)
            return ProducerIdentity(answer.producer_id, answer.producer_epoch), answer.error_code

        identity = _patiently(ask, f"begin to write as {self._id!r}")
        assert isinstance(identity, ProducerIdentity)
        return identity

    def _add(self, partitions: Sequence[TopicPartition]) -> None:
        topics: dict[str, list[int]] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, []).append(tp.partition)
        shape = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

        def ask() -> tuple[Any, int]:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._id,
                v3_and_below_producer_id=self._identity.producer_id,
                v3_and_below_producer_epoch=self._identity.epoch,
                v3_and_below_topics=[shape(name=name, partitions=numbers) for name, numbers in topics.items()],
            )
            answer = self._client.call(request, node=self._node)
            codes = {
                result.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            }
            refused = codes - {Code.NONE, Code.OPERATION_NOT_ATTEMPTED}
            return None, next(iter(refused), Code.NONE)

        _patiently(ask, f"begin a transaction of {self._id!r}")

    def _by_leader(self, batches: Batches) -> list[list[TopicPartition]]:
        leaders: dict[int, list[TopicPartition]] = {}
        for tp in batches:
            leaders.setdefault(self._client.leader(tp), []).append(tp)
        return list(leaders.values())

    def _produce(self, batches: Batches, partitions: Sequence[TopicPartition], timestamp_ms: int) -> None:
        """Send what is for partitions of one leader: in each request one batch of each partition that has more."""
        requests = self._requests(batches, partitions, timestamp_ms)
        with closing(self._client.call_all(requests, node=self._client.leader(partitions[0]))) as answers:
            for topic in (topic for answer in answers for topic in answer.responses):
                for result in topic.partition_responses:
                    attempt = f"append to {topic.name}-{result.index} as {self._id!r}"
                    _check(result.error_code, attempt, result.error_message)

    def _requests(
        self, batches: Batches, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> Iterator[ProduceRequest]:
        shape = ProduceRequest.TopicProduceData
        for turn in range(max(len(batches[tp]) for tp in partitions)):
            topics: dict[str, list[Any]] = {}
            for tp in partitions:
                if turn < len(batches[tp]):
                    records = self._seal(tp, batches[tp][turn], timestamp_ms)
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
        def ask() -> tuple[Any, int]:
            request = EndTxnRequest(
                transactional_id=self._id,
                producer_id=self._identity.producer_id,
                producer_epoch=self._identity.epoch,
                committed=commit,
            )
            return None, self._client.call(request, node=self._node).error_code

        _patiently(ask, f"{'commit' if commit else 'abort'} a transaction of {self._id!r}")


def _patiently(ask: Callable[[], tuple[Any, int]], attempt: str) -> Any:
    """Ask until the answer is no longer that it is too early, within reason."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        found, code = ask()
        if code not in _AGAIN or time.monotonic() > deadline:
            _check(code, attempt)
            return found
        time.sleep(_PAUSE_S)


def _check(code: int, attempt: str, message: str | None = None) -> None:
    if code in _FENCED:
        raise ConflictError(
            f"cannot {attempt}: another writer of that name was opened since",
            hint="one of two running pipelines has to stop, or take another name",
        )
    check_code(code, attempt, message, errors=_ERRORS)
