"""What an app finds in its log."""

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

import headwater as hw
from headwater.assembly.app import _ensure_topics
from headwater.errors import InvalidError


def test_topics_of_an_app_keep_their_records_in_its_own_log(broker: hw.Broker) -> None:
    app = hw.App("shop")
    app.topic("orders", partitions=3)
    _ensure_topics(app, broker.bootstrap_servers, embedded=True)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert len(admin.list_topics("orders", timeout=10).topics["orders"].partitions) == 3
    (answer,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "orders")]).values()
    assert answer.result(10)["retention.ms"].value == "-1"


def test_elsewhere_the_broker_decides_whether_to_create_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    app = hw.App("shop")
    app.topic("orders")
    monkeypatch.setattr("headwater.assembly.app.TOPIC_WAIT_S", 0.2)
    with hw.Broker(auto_create_topics_enable=False) as strict, pytest.raises(InvalidError, match="does not exist"):
        _ensure_topics(app, strict.bootstrap_servers, embedded=False)
    with hw.Broker() as generous:
        _ensure_topics(app, generous.bootstrap_servers, embedded=False)
