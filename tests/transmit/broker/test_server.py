"""A broker over real sockets: what it answers, and what clients that misbehave do to it."""

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

from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import EARLIEST, LATEST, Client
from headwater.transmit.records.batch import decode_batch, encode_batch, walk
from headwater.transmit.wire.apis import APIS
from headwater.transmit.wire.frame import FRAME_BYTES_MAX

ORDERS = TopicPartition("orders", 0)


class Raw:
    """A socket that sends what it is told."""

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

    def say_no_more(self) -> None:
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


# -- our own client -------------------------------------------------------------------------------------------


def test_what_is_produced_is_read_and_found_by_time(client: Client) -> None:
    records = [Record(key=b"k%d" % n, value=b"v", timestamp_ms=1000 + n) for n in range(10)]
    assert client.produce(ORDERS, encode_batch(records[:4])) == 0
    assert client.produce(ORDERS, encode_batch(records[4:])) == 4
    data, behind = client.read(ORDERS, 0)
    found = [record for at, _ in walk(data) for record in decode_batch(data, at)]
    assert behind == 10
    assert [(r.key, r.offset) for r in found] == [(r.key, n) for n, r in enumerate(records)]
    assert client.offsets([ORDERS], EARLIEST) == {ORDERS: 0}
    assert client.offsets([ORDERS], LATEST) == {ORDERS: 10}
    assert client.offsets([ORDERS], 1007) == {ORDERS: 7}
    assert client.offsets([ORDERS], 2000) == {ORDERS: -1}


def test_answers_leave_in_the_order_of_the_requests(broker: Broker, client: Client) -> None:
    with Raw(broker) as raw:
        raw.send(fetch_request("orders", max_wait_ms=300), 11)
        raw.send(MetadataRequest(topics=None), 1)
        raw.send(produce_request("orders", encode_batch([Record(value=b"v")])), 8)
        assert [struct.unpack_from(">i", raw.receive())[0] for _ in range(3)] == [1, 2, 3]


def test_a_waiting_fetch_is_answered_when_records_come(broker: Broker, client: Client) -> None:
    with Raw(broker) as raw:
        raw.send(fetch_request("orders", max_wait_ms=600_000), 11)
        client.produce(ORDERS, encode_batch([Record(value=b"the one")]))
        assert b"the one" in raw.receive()


def test_many_requests_in_flight_are_all_answered(broker: Broker, client: Client) -> None:
    with Raw(broker) as raw:
        raw.send(fetch_request("orders", max_wait_ms=100), 11)
        for n in range(300):
            raw.send(produce_request("orders", encode_batch([Record(value=b"%d" % n)])), 8)
        assert [struct.unpack_from(">i", raw.receive())[0] for _ in range(301)] == list(range(1, 302))
    assert client.offsets([ORDERS], LATEST) == {ORDERS: 300}


def test_without_acks_there_is_no_answer(broker: Broker, client: Client) -> None:
    with Raw(broker) as raw:
        raw.send(produce_request("orders", encode_batch([Record(value=b"v")]), acks=0), 8)
        raw.send(MetadataRequest(topics=None), 1)
        assert struct.unpack_from(">i", raw.receive()) == (2,)


def test_a_client_from_the_future_is_told_what_we_can_do(broker: Broker) -> None:
    with Raw(broker) as raw:
        raw.socket.sendall(struct.pack(">ihhihb", 11, 18, 99, 5, -1, 0))
        answer = ApiVersionsResponse.decode(raw.receive()[4:], version=0)
    assert answer.error_code == 35
    assert {api.api_key: api.max_version for api in answer.api_keys}[18] == APIS[18].version_max


# -- records that are not right -------------------------------------------------------------------------------


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def with_header(batch: bytes, at: int, value: bytes) -> bytes:
    changed = batch[:at] + value + batch[at + len(value) :]
    return changed[:17] + struct.pack(">I", crc32c(changed[21:])) + changed[21:]


ONE = encode_batch([Record(value=b"v")])


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (damaged(ONE), 2),
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
        "flipped bit", "cut", "bytes behind", "old format", "unknown compression", "empty", "null",
        "offsets skipped", "no records", "control batch", "too large",
    ],
)  # fmt: skip
def test_records_that_are_not_right_are_refused_and_the_next_are_taken(
    broker: Broker, client: Client, batch: bytes, code: int
) -> None:
    with Raw(broker) as raw:
        raw.send(produce_request("orders", batch), 8)
        (answer,) = ProduceResponse.decode(raw.receive()[4:], version=8).responses[0].partition_responses
        assert answer.error_code == code
        raw.send(produce_request("orders", ONE), 8)
        (answer,) = ProduceResponse.decode(raw.receive()[4:], version=8).responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (0, 0)


# -- clients that misbehave -----------------------------------------------------------------------------------


