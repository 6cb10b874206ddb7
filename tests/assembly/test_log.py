"""The log of a running app, and its topics."""

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

import headwater as hw
from headwater.assembly.log import check_topics, log_address, open_log
from headwater.assembly.settings import RunSettings
from headwater.errors import ConflictError, InvalidError


def settings(data: Path, servers: str | None = None) -> RunSettings:
    return RunSettings(data=data, bootstrap_servers=servers, listen=("127.0.0.1", 0), http=None, master="local[1]")


def test_the_embedded_log_keeps_the_records_of_the_apps_topics_without_limit(tmp_path: Path) -> None:
    app, lines = hw.App("shop"), list[str]()
    app.topic("orders", partitions=3)
    with open_log(app, settings(tmp_path), lines.append) as log:
        admin = AdminClient({"bootstrap.servers": log.bootstrap_servers})
        assert len(admin.list_topics("orders", timeout=10).topics["orders"].partitions) == 3
        (answer,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "orders")]).values()
        assert answer.result(10)["retention.ms"].value == "-1"
        assert lines == [f"log ready at {log.bootstrap_servers}, for any Kafka client; data in {tmp_path}"]


def test_another_log_decides_whether_to_create_a_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = hw.App("shop")
    app.topic("orders")
    monkeypatch.setattr("headwater.assembly.log.TOPIC_WAIT_S", 0.2)
    with hw.Broker(auto_create_topics_enable=False) as strict, pytest.raises(InvalidError, match="does not exist"):
        check_topics(app, strict.bootstrap_servers)
    with (
        hw.Broker() as generous,
        open_log(app, settings(tmp_path, generous.bootstrap_servers), print) as log,
    ):
        assert (log.bootstrap_servers, log.broker) == (generous.bootstrap_servers, None)


def test_a_command_starts_the_log_of_a_stopped_app_and_names_the_way_to_a_running_one(tmp_path: Path) -> None:
    app = hw.App("shop")
    app.topic("orders")
    with log_address(tmp_path, None) as servers:
        assert servers.startswith("127.0.0.1:")
    with (
        open_log(app, settings(tmp_path), print),
        pytest.raises(ConflictError) as refused,
        log_address(tmp_path, None),
    ):
        pass
    assert "--bootstrap-servers" in (refused.value.hint or "")
