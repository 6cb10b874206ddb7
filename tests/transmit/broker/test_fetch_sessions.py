"""Fetch sessions: the partitions that requests and responses contain."""

import socket
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest as KafkaFetchRequest
from kafka.protocol.consumer import FetchResponse

from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.broker.fetch_sessions import IDLE_S, FetchSession, FetchSessions
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.fetch import FetchedPartition, FetchedTopic, FetchPartition, FetchRequest, FetchTopic


def request(
    session_id: int, epoch: int, topics: dict[object, list[int]] | None = None, forgotten: list | None = None
) -> FetchRequest:
    wanted = [FetchTopic(t, [FetchPartition(n, 0, 100) for n in ns]) for t, ns in (topics or {}).items()]
    return FetchRequest(500, 1, 1000, 0, session_id, epoch, wanted, forgotten or [])


def begin(sessions: FetchSessions, *partitions: int) -> FetchSession:
    session = sessions.of(request(0, 0, {"t": list(partitions)}), 0.0)
    assert isinstance(session, FetchSession)
    return session


def sent(session: FetchSession, *partitions: FetchedPartition, in_full: bool = False) -> list[int]:
    topics = session.response([FetchedTopic("t", partitions)], in_full=in_full).topics
    return [partition.partition for topic in topics for partition in topic.partitions]


def test_response_contains_changed_partitions() -> None:
    session = begin(FetchSessions(), 0, 1)
    quiet = [FetchedPartition(0, 0, 5, 5, 0), FetchedPartition(1, 0, 7, 7, 0)]
    assert sent(session, *quiet, in_full=True) == [0, 1]
    assert sent(session, *quiet) == []
    assert sent(session, quiet[0], FetchedPartition(1, 0, 8, 8, 0)) == [1]
    assert sent(session, FetchedPartition(0, 0, 5, 5, 0, b"records"), FetchedPartition(1, 0, 8, 8, 0)) == [0]
    assert sent(session, FetchedPartition(0, 0, 5, 5, 3), FetchedPartition(1, 0, 8, 8, 0)) == [0]


def test_error_is_sent_in_every_response() -> None:
    session = begin(FetchSessions(), 0)
    fine, wrong = FetchedPartition(0, 0, 5, 5, 0), FetchedPartition(0, 3)
    assert sent(session, fine, in_full=True) == [0]
    assert [sent(session, partition) for partition in (wrong, wrong, fine, fine)] == [[0], [0], [0], []]


def test_partition_with_records_is_last_in_next_fetch() -> None:
    session = begin(FetchSessions(), 0, 1, 2)
    sent(session, FetchedPartition(0, 0, 5, 5, 0, b"records"), FetchedPartition(1), FetchedPartition(2))
    assert [partition.partition for partition in session.topics[0].partitions] == [1, 2, 0]


def test_request_with_wrong_epoch_id_or_topics() -> None:
    sessions = FetchSessions()
    session = begin(sessions, 0)
    assert sessions.of(request(session.id, 2), 0.0) is Code.INVALID_FETCH_SESSION_EPOCH
    assert sessions.of(request(session.id + 1, 1), 0.0) is Code.FETCH_SESSION_ID_NOT_FOUND
    by_id = request(session.id, 1, {uuid.uuid4(): [0]})
    assert sessions.of(by_id, 0.0) is Code.FETCH_SESSION_TOPIC_ID_ERROR
    assert sessions.of(request(session.id, 1), 0.0) is session
    assert sessions.of(request(session.id, 1), 0.0) is Code.INVALID_FETCH_SESSION_EPOCH
    assert sessions.of(request(session.id, 2), 0.0) is session


def test_epoch_wraps_to_one() -> None:
    sessions = FetchSessions()
    session = begin(sessions, 0)
    session.epoch = 2**31 - 1
    assert sessions.of(request(session.id, 2**31 - 1), 0.0) is session
    assert session.epoch == 1


