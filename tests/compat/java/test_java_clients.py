"""Java's clients, run by Kafka's own verification tools."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from headwater.transmit.client import groups as group_client
from headwater.transmit.client.client import Client

WAIT_S = 120
RECORDS = 2000

Tool = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def tool(java: list[str]) -> Tool:
    """Runs a tool of this version of Kafka."""

    def run(name: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
        command = [*java, f"org.apache.kafka.tools.{name}", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)

    return run


def events(output: str) -> list[dict[str, Any]]:
    """Return the JSON objects that a tool prints, one per line, among lines of its log."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def named(output: str, name: str) -> list[dict[str, Any]]:
    return [event for event in events(output) if event["name"] == name]


@pytest.mark.compat("acks 1 and all", client="Java")
@pytest.mark.parametrize("acks", [1, -1])
def test_every_record_produced_is_acknowledged(tool: Tool, servers: str, topic: str, acks: int) -> None:
    to = ("--bootstrap-server", servers, "--topic", topic)
    done = tool("VerifiableProducer", *to, "--max-messages", RECORDS, "--acks", acks)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (summary,) = named(done.stdout, "tool_data")
    assert (summary["sent"], summary["acked"]) == (RECORDS, RECORDS)
    acknowledged = {(e["partition"], e["offset"]) for e in named(done.stdout, "producer_send_success")}
    assert len(acknowledged) == RECORDS


ASSIGNORS = ("RangeAssignor", "CooperativeStickyAssignor")


@pytest.mark.compat("classic groups: sharing, taking over, committing", client="Java")
@pytest.mark.compat("assignors, cooperative ones too", client="Java")
@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_a_group_reads_every_record_once(tool: Tool, servers: str, topic: str, assignor: str) -> None:
    to = ("--bootstrap-server", servers, "--topic", topic)
    assert tool("VerifiableProducer", *to, "--max-messages", RECORDS).returncode == 0
    group = ("--group-id", f"group-{topic}", "--max-messages", RECORDS, "--reset-policy", "earliest")
    strategy = ("--assignment-strategy", f"org.apache.kafka.clients.consumer.{assignor}")
    done = tool("VerifiableConsumer", *to, *group, *strategy, "--verbose")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    read = [(e["partition"], e["offset"]) for e in named(done.stdout, "record_data")]
    assert len(read) == len(set(read)) == RECORDS
    commits = named(done.stdout, "offsets_committed")
    assert commits
    assert all(commit["success"] for commit in commits)


@pytest.mark.parametrize("version", ["4.3.1"], indirect=True)  # older versions have no share consumer
def test_a_share_consumer_accepts_every_record_once(tool: Tool, servers: str, topic: str) -> None:
    to = ("--bootstrap-server", servers, "--topic", topic)
    assert tool("VerifiableProducer", *to, "--max-messages", RECORDS).returncode == 0
    group = ("--group-id", "workers", "--max-messages", RECORDS, "--offset-reset-strategy", "earliest")
    done = tool("VerifiableShareConsumer", *to, *group, "--acknowledgement-mode", "sync")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    taken = [
        (part["partition"], offset)
        for event in named(done.stdout, "offsets_acknowledged")
        for part in event["partitions"]
        for offset in part["offsets"]
    ]
    assert len(taken) == len(set(taken)) == RECORDS
    with Client(servers) as client:
        starts = group_client.share_starts(client, "workers").values()
        assert [start.lag_records for start in starts] == [0, 0, 0]
        # The consumer has closed its session and left; the group is empty.
        assert group_client.members(client, group_client.find_group(client, "workers")) == []


@pytest.mark.parametrize("compression", ["snappy", "lz4"])  # Java frames these in a special format
def test_java_reads_records_that_the_broker_compressed(tool: Tool, servers: str, compression: str) -> None:
    topic = f"stored-as-{compression}"
    with Client(servers) as client:
        client.create_topic(topic, partitions=3, configs={"compression.type": compression})
    to = ("--bootstrap-server", servers, "--topic", topic)
    assert tool("VerifiableProducer", *to, "--max-messages", RECORDS).returncode == 0
    group = ("--group-id", f"group-{topic}", "--max-messages", RECORDS, "--reset-policy", "earliest")
    done = tool("VerifiableConsumer", *to, *group, "--verbose")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert len({e["value"] for e in named(done.stdout, "record_data")}) == RECORDS


@pytest.mark.compat("idempotent producer", client="Java")
@pytest.mark.compat("offsets by time, exact to the record", client="Java")
@pytest.mark.compat("metadata of cluster and topics", client="Java")
def test_the_features_of_the_compatibility_test(tool: Tool, servers: str, topic: str) -> None:
    """Kafka's ClientCompatibilityTest: produce, admin, consume by subscription, offsets by time."""
    options = {
        "--offsets-for-times-supported": True,
        "--cluster-id-supported": True,
        "--expect-record-too-large-exception": False,
        "--num-cluster-nodes": 1,
        "--create-topics-supported": True,
        "--describe-acls-supported": True,
        "--describe-configs-supported": True,
        "--idempotent-producer-supported": True,
    }
    arguments = [part for name, value in options.items() for part in (name, str(value))]
    done = tool("ClientCompatibilityTest", "--bootstrap-server", servers, "--topic", topic, *arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
