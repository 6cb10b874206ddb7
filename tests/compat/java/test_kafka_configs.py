"""Kafka's own kafka-configs.sh sets, lists and removes quotas."""

import shutil
import subprocess
from collections.abc import Callable

import pytest

from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.client.quotas import list_quotas
from headwater.transmit.quotas import DEFAULT, Entity
from support import brokers

VERSION = "4.3.1"
WAIT_S = 120
MISSING = [program for program in ("java", "mvn") if shutil.which(program) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not on the PATH: {', '.join(MISSING)}")

Configs = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def kafka_configs() -> Configs:
    """Runs the class of kafka-configs.sh, from the jars that the benchmarks also use."""
    try:
        jars = brokers.kafka_jars(VERSION)
    except SystemExit as error:
        pytest.skip(str(error))

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = brokers.java(jars, "kafka.admin.ConfigCommand", *arguments, heap="256m")
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)

    return run


def test_quotas_are_set_listed_and_removed(kafka_configs: Configs, broker: Broker) -> None:
    def configs(*arguments: str) -> str:
        done = kafka_configs("--bootstrap-server", broker.bootstrap_servers, *arguments)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    loader = ("--entity-type", "clients", "--entity-name", "loader")
    all_users = ("--entity-type", "users", "--entity-default")
    configs("--alter", "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048", *loader)
    configs("--alter", "--add-config", "request_percentage=50", *all_users, *loader)
    assert "consumer_byte_rate=2048.0, producer_byte_rate=1024.0" in configs("--describe", *loader)
    assert "request_percentage=50.0" in configs("--describe", "--entity-type", "users", "--entity-type", "clients")
    configs("--alter", "--delete-config", "consumer_byte_rate", *loader)
    with Client(broker.bootstrap_servers) as client:
        assert list_quotas(client) == {
            Entity(None, "loader"): {"producer_byte_rate": 1024.0},
            Entity(DEFAULT, "loader"): {"request_percentage": 50.0},
        }
    refused = kafka_configs(
        "--bootstrap-server", broker.bootstrap_servers, "--alter", "--add-config", "connection_creation_rate=5",
        "--entity-type", "ips", "--entity-name", "127.0.0.1",
    )  # fmt: skip
    assert refused.returncode != 0
    assert "have no quotas, only" in refused.stderr
