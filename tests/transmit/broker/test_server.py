"""A broker over real sockets: its responses, also to clients that misbehave."""

import asyncio
import contextlib
import gc
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.admin import DeleteTopicsRequest
from kafka.protocol.consumer import FetchRequest, JoinGroupRequest, JoinGroupResponse
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from headwater.record import EARLIEST, LATEST, Record, TopicPartition
from headwater.transmit.broker import dispatch
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import decode_batch, encode_batch
from headwater.transmit.records.batch_header import walk
from headwater.transmit.wire.apis import APIS
from headwater.transmit.wire.frame import FRAME_BYTES_MAX

ORDERS = TopicPartition("orders", 0)


class Raw:
    """A socket that sends requests and bytes."""

    def __init__(self, broker: Broker) -> None:
        host, port = broker.bootstrap_servers.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.correlation_id = 0

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, request: object, version: int) -> None:
        self.correlation_id += 1
        request.API_VERSION = version
        request.with_header(correlation_id=self.correlation_id, client_id="raw")
        self.socket.sendall(request.encode(version=version, header=True, framed=True))

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self.exactly(4))
        return self.exactly(size)

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("closed by the broker")
            data += piece
        return data

    def end_stream(self) -> None:
        with contextlib.suppress(OSError):  # the broker may have closed it already
            self.socket.shutdown(socket.SHUT_WR)

    def is_closed_by_broker(self) -> bool:
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(65536):
                pass
        return True


def produce_request(topic: str, batch: bytes, *, acks: int = -1, partition: int = 0) -> ProduceRequest:
    shape = ProduceRequest.TopicProduceData
    return ProduceRequest(
        transactional_id=None, acks=acks, timeout_ms=10_000,
        topic_data=[
            shape(name=topic, partition_data=[shape.PartitionProduceData(index=partition, records=batch)])
        ],
    )  # fmt: skip


def fetch_request(topic: str, *, max_wait_ms: int, min_bytes: int = 1, offset: int = 0) -> FetchRequest:
    shape = FetchRequest.FetchTopic
    return FetchRequest(
        replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=1 << 24, isolation_level=0,
        session_id=0, session_epoch=-1, forgotten_topics_data=[], rack_id="",
        topics=[
            shape(
                topic=topic,
                partitions=[
                    shape.FetchPartition(
                        partition=0, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1,
                        log_start_offset=-1, partition_max_bytes=1 << 24,
                    )
                ],
            )
        ],
    )  # fmt: skip


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as connected:
        connected.create_topic("orders")
        yield connected


# -- well-behaved clients -------------------------------------------------------------------------------------


def test_read_produced_records_and_look_up_times(client: Client) -> None:
    records = [Record(key=b"k%d" % n, value=b"v", timestamp_ms=1000 + n) for n in range(10)]
    assert client.produce(ORDERS, encode_batch(records[:4])) == 0
    assert client.produce(ORDERS, encode_batch(records[4:])) == 4
    data, next_offset = client.read(ORDERS, 0)
    found = [record for at, _ in walk(data) for record in decode_batch(data, at)]
    assert next_offset == 10
    assert [(r.key, r.offset) for r in found] == [(r.key, n) for n, r in enumerate(records)]
    assert client.offsets([ORDERS], EARLIEST) == {ORDERS: 0}
    assert client.offsets([ORDERS], LATEST) == {ORDERS: 10}
    assert client.offsets([ORDERS], 1007) == {ORDERS: 7}
    assert client.offsets([ORDERS], 2000) == {ORDERS: -1}


def test_responses_have_order_of_requests(broker: Broker, client: Client) -> None:
    with Raw(broker) as raw:
        raw.send(fetch_request("orders", max_wait_ms=300), 11)
        raw.send(MetadataRequest(topics=None), 1)
        raw.send(produce_request("orders", encode_batch([Record(value=b"v")])), 8)
        assert [struct.unpack_from(">i", raw.receive())[0] for _ in range(3)] == [1, 2, 3]


def test_waiting_fetch_responds_when_records_arrive(broker: Broker, client: Client) -> None:
    with Raw(broker) as raw:
        raw.send(fetch_request("orders", max_wait_ms=600_000), 11)
        client.produce(ORDERS, encode_batch([Record(value=b"the one")]))
        assert b"the one" in raw.receive()


