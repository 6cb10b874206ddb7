"""A small blocking client without threads: metadata, offsets, and record batches as bytes.

It works with any Kafka broker and with clusters: requests for a partition go to its leader. It returns record
batches as bytes, because its main user, the Spark source, decodes them into columns. It is for Headwater's own
processes; applications should use a full Kafka client. Not thread-safe: use one client per thread.
"""

import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest

from headwater.errors import InvalidError, RefusedError, UnavailableError
from headwater.record import LATEST, Record, TopicPartition
from headwater.transmit.client.connection import ConnectionPool
from headwater.transmit.client.errors import Errors, check_code
from headwater.transmit.client.fetching import FetchLimits, by_topic, fetch_request, fetched_partitions
from headwater.transmit.records.batch import batches_of, encode_batch
from headwater.transmit.records.batch_header import walk
from headwater.transmit.records.control import drop_aborted
from headwater.transmit.transport import Address, Connect, connect
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED

TIMEOUT_S = 30.0
FETCH_BYTES = 4 << 20
_FETCH_WAIT_MS = 500
_PAUSE_S = 0.05
IN_FLIGHT_MAX = 5
"""Maximum number of unanswered requests to a node: a partition deduplicates this many batches of a producer."""

PRODUCE_ERRORS: Errors = {Code.MESSAGE_TOO_LARGE: RefusedError, Code.INVALID_RECORD: RefusedError}
"""Codes for records that the topic does not accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic and the node that leads each of its partitions."""

    name: str
    leaders: Mapping[int, int]


