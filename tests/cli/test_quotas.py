"""Quotas on the command line."""

import json
import subprocess
from collections.abc import Callable

import pytest

from headwater.transmit.broker.embedded import Broker

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_quotas_are_set_listed_and_removed(broker: Broker, headwater: Run) -> None:
    def run(*arguments: str) -> str:
        done = headwater("quota", *arguments, "-b", broker.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert json.loads(run("list", "-o", "json")) == {"quotas": []}
    loader = ("--client-id", "loader")
    text = run("set", "producer_byte_rate=1048576", "request_percentage=12.5", *loader)
    assert text == "client-id 'loader': producer_byte_rate = 1048576, request_percentage = 12.5\n"
    assert json.loads(run("set", "consumer_byte_rate=10", "--user-default", *loader, "-o", "json")) == {
        "entity": {"user": None, "client-id": "loader"}, "values": {"consumer_byte_rate": 10.0}
    }  # fmt: skip
    assert "default user, client-id 'loader'" in run("list")
    assert run("remove", "request_percentage", *loader) == "client-id 'loader': producer_byte_rate = 1048576\n"
    assert run("remove", "producer_byte_rate", *loader) == "client-id 'loader': no quotas\n"
    assert json.loads(run("list", "-o", "json")) == {
        "quotas": [{"entity": {"user": None, "client-id": "loader"}, "values": {"consumer_byte_rate": 10.0}}]
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("set", "producer_byte_rate=10"), "no user or client is named"),
        (("set", "producer_byte_rate", "--client-id", "a"), "expected NAME=NUMBER"),
        (("set", "producer_byte_rate=fast", "--client-id", "a"), "expected NAME=NUMBER"),
        (("set", "producer_byte_rate=-1", "--client-id", "a"), "must be greater than 0"),
        (("set", "speed=1", "--client-id", "a"), "there are producer_byte_rate"),
        (("set", "producer_byte_rate=1", "--client-id", "a", "--client-id-default"), "not both"),
        (("set", "producer_byte_rate=1", "--client-id", ""), "the name is empty"),
    ],
)
def test_a_mistake_gets_a_clear_message(
    broker: Broker, headwater: Run, arguments: tuple[str, ...], words: str
) -> None:
    done = headwater("quota", *arguments, "-b", broker.bootstrap_servers)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