@pytest.mark.parametrize("epoch", [-1, 0])
def test_full_request_closes_session(epoch: int) -> None:
    sessions = FetchSessions()
    session = begin(sessions, 0)
    again = sessions.of(request(session.id, epoch, {"t": [0]}), 0.0)
    assert sessions.of(request(session.id, 1), 0.0) is Code.FETCH_SESSION_ID_NOT_FOUND
    assert (again is None, len(sessions)) == (epoch == -1, 1 + epoch)


def test_longest_idle_session_is_removed_at_limit() -> None:
    sessions = FetchSessions(limit=2)
    first, second = begin(sessions, 0), begin(sessions, 0)
    assert sessions.of(request(first.id, 1), 10.0) is first
    assert sessions.of(request(0, 0, {"t": [0]}), IDLE_S - 1) is None
    third = sessions.of(request(0, 0, {"t": [0]}), IDLE_S + 1)
    assert isinstance(third, FetchSession)
    assert sessions.of(request(second.id, 1), IDLE_S + 1) is Code.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.of(request(first.id, 2), IDLE_S + 1) is first


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 4)), max_size=30))
def test_session_has_added_partitions_without_forgotten_ones(steps: list[tuple[bool, str, int]]) -> None:
    sessions = FetchSessions()
    session = begin(sessions)
    wanted: set[tuple[str, int]] = set()
    for is_added, topic, number in steps:
        if is_added:
            wanted.add((topic, number))
            sessions.of(request(session.id, session.epoch, {topic: [number]}), 0.0)
        else:
            wanted.discard((topic, number))
            sessions.of(request(session.id, session.epoch, forgotten=[(topic, [number])]), 0.0)
        found = [(topic, each.partition) for topic, partitions in session.topics for each in partitions]
        assert set(found) == wanted
        assert len(found) == len(wanted)


# -- over a socket --------------------------------------------------------------------------------------------


class Consumer:
    """Sends Fetch requests of version 11 over a socket."""

    def __init__(self, broker: Broker) -> None:
        host, port = broker.bootstrap_servers.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)

    def fetch(
        self, session: tuple[int, int], topics: dict[str, dict[int, int]], wait_ms: int = 0
    ) -> FetchResponse:
        shape = KafkaFetchRequest.FetchTopic
        request = KafkaFetchRequest(
            replica_id=-1, max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 24, isolation_level=0,
            session_id=session[0], session_epoch=session[1], forgotten_topics_data=[], rack_id="",
            topics=[
                shape(
                    topic=topic,
                    partitions=[
                        shape.FetchPartition(
                            partition=number, current_leader_epoch=-1, fetch_offset=offset, log_start_offset=-1,
                            partition_max_bytes=1 << 20,
                        )
                        for number, offset in partitions.items()
                    ],
                )
                for topic, partitions in topics.items()
            ],
        )  # fmt: skip
        request.API_VERSION = 11
        request.with_header(correlation_id=1, client_id="raw")
        self.socket.sendall(request.encode(version=11, header=True, framed=True))
        stream = self.socket.makefile("rb")
        size = int.from_bytes(stream.read(4), "big")
        return FetchResponse.decode(stream.read(size)[4:], version=11)


def test_consumer_receives_changed_partitions(broker: Broker) -> None:
    with Client(broker.bootstrap_servers) as client:
        client.create_topic("orders", partitions=50)
        consumer = Consumer(broker)
        first = consumer.fetch((0, 0), {"orders": dict.fromkeys(range(50), 0)})
        assert first.session_id
        assert len(first.responses[0].partitions) == 50
        nothing = consumer.fetch((first.session_id, 1), {})
        assert (nothing.error_code, nothing.session_id, nothing.responses) == (0, first.session_id, [])
        client.produce(TopicPartition("orders", 7), encode_batch([Record(value=b"the one")]))
        some = consumer.fetch((first.session_id, 2), {}, wait_ms=600_000)
        (found,) = some.responses[0].partitions
        assert found.partition_index == 7
        assert b"the one" in found.records
        after = consumer.fetch((first.session_id, 3), {"orders": {7: 1}})
        assert after.responses == []
        assert consumer.fetch((first.session_id, 3), {}).error_code == Code.INVALID_FETCH_SESSION_EPOCH
        consumer.socket.close()
