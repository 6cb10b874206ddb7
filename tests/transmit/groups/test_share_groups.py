"""Share groups over TCP, request by request, for cases that the real share consumer does not produce."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, IncrementalAlterConfigsRequest, ListGroupsRequest
from kafka.protocol.consumer import JoinGroupRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from headwater.errors import ConflictError, InvalidError
from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client import groups as group_client
from headwater.transmit.client.client import Client
from headwater.transmit.groups.settings import GroupSettings, check_config, duration_ms
from headwater.transmit.groups.share import dead_letter_writer
from headwater.transmit.groups.share.members import assign_shared
from headwater.transmit.groups.share.share_partition import Ack
from headwater.transmit.records.batch import decode_batch, encode_batch
from headwater.transmit.records.batch_header import walk
from headwater.transmit.wire import json_messages as wire
from headwater.transmit.wire.codes import Code

JOBS = TopicPartition("jobs", 0)


class Peer:
    """A member of the share group `workers` that reads `jobs`, with single requests."""

    def __init__(self, servers: str, member: str = "m") -> None:
        self.servers = servers
        self.client = Client(servers)
        self.member = member
        self.epoch = 0
        self.client.create_topic("jobs")
        (topic,) = self.client.call(
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="jobs")])
        ).topics
        self.topic_id = topic.topic_id

    def configure(self, **configs: str) -> int:
        shape = IncrementalAlterConfigsRequest.AlterConfigsResource
        entries = [
            shape.AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
            for name, value in configs.items()
        ]
        resource = shape(resource_type=32, resource_name="workers", configs=entries)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        return int(self.client.call(request).responses[0].error_code)

    def send(self, count: int) -> None:
        self.client.produce(JOBS, encode_batch([Record(value=b"%d" % n) for n in range(count)]))

    def join(self, epoch: int = 0) -> Any:
        return self.client.call(
            wire.ShareGroupHeartbeatRequest(
                group_id="workers", member_id=self.member, member_epoch=epoch, subscribed_topic_names=["jobs"]
            )
        )

    def fetch(self, *acks: tuple[int, int, Ack], epoch: int | None = None, **requested: Any) -> Any:
        shape = wire.ShareFetchRequest.FetchTopic
        if epoch is not None:
            self.epoch = epoch
        request = wire.ShareFetchRequest(
            **{
                "group_id": "workers", "member_id": self.member, "share_session_epoch": self.epoch,
                "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500,
                "share_acquire_mode": 0, "forgotten_topics_data": [],
                "topics": [shape(topic_id=self.topic_id, partitions=[
                    shape.FetchPartition(partition_index=0, acknowledgement_batches=self._batches(shape, acks))])],
                **requested,
            }
        )  # fmt: skip
        self.epoch += 1
        return self.client.call(request)

    def acknowledge(self, *acks: tuple[int, int, Ack]) -> int:
        shape = wire.ShareAcknowledgeRequest.AcknowledgeTopic
        inner = shape.AcknowledgePartition(
            partition_index=0,
            acknowledgement_batches=[
                shape.AcknowledgePartition.AcknowledgementBatch(
                    first_offset=first, last_offset=last, acknowledge_types=[kind]
                )
                for first, last, kind in acks
            ],
        )
        request = wire.ShareAcknowledgeRequest(
            group_id="workers",
            member_id=self.member,
            share_session_epoch=self.epoch,
            topics=[shape(topic_id=self.topic_id, partitions=[inner])],
        )
        self.epoch += 1
        response = self.client.call(request)
        return int(response.error_code or response.responses[0].partitions[0].error_code)

    @staticmethod
    def _batches(shape: Any, acks: tuple[tuple[int, int, Ack], ...]) -> list[Any]:
        return [
            shape.FetchPartition.AcknowledgementBatch(
                first_offset=first, last_offset=last, acknowledge_types=[kind]
            )
            for first, last, kind in acks
        ]


def acquired(response: Any) -> list[tuple[int, int, int]]:
    return [
        (span.first_offset, span.last_offset, span.delivery_count)
        for topic in response.responses
        for partition in topic.partitions
        for span in partition.acquired_records
    ]


@pytest.fixture
def peer(broker: Broker) -> Any:
    peer = Peer(broker.bootstrap_servers)
    assert peer.configure(share_auto_offset_reset="earliest") == Code.NONE
    yield peer
    peer.client.close()


def test_sessions_are_opened_counted_and_closed(peer: Peer) -> None:
    peer.send(3)
    assert peer.fetch(epoch=4).error_code == Code.SHARE_SESSION_NOT_FOUND
    assert peer.fetch((0, 0, Ack.ACCEPT), epoch=0).error_code == Code.INVALID_REQUEST
    assert acquired(peer.fetch(epoch=0)) == [(0, 2, 1)]
    assert peer.fetch(epoch=7).error_code == Code.INVALID_SHARE_SESSION_EPOCH
    peer.epoch = 1
    assert peer.acknowledge((0, 0, Ack.ACCEPT)) == Code.NONE
    assert peer.fetch((1, 1, Ack.ACCEPT), epoch=-1).error_code == Code.NONE
    assert acquired(peer.fetch(epoch=0)) == [(2, 2, 1)]  # a clean release does not count as a delivery


def test_a_broken_connection_releases_records_at_once_and_counts_as_a_delivery(broker: Broker, peer: Peer) -> None:
    peer.send(3)
    for count in range(1, 6):
        other = Peer(broker.bootstrap_servers, member=f"other-{count}")
        while not (found := acquired(other.fetch(epoch=0, max_wait_ms=10_000))):
            pass  # the broker has not noticed yet that the old connection is closed
        assert found == [(0, 2, count)]
        other.client.close()
    # The delivery limit is reached, so the records cannot crash another consumer.
    assert acquired(peer.fetch(epoch=0, max_wait_ms=500)) == []


def test_a_session_continues_over_a_new_connection(broker: Broker, peer: Peer) -> None:
    """A member that reconnects before the broker notices the broken connection keeps its records."""
    peer.send(3)
    peer.join()
    assert acquired(peer.fetch(epoch=0)) == [(0, 2, 1)]
    old, peer.client = peer.client, Client(broker.bootstrap_servers)
    assert peer.acknowledge((0, 0, Ack.ACCEPT)) == Code.NONE
    old.close()
    wait_until(lambda: "headwater_connections 1" in broker.metrics())
    assert peer.acknowledge((1, 2, Ack.ACCEPT)) == Code.NONE
    assert acquired(peer.fetch()) == []


def test_the_partitions_of_a_disconnected_member_are_reassigned(broker: Broker, peer: Peer) -> None:
    other = Peer(broker.bootstrap_servers, member="other")
    assert other.join().error_code == Code.NONE
    assert other.fetch(epoch=0).error_code == Code.NONE
    first = peer.join().member_epoch
    assert len(group_client.members(peer.client, group_client.find_group(peer.client, "workers"))) == 2
    other.client.close()
    wait_until(lambda: peer.join(epoch=first).member_epoch > first)
    (left,) = group_client.members(peer.client, group_client.find_group(peer.client, "workers"))
    assert left.id == "m"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_a_member_that_left_may_still_acknowledge_until_its_session_ends(peer: Peer) -> None:
    peer.send(3)
    peer.join()
    assert acquired(peer.fetch(epoch=0)) == [(0, 2, 1)]
    assert peer.join(epoch=-1).error_code == Code.NONE
    assert peer.fetch((0, 1, Ack.ACCEPT), epoch=-1).responses[0].partitions[0].acknowledge_error_code == Code.NONE
    assert acquired(peer.fetch(epoch=0)) == [(2, 2, 1)]  # a clean release does not count as a delivery


def test_a_member_that_left_without_closing_its_session_loses_it(peer: Peer) -> None:
    peer.configure(share_record_lock_duration_ms="100")
    peer.send(3)
    peer.join()
    assert acquired(peer.fetch(epoch=0)) == [(0, 2, 1)]
    peer.join(epoch=-1)
    other = Peer(peer.servers, "other")
    assert acquired(other.fetch(epoch=0, max_wait_ms=20_000)) == [(0, 2, 2)]
    other.client.close()
    deadline = time.monotonic() + 20
    while (code := peer.fetch(epoch=99).error_code) == Code.INVALID_SHARE_SESSION_EPOCH:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert code == Code.SHARE_SESSION_NOT_FOUND


def test_only_acquired_records_may_be_acknowledged(peer: Peer) -> None:
    peer.send(3)
    peer.fetch(epoch=0)
    assert peer.acknowledge((0, 5, Ack.ACCEPT)) == Code.INVALID_RECORD_STATE
    (topic,) = peer.fetch((7, 7, Ack.ACCEPT)).responses
    assert topic.partitions[0].acknowledge_error_code == Code.INVALID_RECORD_STATE
    assert peer.acknowledge((0, 2, Ack.ACCEPT)) == Code.NONE
    assert peer.acknowledge((0, 2, Ack.ACCEPT)) == Code.INVALID_RECORD_STATE


def test_the_number_of_acquired_records_is_exact_if_requested(peer: Peer) -> None:
    peer.send(10)
    assert acquired(peer.fetch(epoch=0, max_records=3, share_acquire_mode=1)) == [(0, 2, 1)]
    assert acquired(peer.fetch(max_records=3)) == [(3, 9, 1)]


def test_a_fetch_waits_for_records(peer: Peer, broker: Broker) -> None:
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(peer.fetch(epoch=0, max_wait_ms=20_000)))
    waiting.start()
    other = Peer(broker.bootstrap_servers, "other")
    other.send(2)
    waiting.join()
    assert acquired(found[0]) == [(0, 1, 1)]
    waiting = threading.Thread(target=lambda: found.append(other.fetch(epoch=0, max_wait_ms=20_000)))
    waiting.start()
    peer.acknowledge((0, 1, Ack.RELEASE))
    waiting.join()
    assert acquired(found[1]) == [(0, 1, 2)]
    other.client.close()


def test_records_that_reach_the_delivery_limit_are_archived(peer: Peer) -> None:
    peer.configure(share_delivery_count_limit="2")
    peer.join()
    peer.send(2)
    peer.fetch(epoch=0)
    peer.acknowledge((0, 1, Ack.RELEASE))
    assert acquired(peer.fetch()) == [(0, 1, 2)]
    peer.acknowledge((0, 1, Ack.RELEASE))
    assert acquired(peer.fetch()) == []
    assert group_client.share_starts(peer.client, "workers")[JOBS].start == 2


def test_a_renewed_lock_is_kept(peer: Peer) -> None:
    peer.configure(share_record_lock_duration_ms="60000")
    peer.send(1)
    assert peer.fetch(epoch=0).acquisition_lock_timeout_ms == 60_000
    assert peer.acknowledge((0, 0, Ack.RENEW)) == Code.NONE
    assert peer.acknowledge((0, 0, Ack.ACCEPT)) == Code.NONE


def test_a_dead_letter_that_cannot_be_written_is_retried(
    peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_writer, "RETRY_S", 0.1)
    peer.configure(errors_deadletterqueue_topic_name="not/allowed")
    peer.join()
    peer.send(1)
    peer.fetch(epoch=0)
    assert peer.acknowledge((0, 0, Ack.REJECT)) == Code.NONE
    assert group_client.share_starts(peer.client, "workers")[JOBS].start == 0
    assert acquired(peer.fetch()) == []
    peer.configure(errors_deadletterqueue_topic_name="dead")
    while group_client.share_starts(peer.client, "workers")[JOBS].start == 0:
        pass
    data = peer.client.fetch(TopicPartition("dead", 0), 0)
    (letter,) = [record for at, _ in walk(data) for record in decode_batch(data, at)]
    assert (letter.value, dict(letter.headers)["__dlq.errors.offset"]) == (None, b"0")


def test_a_missing_dead_letter_is_written_after_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        peer = Peer(broker.bootstrap_servers)
        peer.configure(share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name="not/allowed")
        peer.join()
        peer.send(1)
        peer.fetch(epoch=0)
        peer.acknowledge((0, 0, Ack.REJECT))
        peer.configure(errors_deadletterqueue_topic_name="dead")
        peer.client.close()
    with Broker(tmp_path) as broker:
        peer = Peer(broker.bootstrap_servers)
        while group_client.share_starts(peer.client, "workers")[JOBS].start == 0:
            pass
        assert peer.client.fetch(TopicPartition("dead", 0), 0)
        peer.client.close()


def test_a_share_group_is_moved_and_deleted_when_it_is_empty(peer: Peer) -> None:
    peer.send(5)
    assert peer.join().member_epoch == 1
    with pytest.raises(ConflictError, match="it has members"):
        group_client.move_share(peer.client, "workers", {JOBS: 3})
    assert peer.join(epoch=-1).member_epoch == -1
    group_client.move_share(peer.client, "workers", {JOBS: 3})
    assert group_client.share_starts(peer.client, "workers")[JOBS] == group_client.ShareStart(
        start=3, lag_records=2
    )
    shape = wire.DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic
    request = wire.DeleteShareGroupOffsetsRequest(group_id="workers", topics=[shape(topic_name="jobs")])
    assert peer.client.call(request).responses[0].error_code == Code.NONE
    assert group_client.share_starts(peer.client, "workers") == {}
    (result,) = peer.client.call(DeleteGroupsRequest(groups_names=["workers"])).results
    assert result.error_code == Code.NONE
    assert group_client.list_groups(peer.client) == []


def test_members_with_a_wrong_epoch_are_fenced(peer: Peer) -> None:
    assert peer.join(epoch=3).error_code == Code.UNKNOWN_MEMBER_ID
    peer.join()
    assert peer.join(epoch=3).error_code == Code.FENCED_MEMBER_EPOCH
    assert peer.join(epoch=1).error_code == Code.NONE


def test_a_group_id_belongs_to_one_kind_of_group(peer: Peer) -> None:
    peer.join()
    heartbeat = wire.ConsumerGroupHeartbeatRequest(
        group_id="workers", member_id="c", member_epoch=0, subscribed_topic_names=["jobs"], topic_partitions=[]
    )
    assert peer.client.call(heartbeat).error_code == Code.GROUP_ID_NOT_FOUND
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    join = JoinGroupRequest(
        group_id="workers", session_timeout_ms=9000, rebalance_timeout_ms=9000, member_id="", reason=None,
        group_instance_id=None, protocol_type="consumer", protocols=[protocol],
    )  # fmt: skip
    assert peer.client.call(join).error_code == Code.INCONSISTENT_GROUP_PROTOCOL
    (listed,) = peer.client.call(ListGroupsRequest(states_filter=[], types_filter=["share"])).groups
    assert (listed.group_id, listed.group_type, listed.group_state) == ("workers", "share", "Stable")
    assert peer.client.call(ListGroupsRequest(states_filter=[], types_filter=["classic"])).groups == []


def test_features_are_finalized_and_hidden_from_older_clients(peer: Peer) -> None:
    response = peer.client.call(ApiVersionsRequest(client_software_name="peer", client_software_version="1"))
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
    assert levels == {"group.version": 1, "share.version": 1}
    assert {feature.name for feature in response.supported_features} == set(levels)


def test_invalid_configs_are_rejected(peer: Peer) -> None:
    assert peer.configure(share_auto_offset_reset="yesterday") == Code.INVALID_CONFIG
    assert peer.configure(share_delivery_count_limit="many") == Code.INVALID_CONFIG
    assert peer.configure(share_unheard_of="1") == Code.INVALID_CONFIG
    assert peer.configure(errors_deadletterqueue_copy_record_enable="perhaps") == Code.INVALID_CONFIG
    assert group_client.group_configs(peer.client, "workers")["share.auto.offset.reset"] == "earliest"
    with pytest.raises(InvalidError, match="cannot read duration"):
        check_config("share.auto.offset.reset", "by_duration:soon")
    assert duration_ms("P1DT2H3M4.5S") == ((26 * 60 + 3) * 60 + 4) * 1000 + 500
    assert GroupSettings(configs={"share.auto.offset.reset": "by_duration:PT1M"}).reset == 60_000


def test_every_partition_has_a_member_and_every_member_a_partition() -> None:
    topics = frozenset({"x", "y"})
    few = assign_shared({"a": topics, "b": topics}, {"x": 3, "y": 2})
    assert sorted(len(some) for some in few.values()) == [2, 3]
    many = assign_shared(dict.fromkeys("abcde", frozenset({"x"})), {"x": 2})
    assert sorted(tp.partition for some in many.values() for tp in some) == [0, 0, 0, 1, 1]
