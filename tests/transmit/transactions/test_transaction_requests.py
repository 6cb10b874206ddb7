"""Transactions by single requests, as no client sends them: error codes by version, and intermediate states."""

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from crc32c import crc32c
from kafka.protocol import admin, consumer, producer

from headwater.record import LATEST, Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.attributes import TRANSACTIONAL
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.wire.apis import APIS
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.frame import skip_tags


class Peer:
    """Sends requests to a broker that has a topic `orders` with two partitions."""

    def __init__(self, broker: Broker) -> None:
        with Client(broker.bootstrap_servers) as client:
            client.create_topic("orders", partitions=2)
        host, port = broker.bootstrap_servers.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self.id, self.epoch = -1, -1

    def ask(self, request: Any, version: int) -> Any:
        request.API_VERSION = version
        request.with_header(correlation_id=1, client_id="peer")
        self._socket.sendall(request.encode(version=version, header=True, framed=True))
        (size,) = struct.unpack(">i", self._socket.recv(4, socket.MSG_WAITALL))
        frame = memoryview(bytearray(self._socket.recv(size, socket.MSG_WAITALL)))
        response = APIS[request.API_KEY].response
        at = skip_tags(frame, 4) if response.flexible_version_q(version) else 4
        return response.decode(frame[at:], version=version)

    def close(self) -> None:
        self._socket.close()

    def begin(self, *, version: int = 4, timeout_ms: int = 60_000, claim: tuple[int, int] = (-1, -1)) -> Code:
        request = producer.InitProducerIdRequest(
            transactional_id="t", transaction_timeout_ms=timeout_ms, producer_id=claim[0], producer_epoch=claim[1]
        )
        while True:
            answer = self.ask(request, version)
            if answer.error_code != Code.CONCURRENT_TRANSACTIONS:
                break
        if answer.error_code == Code.NONE:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
        return Code(answer.error_code)

    def add(self, partition: int, *, version: int = 3) -> Code:
        shape = producer.AddPartitionsToTxnRequest
        answer = self.ask(
            shape(
                v3_and_below_transactional_id="t",
                v3_and_below_producer_id=self.id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[shape.AddPartitionsToTxnTopic(name="orders", partitions=[partition])],
            ),
            version,
        )
        return Code(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def produce(self, partition: int, sequence: int, *, name: str | None = "t", version: int = 9) -> Code:
        data = bytearray(encode_batch([Record(value=b"v")]))
        struct.pack_into(">h", data, 21, TRANSACTIONAL)
        struct.pack_into(">qhi", data, 43, self.id, self.epoch, sequence)
        struct.pack_into(">I", data, 17, crc32c(data[21:]))
        shape = producer.ProduceRequest.TopicProduceData
        answer = self.ask(
            producer.ProduceRequest(
                transactional_id=name, acks=-1, timeout_ms=1000,
                topic_data=[shape(name="orders", partition_data=[
                    shape.PartitionProduceData(index=partition, records=bytes(data))])],
            ),
            version,
        )  # fmt: skip
        return Code(answer.responses[0].partition_responses[0].error_code)

    def end(self, *, commit: bool = True, version: int = 3) -> Code:
        request = producer.EndTxnRequest(
            transactional_id="t", producer_id=self.id, producer_epoch=self.epoch, committed=commit
        )
        return Code(self.ask(request, version).error_code)

    def commit_offset(self, offset: int, *, group: str = "g", version: int = 3) -> Code:
        shape = producer.TxnOffsetCommitRequest
        partition = shape.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata="m"
        )
        answer = self.ask(
            shape(
                transactional_id="t", group_id=group, producer_id=self.id, producer_epoch=self.epoch,
                generation_id=-1, member_id="", group_instance_id=None,
                topics=[shape.TxnOffsetCommitRequestTopic(name="orders", partitions=[partition])],
            ),
            version,
        )  # fmt: skip
        return Code(answer.topics[0].partitions[0].error_code)

    def add_group(self, *, version: int = 3) -> Code:
        request = producer.AddOffsetsToTxnRequest(
            transactional_id="t", producer_id=self.id, producer_epoch=self.epoch, group_id="g"
        )
        return Code(self.ask(request, version).error_code)

    def fetch_offset(self, *, stable: bool, all_partitions: bool = False) -> tuple[Code, int]:
        shape = consumer.OffsetFetchRequest.OffsetFetchRequestGroup
        topics = None if all_partitions else [shape.OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
        request = consumer.OffsetFetchRequest(
            groups=[shape(group_id="g", member_id=None, member_epoch=-1, topics=topics)], require_stable=stable
        )
        (found,) = self.ask(request, 9).groups[0].topics[0].partitions
        return Code(found.error_code), found.committed_offset


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    opened = Peer(broker)
    yield opened
    opened.close()


def test_a_partition_must_be_in_the_transaction(peer: Peer) -> None:
    peer.begin()
    assert peer.produce(0, 0) is Code.INVALID_TXN_STATE
    assert peer.add(0) is Code.NONE
    assert peer.produce(0, 0) is Code.NONE
    assert peer.produce(1, 0) is Code.INVALID_TXN_STATE
    assert peer.produce(0, 1, name=None) is Code.INVALID_TXN_STATE
    assert peer.add(7) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert peer.end() is Code.NONE
    assert peer.produce(0, 1) is Code.INVALID_TXN_STATE


@pytest.mark.parametrize("version", range(5))
def test_a_fenced_producer_gets_the_error_code_of_its_request_version(peer: Peer, version: int) -> None:
    peer.begin()
    peer.add(0)
    zombie = (peer.id, peer.epoch)
    peer.begin()
    assert peer.epoch > zombie[1]
    peer.id, peer.epoch = zombie
    assert peer.produce(0, 0) is Code.INVALID_PRODUCER_EPOCH
    expected = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
    assert peer.end(version=version) is expected
    assert peer.add_group(version=version) is expected
    assert peer.add(0, version=min(version, 3)) is expected
    assert peer.commit_offset(1, version=version) is Code.INVALID_PRODUCER_EPOCH
    if version >= 3:
        expected = Code.PRODUCER_FENCED if version >= 4 else Code.INVALID_PRODUCER_EPOCH
        assert peer.begin(version=version, claim=zombie) is expected


def test_the_transaction_timeout_is_limited(peer: Peer) -> None:
    assert peer.begin(timeout_ms=15 * 60_000 + 1) is Code.INVALID_TRANSACTION_TIMEOUT
    assert peer.begin(timeout_ms=0) is Code.INVALID_TRANSACTION_TIMEOUT
    assert peer.begin(timeout_ms=15 * 60_000) is Code.NONE


def test_offsets_of_an_open_transaction_are_not_stable(peer: Peer) -> None:
    peer.begin()
    assert peer.commit_offset(5) is Code.INVALID_TXN_STATE  # the group was not added
    assert peer.add_group() is Code.NONE
    assert peer.commit_offset(5) is Code.NONE
    assert peer.fetch_offset(stable=True) == (Code.UNSTABLE_OFFSET_COMMIT, -1)
    assert peer.fetch_offset(stable=True, all_partitions=True) == (Code.UNSTABLE_OFFSET_COMMIT, -1)
    assert peer.fetch_offset(stable=False) == (Code.NONE, -1)
    assert peer.end() is Code.NONE
    assert peer.fetch_offset(stable=True) == (Code.NONE, 5)


def test_transactions_and_producers_can_be_described(peer: Peer) -> None:
    peer.begin()
    peer.add(0)
    peer.produce(0, 0)

    def describe(name: str) -> Any:
        return peer.ask(admin.DescribeTransactionsRequest(transactional_ids=[name]), 0).transaction_states[0]

    def listed(**filters: Any) -> list[str]:
        filters = {"state_filters": [], "producer_id_filters": [], **filters}
        answer = peer.ask(admin.ListTransactionsRequest(**filters), 2)
        return [found.transactional_id for found in answer.transaction_states]

    def active() -> Any:
        shape = admin.DescribeProducersRequest
        request = shape(topics=[shape.TopicRequest(name="orders", partition_indexes=[0])])
        return peer.ask(request, 0).topics[0].partitions[0].active_producers[0]

    found = describe("t")
    assert (found.transaction_state, found.producer_id, found.topics[0].partitions) == ("Ongoing", peer.id, [0])
    assert describe("nobody").error_code == Code.TRANSACTIONAL_ID_NOT_FOUND
    assert listed() == listed(state_filters=["Ongoing"]) == listed(producer_id_filters=[peer.id]) == ["t"]
    assert listed(state_filters=["Empty"]) == listed(producer_id_filters=[12345]) == []
    assert listed(duration_filter=3_600_000) == listed(transactional_id_pattern="x.*") == []
    assert listed(transactional_id_pattern="[a-z]") == ["t"]
    assert (active().producer_id, active().current_txn_start_offset, active().last_sequence) == (peer.id, 0, 0)
    peer.end(commit=False)
    assert describe("t").transaction_state == "CompleteAbort"
    assert active().current_txn_start_offset == -1


def test_an_administrator_can_abort_a_hanging_transaction(broker: Broker, peer: Peer) -> None:
    peer.begin()
    peer.add(0)
    peer.produce(0, 0)
    name = TopicPartition("orders", 0)
    shape = producer.WriteTxnMarkersRequest
    marker = shape.WritableTxnMarker(
        producer_id=peer.id, producer_epoch=peer.epoch, transaction_result=False, coordinator_epoch=0,
        topics=[shape.WritableTxnMarker.WritableTxnMarkerTopic(name="orders", partition_indexes=[0, 9])],
    )  # fmt: skip
    with Client(broker.bootstrap_servers, read_committed=True) as client:
        assert client.offsets([name], LATEST) == {name: 0}
        (answer,) = peer.ask(shape(markers=[marker]), 1).markers
        codes = {p.partition_index: p.error_code for p in answer.topics[0].partitions}
        assert codes == {0: Code.NONE, 9: Code.UNKNOWN_TOPIC_OR_PARTITION}
        assert client.offsets([name], LATEST) == {name: 2}
        assert client.read(name, 0) == (b"", 2)