class Client:
    """A client of one cluster; connections are opened on first use."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "headwater",
        timeout_s: float = TIMEOUT_S,
        read_committed: bool = False,
        connect: Connect = connect,
    ) -> None:
        """With `read_committed`, reading stops before open transactions and omits aborted records."""
        self._bootstrap = _parse_servers(bootstrap_servers)
        self._bootstrap_servers = bootstrap_servers
        self._timeout_s = timeout_s
        self.isolation_level = READ_COMMITTED if read_committed else READ_UNCOMMITTED
        self._nodes: dict[int, Address] = {}
        self._connections = ConnectionPool(client_id, connect, timeout_s)
        self._topics: dict[str, TopicInfo] = {}

    # -- topics -----------------------------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None, *, auto_create: bool = False) -> dict[str, TopicInfo]:
        """Return all topics, or those of the given ones that exist.

        With `auto_create`, the broker creates missing topics if its settings allow it.
        """
        wanted = None if names is None else [MetadataRequest.MetadataRequestTopic(name=n) for n in names]
        response = self.call(MetadataRequest(topics=wanted, allow_auto_topic_creation=auto_create))
        self._nodes = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        found = {
            topic.name: TopicInfo(
                name=topic.name, leaders={p.partition_index: p.leader_id for p in topic.partitions}
            )
            for topic in response.topics
            if topic.error_code == Code.NONE
        }
        self._topics.update(found)
        return found

    def create_topic(self, name: str, *, partitions: int = -1, configs: Mapping[str, str] | None = None) -> bool:
        """Create a topic unless it exists, and wait until it can be used; return whether it was created."""
        shape = CreateTopicsRequest.CreatableTopic
        topic = shape(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            assignments=[],
            configs=[shape.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=int(self._timeout_s * 1000), validate_only=False)
        (result,) = self.call(request).topics
        if result.error_code not in (Code.NONE, Code.TOPIC_ALREADY_EXISTS):
            raise InvalidError(f"cannot create topic {name!r}: {result.error_message or result.error_code}")
        self._wait_for_leaders(name, deadline=time.monotonic() + self._timeout_s)
        return bool(result.error_code == Code.NONE)

    # -- offsets ----------------------------------------------------------------------------------------------

    def offsets(self, partitions: Iterable[TopicPartition], at: int) -> dict[TopicPartition, int]:
        """Return the offset of each partition: EARLIEST, LATEST, or the first record since a time in milliseconds.

        The offset is -1 if the time is later than the last record.
        """
        return self.offsets_at(dict.fromkeys(partitions, at))

    def offsets_at(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return offsets as `offsets` does, with a separate time for each partition."""
        found: dict[TopicPartition, int] = {}
        for leader, partitions in self.by_leader(wanted).items():
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=self.isolation_level,
                topics=[
                    ListOffsetsRequest.ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                                partition_index=tp.partition, current_leader_epoch=-1, timestamp=wanted[tp]
                            )
                            for tp in tps
                        ],
                    )
                    for topic, tps in by_topic(partitions).items()
                ],
            )
            for topic in self.call(request, node=leader).topics:
                for result in topic.partitions:
                    tp = TopicPartition(topic.name, result.partition_index)
                    check_code(result.error_code, f"look up offsets of {tp}")
                    found[tp] = result.offset
        return found

    # -- records ----------------------------------------------------------------------------------------------

    def read(self, partition: TopicPartition, offset: int) -> tuple[bytes, int]:
        """Read batches, starting with the one that contains the offset; return them and the offset after them."""
        data, aborted = self._fetch(partition, offset, FETCH_BYTES)
        next_offset = offset
        for _, header in walk(data):
            next_offset = header.next_offset
        if next_offset <= offset:
            raise UnavailableError(
                f"cannot read {partition} at offset {offset}: the broker returned no further records"
            )
        return drop_aborted(data, aborted), next_offset

    def fetch(self, partition: TopicPartition, offset: int, *, max_bytes: int = FETCH_BYTES) -> bytes:
        """Read batches from an offset; empty if there are no records yet."""
        return drop_aborted(*self._fetch(partition, offset, max_bytes))

    def _fetch(
        self, partition: TopicPartition, offset: int, max_bytes: int
    ) -> tuple[bytes, list[tuple[int, int]]]:
        """Return batches, and producer id and first offset of the aborted transactions among them."""
        limits = FetchLimits(_FETCH_WAIT_MS, max_bytes, max_bytes)
        request = fetch_request({partition: offset}, limits, isolation_level=self.isolation_level)
        (result,) = fetched_partitions(self.call(request, node=self.leader(partition)))
        check_code(
            result.error_code,
            f"read {partition} at offset {offset}",
            errors={Code.OFFSET_OUT_OF_RANGE: InvalidError},
        )
        return result.records, result.aborted

    def produce(self, partition: TopicPartition, batch: bytes) -> int:
        """Append one record batch, wait until it is durable, and return the offset of its first record."""
        shape = ProduceRequest.TopicProduceData
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=int(self._timeout_s * 1000),
            topic_data=[
                shape(
                    name=partition.topic,
                    partition_data=[shape.PartitionProduceData(index=partition.partition, records=batch)],
                )
            ],
        )
        (result,) = self.call(request, node=self.leader(partition)).responses[0].partition_responses
        check_code(result.error_code, f"append to {partition}", result.error_message, errors=PRODUCE_ERRORS)
        return int(result.base_offset)

    def append(self, partition: TopicPartition, records: Iterable[Record]) -> None:
        """Append records in batches, and wait until they are durable; a batch that is too large is split."""
        waiting = deque(batches_of(records))
        while waiting:
            batch = waiting.popleft()
            try:
                self.produce(partition, encode_batch(batch))
            except RefusedError:
                if len(batch) == 1:
                    raise
                middle = len(batch) // 2
                waiting.extendleft((batch[middle:], batch[:middle]))

    def call(self, request: Any, *, node: int | None = None) -> Any:
        """Send a request to a node, or to the first bootstrap server that responds; wait for the response."""
        addresses = self._bootstrap if node is None else [self._nodes[node]]
        problem: OSError | None = None
        for address in addresses:
            try:
                return self._connections.get(address).call(request)
            except OSError as error:
                self._connections.drop(address)
                problem = error
        raise _unreachable(addresses, problem) from problem

    def call_each(self, requests: Mapping[int, Any]) -> list[Any]:
        """Send a request to each of several nodes, all of them before the first response; return the responses."""
        addresses = [self._nodes[node] for node in requests]
        try:
            sent = [
                self._connections.get(address).send(request)
                for address, request in zip(addresses, requests.values(), strict=True)
            ]
            return [
                self._connections.get(address).receive(*arguments)
                for address, arguments in zip(addresses, sent, strict=True)
            ]
        except BaseException as error:
            for address in addresses:
                self._connections.drop(address)  # otherwise the next call would receive the responses to these
            if isinstance(error, OSError):
                raise _unreachable(addresses, error) from error
            raise

    def call_all(self, requests: Iterable[Any], *, node: int) -> Generator[Any, None, None]:
        """Send requests to a node, up to IN_FLIGHT_MAX before their responses; yield the responses in order."""
        address = self._nodes[node]
        in_flight: deque[Any] = deque()
        try:
            connection = self._connections.get(address)
            for request in requests:
                in_flight.append(connection.send(request))
                if len(in_flight) >= IN_FLIGHT_MAX:
                    yield connection.receive(*in_flight.popleft())
            while in_flight:
                yield connection.receive(*in_flight.popleft())
        except OSError as error:
            self._connections.drop(address)
            raise _unreachable([address], error) from error
        finally:
            if in_flight:
                self._connections.drop(address)  # otherwise the next call would receive the responses to these

    def close(self) -> None:
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- leaders ----------------------------------------------------------------------------------------------

    def leader(self, partition: TopicPartition) -> int:
        """Return the node that leads a partition."""
        info = self._topics.get(partition.topic) or self.topics([partition.topic]).get(partition.topic)
        if info is None or partition.partition not in info.leaders:
            raise InvalidError(f"there is no partition {partition} at {self._bootstrap_servers}")
        node = info.leaders[partition.partition]
        if node not in self._nodes:
            raise UnavailableError(
                f"partition {partition} at {self._bootstrap_servers} has no leader at the moment"
            )
        return node

    def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Group partitions by the node that leads them."""
        partitions = list(partitions)
        self.find_leaders({partition.topic for partition in partitions})
        leaders: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            leaders.setdefault(self.leader(partition), []).append(partition)
        return leaders

    def find_leaders(self, topics: Iterable[str]) -> None:
        """Look up the leaders of the topics that are not known yet, in one request."""
        unknown = [topic for topic in topics if topic not in self._topics]
        if unknown:
            self.topics(unknown)

    def address(self, node: int) -> Address:
        """Return the address of a node that `leader` has returned."""
        return self._nodes[node]

    def forget_leaders(self, topics: Iterable[str]) -> None:
        """Look up the leaders of topics again when they are needed next, after an error of one of them."""
        for topic in topics:
            self._topics.pop(topic, None)

    def _wait_for_leaders(self, topic: str, deadline: float) -> None:
        """Wait until every partition of a topic has a leader; in a cluster that happens after its creation."""
        while True:
            info = self.topics([topic]).get(topic)
            try:
                if info is not None:
                    self.offsets([TopicPartition(topic, number) for number in info.leaders], LATEST)
                    return
            except UnavailableError:
                pass
            if time.monotonic() > deadline:
                raise UnavailableError(f"cannot use topic {topic!r}: it was created, but has no leader yet")
            time.sleep(_PAUSE_S)


def _unreachable(addresses: Iterable[Address], problem: OSError | None) -> UnavailableError:
    servers = ", ".join(f"{host}:{port}" for host, port in addresses)
    return UnavailableError(
        f"cannot reach a broker at {servers}: {problem}",
        hint="start one with `headwater broker`, or give the address of another with --bootstrap-servers",
    )


def _parse_servers(servers: str) -> list[Address]:
    """Parse `host:port,host:port`."""
    addresses = []
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdigit():
            raise InvalidError(f"cannot read bootstrap servers {servers!r}: expected host:port[,host:port...]")
        addresses.append((host.strip("[]"), int(port)))
    return addresses
