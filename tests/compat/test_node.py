"""The metadata of a single node: its address, its directory, its only replica."""

from collections.abc import Iterator
from typing import Any

import kafka
import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import InvalidReplicationFactorError, LogDirNotFoundError, NoError
from kafka.structs import TopicPartitionReplica

from headwater.transmit.broker.embedded import Broker

WAIT_S = 30.0

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's


@pytest.fixture
def admin(broker: Broker) -> Iterator[Any]:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield admin
    admin.close()


@pytest.mark.compat("log directories and replicas", client="kafka-python")
def test_a_replica_cannot_move_to_another_directory(admin: Any) -> None:
    admin.create_topics([kafka.admin.NewTopic("orders", 1, 1)])
    (node,) = admin.describe_log_dirs()
    here = node["log_dirs"][0]["log_dir"]
    replica = TopicPartitionReplica("orders", 0, node["broker"])
    assert admin.alter_replica_log_dirs({replica: here}) == {replica: NoError}
    assert admin.alter_replica_log_dirs({replica: "/elsewhere"}) == {replica: LogDirNotFoundError}


def test_the_listener_address_is_described_as_read_only(admin: Any, broker: Broker) -> None:
    wanted = [ConfigResource(ConfigResourceType.BROKER, 1)]
    found = admin.describe_configs(wanted, config_filter="all")["broker"]["1"]["advertised.listeners"]
    assert found["value"] == f"PLAINTEXT://{broker.bootstrap_servers}"
    assert (found["config_source"], found["read_only"]) == ("STATIC_BROKER_CONFIG", True)


def test_any_replication_factor_is_accepted_if_configured(admin: Any) -> None:
    wanted = [kafka.admin.NewTopic("orders", 1, 3)]
    with pytest.raises(InvalidReplicationFactorError):
        admin.create_topics(wanted)
    change = {"headwater.any.replication.factor": "true"}
    admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", configs=change)])
    admin.create_topics(wanted)
    (topic,) = admin.describe_topics(["orders"])
    assert topic["partitions"][0]["replica_nodes"] == [1]


@pytest.mark.compat("metadata of cluster and topics", client="confluent-kafka")
def test_authorized_operations_list_every_operation(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("orders", 1)])["orders"].result(WAIT_S)
    cluster = admin.describe_cluster(include_authorized_operations=True).result(WAIT_S)
    assert AclOperation.IDEMPOTENT_WRITE in cluster.authorized_operations
    topics = admin.describe_topics(TopicCollection(["orders"]), include_authorized_operations=True)
    assert len(topics["orders"].result(WAIT_S).authorized_operations) == 8
    plain = admin.describe_cluster().result(WAIT_S)
    assert plain.authorized_operations is None
