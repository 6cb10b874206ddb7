"""What one node says about itself: its address, its directory, its only replica."""

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
def test_a_replica_stays_in_its_directory_and_finds_no_other(admin: Any) -> None:
    admin.create_topics([kafka.admin.NewTopic("orders", 1, 1)])
    (node,) = admin.describe_log_dirs()
    here = node["log_dirs"][0]["log_dir"]
    replica = TopicPartitionReplica("orders", 0, node["broker"])
    assert admin.alter_replica_log_dirs({replica: here}) == {replica: NoError}
    assert admin.alter_replica_log_dirs({replica: "/elsewhere"}) == {replica: LogDirNotFoundError}


def test_the_broker_says_where_it_listens_and_that_this_stays_so(admin: Any, broker: Broker) -> None:
    asked = [ConfigResource(ConfigResourceType.BROKER, 1)]
    found = admin.describe_configs(asked, config_filter="all")["broker"]["1"]["advertised.listeners"]
    assert found["value"] == f"PLAINTEXT://{broker.bootstrap_servers}"
    assert (found["config_source"], found["read_only"]) == ("STATIC_BROKER_CONFIG", True)


def test_a_topic_may_ask_for_more_replicas_than_there_are_where_that_is_wanted(admin: Any) -> None:
    wanted = [kafka.admin.NewTopic("orders", 1, 3)]
    with pytest.raises(InvalidReplicationFactorError):
        admin.create_topics(wanted)
    change = {"headwater.any.replication.factor": "true"}
    admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", configs=change)])
    admin.create_topics(wanted)
    (topic,) = admin.describe_topics(["orders"])
    assert topic["partitions"][0]["replica_nodes"] == [1]


@pytest.mark.compat("metadata of cluster and topics", client="confluent-kafka")
def test_whoever_asks_is_told_that_everything_is_allowed(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("orders", 1)])["orders"].result(WAIT_S)
    cluster = admin.describe_cluster(include_authorized_operations=True).result(WAIT_S)
    assert AclOperation.IDEMPOTENT_WRITE in cluster.authorized_operations
    topics = admin.describe_topics(TopicCollection(["orders"]), include_authorized_operations=True)
    assert len(topics["orders"].result(WAIT_S).authorized_operations) == 8
    unasked = admin.describe_cluster().result(WAIT_S)
    assert unasked.authorized_operations is None