def test_many_requests_in_flight(broker: Broker, client: Client) -> None:
    with Raw(broker) as raw:
        raw.send(fetch_request("orders", max_wait_ms=100), 11)
        for n in range(300):
            raw.send(produce_request("orders", encode_batch([Record(value=b"%d" % n)])), 8)
        assert [struct.unpack_from(">i", raw.receive())[0] for _ in range(301)] == list(range(1, 302))
    assert client.offsets([ORDERS], LATEST) == {ORDERS: 300}


def test_produce_without_acks_has_no_response(broker: Broker, client: Client) -> None:
    with Raw(broker) as raw:
        raw.send(produce_request("orders", encode_batch([Record(value=b"v")]), acks=0), 8)
        raw.send(MetadataRequest(topics=None), 1)
        assert struct.unpack_from(">i", raw.receive()) == (2,)


def test_api_versions_of_unknown_version(broker: Broker) -> None:
    with Raw(broker) as raw:
        raw.socket.sendall(struct.pack(">ihhihb", 11, 18, 99, 5, -1, 0))
        response = ApiVersionsResponse.decode(raw.receive()[4:], version=0)
    assert response.error_code == 35
    assert {api.api_key: api.max_version for api in response.api_keys}[18] == APIS[18].version_max


# -- invalid records ------------------------------------------------------------------------------------------


def corrupted(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def with_header(batch: bytes, at: int, value: bytes) -> bytes:
    changed = batch[:at] + value + batch[at + len(value) :]
    return changed[:17] + struct.pack(">I", crc32c(changed[21:])) + changed[21:]


ONE = encode_batch([Record(value=b"v")])


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (corrupted(ONE), 2),
        (ONE[:-1], 2),
        (ONE + b"rest", 2),
        (ONE[:16] + b"\x01" + ONE[17:], 2),
        (with_header(ONE, 22, b"\x05"), 2),
        (b"", 87),
        (None, 87),
        (with_header(ONE, 23, struct.pack(">i", 2**31 - 1)), 87),
        (with_header(ONE, 57, struct.pack(">i", 0)), 87),
        (with_header(ONE, 22, b"\x20"), 87),
        (encode_batch([Record(value=b"v" * 1_100_000)]), 10),
    ],
    ids=[
        "flipped bit", "truncated", "trailing bytes", "old format", "unknown compression", "empty", "null",
        "offsets skipped", "no records", "control batch", "too large",
    ],
)  # fmt: skip
def test_invalid_records_are_refused_and_next_ones_appended(
    broker: Broker, client: Client, batch: bytes, code: int
) -> None:
    with Raw(broker) as raw:
        raw.send(produce_request("orders", batch), 8)
        (response,) = ProduceResponse.decode(raw.receive()[4:], version=8).responses[0].partition_responses
        assert response.error_code == code
        raw.send(produce_request("orders", ONE), 8)
        (response,) = ProduceResponse.decode(raw.receive()[4:], version=8).responses[0].partition_responses
        assert (response.error_code, response.base_offset) == (0, 0)


# -- clients that misbehave -----------------------------------------------------------------------------------


@given(data=st.binary(min_size=1, max_size=300))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes_close_only_their_connection(broker: Broker, client: Client, data: bytes) -> None:
    with Raw(broker) as raw:
        raw.socket.sendall(data)
        raw.end_stream()
        assert raw.is_closed_by_broker()
    assert client.topics().keys() == {"orders"}


@given(key=st.sampled_from([*APIS, 99, -1]), version=st.integers(-1, 20), body=st.binary(max_size=100))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_body_gets_response_or_closes_connection(
    broker: Broker, client: Client, key: int, version: int, body: bytes
) -> None:
    with Raw(broker) as raw:
        frame = struct.pack(">hhih", key, version, 7, 0) + body
        raw.socket.sendall(struct.pack(">i", len(frame)) + frame)
        raw.end_stream()
        assert raw.is_closed_by_broker()
    assert "orders" in client.topics(["orders"])