@given(garbage=st.binary(min_size=1, max_size=300))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_closes_the_connection_and_hurts_nobody_else(
    broker: Broker, client: Client, garbage: bytes
) -> None:
    with Raw(broker) as raw:
        raw.socket.sendall(garbage)
        raw.say_no_more()
        assert raw.is_closed_by_broker()
    assert client.topics().keys() == {"orders"}


@given(key=st.sampled_from([*APIS, 99, -1]), version=st.integers(-1, 20), body=st.binary(max_size=100))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_senseless_body_is_answered_or_closes_the_connection(
    broker: Broker, client: Client, key: int, version: int, body: bytes
) -> None:
    with Raw(broker) as raw:
        frame = struct.pack(">hhih", key, version, 7, 0) + body
        raw.socket.sendall(struct.pack(">i", len(frame)) + frame)
        raw.say_no_more()
        assert raw.is_closed_by_broker()
    assert "orders" in client.topics(["orders"])


@pytest.mark.parametrize("size", [0, -1, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_an_impossible_frame_closes_the_connection(broker: Broker, client: Client, size: int) -> None:
    with Raw(broker) as raw:
        raw.socket.sendall(struct.pack(">i", size))
        assert raw.is_closed_by_broker()
    assert client.topics().keys() == {"orders"}


def test_an_http_request_closes_the_connection(broker: Broker, client: Client) -> None:
    with Raw(broker) as raw:
        raw.socket.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.is_closed_by_broker()
    assert client.topics().keys() == {"orders"}


def test_a_client_that_hangs_up_in_the_middle_of_a_frame_hurts_nobody(broker: Broker, client: Client) -> None:
    with Raw(broker) as raw:
        raw.socket.sendall(struct.pack(">i", 1_000_000) + b"x" * 5000)
    assert client.topics().keys() == {"orders"}


def join_request(group: str, member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group, session_timeout_ms=300, rebalance_timeout_ms=500, member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )  # fmt: skip


def test_a_member_that_hangs_up_while_it_waits_does_not_stop_the_group(broker: Broker) -> None:
    with Raw(broker) as first:
        first.send(join_request("g"), 1)
        first.receive()
        with Raw(broker) as second:
            second.send(join_request("g"), 1)
            second.send(MetadataRequest(topics=None), 1)
            with Raw(broker) as probe:  # by the time this is answered, the join has been handled
                probe.send(MetadataRequest(topics=None), 1)
                probe.receive()
    # Nobody is left. The group must find that out and take in the next.
    with Raw(broker) as third:
        third.send(join_request("g"), 1)
        joined = JoinGroupResponse.decode(third.receive()[4:], version=1)
    assert joined.error_code == 0
    # And time must still go by for other groups.
    with Raw(broker) as fourth, Raw(broker) as fifth:
        fourth.send(join_request("other"), 1)
        fourth.receive()
        fifth.send(join_request("other"), 1)
        assert JoinGroupResponse.decode(fifth.receive()[4:], version=1).error_code == 0


def test_a_client_that_does_not_read_its_answers_is_not_read_from_and_others_go_on(
    broker: Broker, client: Client
) -> None:
    for _ in range(8):
        client.produce(ORDERS, encode_batch([Record(value=b"v" * 1_000_000)]))
    with Raw(broker) as raw:
        raw.socket.settimeout(1.0)
        asked = 0
        try:
            for _ in range(100_000):
                raw.send(fetch_request("orders", max_wait_ms=0), 11)
                asked += 1
        except TimeoutError:
            pass
        assert asked < 100_000
        assert client.offsets([ORDERS], LATEST) == {ORDERS: 8}


def test_a_broker_stops_while_clients_wait_and_do_not_read(tmp_path: Path) -> None:
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
    gc.collect()  # a task or a socket that was forgotten is complained about here


def test_a_topic_deleted_while_a_producer_waits_for_the_disk_answers_it(broker: Broker, client: Client) -> None:
    for n in range(20):
        client.create_topic(f"brief-{n}")
        with Raw(broker) as raw:
            # One packet: the deletion is handled before the disk has answered.
            for request, version in (
                (produce_request(f"brief-{n}", encode_batch([Record(value=b"v" * 100_000)])), 8),
                (DeleteTopicsRequest(topic_names=[f"brief-{n}"], timeout_ms=1000), 3),
                (MetadataRequest(topics=None), 1),
            ):
                raw.send(request, version)
            assert [struct.unpack_from(">i", raw.receive())[0] for _ in range(3)] == [1, 2, 3]
    assert client.topics().keys() == {"orders"}


def test_a_fetch_that_waits_for_a_topic_that_is_deleted_is_answered(broker: Broker, client: Client) -> None:
    client.create_topic("brief")
    with Raw(broker) as raw, Raw(broker) as admin:
        raw.send(fetch_request("brief", max_wait_ms=1000), 11)
        admin.send(DeleteTopicsRequest(topic_names=["brief"], timeout_ms=1000), 3)
        admin.receive()
        raw.receive()
        raw.send(fetch_request("brief", max_wait_ms=1000), 11)
        assert struct.unpack_from(">i", raw.receive()) == (2,)