@pytest.mark.parametrize("size", [0, -1, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_invalid_frame_size_closes_connection(broker: Broker, client: Client, size: int) -> None:
    with Raw(broker) as raw:
        raw.socket.sendall(struct.pack(">i", size))
        assert raw.is_closed_by_broker()
    assert client.topics().keys() == {"orders"}


def test_http_request_closes_connection(broker: Broker, client: Client) -> None:
    with Raw(broker) as raw:
        raw.socket.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.is_closed_by_broker()
    assert client.topics().keys() == {"orders"}


def test_client_disconnects_within_frame(broker: Broker, client: Client) -> None:
    with Raw(broker) as raw:
        raw.socket.sendall(struct.pack(">i", 1_000_000) + b"x" * 5000)
    assert client.topics().keys() == {"orders"}


def join_request(group: str, member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group, session_timeout_ms=300, rebalance_timeout_ms=500, member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )  # fmt: skip


def test_member_disconnects_while_joining(broker: Broker) -> None:
    with Raw(broker) as first:
        first.send(join_request("g"), 1)
        first.receive()
        with Raw(broker) as second:
            second.send(join_request("g"), 1)
            second.send(MetadataRequest(topics=None), 1)
            with Raw(broker) as probe:  # when this has responded, the join has been handled
                probe.send(MetadataRequest(topics=None), 1)
                probe.receive()
    # No member is left. The group has to expire them and accept a new one.
    with Raw(broker) as third:
        third.send(join_request("g"), 1)
        joined = JoinGroupResponse.decode(third.receive()[4:], version=1)
    assert joined.error_code == 0
    # Members of other groups still expire.
    with Raw(broker) as fourth, Raw(broker) as fifth:
        fourth.send(join_request("other"), 1)
        fourth.receive()
        fifth.send(join_request("other"), 1)
        assert JoinGroupResponse.decode(fifth.receive()[4:], version=1).error_code == 0


def test_client_that_does_not_read_responses_is_not_read_from(broker: Broker, client: Client) -> None:
    for _ in range(8):
        client.produce(ORDERS, encode_batch([Record(value=b"v" * 1_000_000)]))
    with Raw(broker) as raw:
        raw.socket.settimeout(1.0)
        sent = 0
        try:
            for _ in range(100_000):
                raw.send(fetch_request("orders", max_wait_ms=0), 11)
                sent += 1
        except TimeoutError:
            pass
        assert sent < 100_000
        assert client.offsets([ORDERS], LATEST) == {ORDERS: 8}


def test_stop_while_clients_wait_or_do_not_read(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, Client(broker.bootstrap_servers) as client:
        client.create_topic("orders")
        for _ in range(8):
            client.produce(ORDERS, encode_batch([Record(value=b"v" * 1_000_000)]))
        with Raw(broker) as slow, Raw(broker) as waiting, Raw(broker) as joining:
            for _ in range(5):
                slow.send(fetch_request("orders", max_wait_ms=0), 11)
            waiting.send(fetch_request("orders", max_wait_ms=600_000, offset=8), 11)
            joining.send(join_request("g"), 1)
            joining.receive()
            broker.stop()
            assert waiting.is_closed_by_broker()
    gc.collect()  # reports tasks and sockets that were not closed


def test_delete_topic_while_produce_waits_for_disk(broker: Broker, client: Client) -> None:
    for n in range(20):
        client.create_topic(f"brief-{n}")
        with Raw(broker) as raw:
            # One packet: the deletion is handled before the records are durable.
            for request, version in (
                (produce_request(f"brief-{n}", encode_batch([Record(value=b"v" * 100_000)])), 8),
                (DeleteTopicsRequest(topic_names=[f"brief-{n}"], timeout_ms=1000), 3),
                (MetadataRequest(topics=None), 1),
            ):
                raw.send(request, version)
            assert [struct.unpack_from(">i", raw.receive())[0] for _ in range(3)] == [1, 2, 3]
    assert client.topics().keys() == {"orders"}


def test_delete_topic_while_fetch_waits(broker: Broker, client: Client) -> None:
    client.create_topic("brief")
    with Raw(broker) as raw, Raw(broker) as admin:
        raw.send(fetch_request("brief", max_wait_ms=1000), 11)
        admin.send(DeleteTopicsRequest(topic_names=["brief"], timeout_ms=1000), 3)
        admin.receive()
        raw.receive()
        raw.send(fetch_request("brief", max_wait_ms=1000), 11)
        assert struct.unpack_from(">i", raw.receive()) == (2,)


def test_a_connection_is_closed_when_its_handler_fails_after_a_wait(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("the handler failed")

    monkeypatch.setitem(dispatch.HANDLERS, MetadataRequest.API_KEY, fail)
    with Raw(broker) as raw:
        raw.send(MetadataRequest(topics=None), 1)
        with pytest.raises(ConnectionResetError):  # and not only after the client has sent something else
            raw.receive()
