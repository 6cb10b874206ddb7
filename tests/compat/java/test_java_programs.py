"""Java programs for features that Kafka's tools do not use: transactions, queues, the consumer protocol.

They run from source, which needs a JDK: with only a JRE the tests are skipped.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.transmit.client.client import Client

WAIT_S = 240
PROGRAMS = Path(__file__).parent

pytestmark = pytest.mark.skipif(shutil.which("javac") is None, reason="javac (a JDK) is not on the PATH")

Program = Callable[..., list[str]]


def compat(feature: str) -> pytest.MarkDecorator:
    return pytest.mark.compat(feature, client="Java")


@pytest.fixture
def program(java: list[str]) -> Program:
    """Runs a program with this version of the client, and returns the lines that it prints."""

    def run(name: str, *arguments: str) -> list[str]:
        command = [*java, str(PROGRAMS / f"{name}.java"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout.splitlines()

    return run


@compat("records with key, headers, time and null values")
@compat("compression: gzip, snappy, lz4, zstd")
@compat("reading from any offset")
def test_records_are_read_as_they_were_sent(program: Program, servers: str, topic: str) -> None:
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    found = [f"{2 * n} {codec} 1000 key 1000" for n, codec in enumerate(codecs)]
    tombstones = [f"{2 * n + 1} {codec} 2000 key null" for n, codec in enumerate(codecs)]
    both = [line for pair in zip(found, tombstones, strict=True) for line in pair]
    assert program("Basics", servers, topic, "records") == [*both, "from 7: 7"]


@compat("topics: create, grow, delete")
@compat("configs: describe and change")
@compat("deleting records")
def test_topics_and_their_configs_are_managed(program: Program, servers: str, topic: str) -> None:
    assert program("Basics", servers, topic, "admin") == [
        "partitions 3",
        "retention.ms 5000",
        "still there false",
        "begins at 3",
        "earliest 3",
    ]


@compat("transactions: commit, abort, read_committed")
def test_readers_see_what_their_isolation_allows(program: Program, servers: str, topic: str) -> None:
    committed = ["committed 1"] * 3 + ["committed 2"] * 3
    aborted = ["aborted 1"] * 3 + ["aborted 2"] * 3
    assert program("Transactions", servers, topic, "ends") == [
        f"read_committed [{', '.join(committed)}]",
        f"read_uncommitted [{', '.join(aborted + committed)}]",
    ]


@compat("transactions: zombies are fenced")
def test_a_zombie_is_fenced_and_its_transaction_is_aborted(program: Program, servers: str, topic: str) -> None:
    found = program("Transactions", servers, topic, "fencing")
    assert found == ["fenced ProducerFencedException", "read_committed [heir]"]


@compat("transactions: offsets inside")
def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    program: Program, servers: str, topic: str
) -> None:
    assert program("Transactions", servers, topic, "offsets") == [
        "after commit 5 read, 5 committed",
        "after abort 5 read, 5 committed",
        "copied 5",
    ]


@compat("the new consumer protocol (KIP-848)")
def test_members_share_and_take_over_in_the_consumer_protocol(program: Program, servers: str, topic: str) -> None:
    found = program("Members", servers, topic, "consumer")
    assert found == ["shared true", "taken over true", "seen 60, at most 1 times"]


@compat("classic groups: sharing, taking over, committing")
def test_members_share_and_take_over_in_the_classic_protocol(program: Program, servers: str, topic: str) -> None:
    found = program("Members", servers, topic, "classic")
    assert found == ["shared true", "taken over true", "seen 60, at most 1 times"]


class TestQueues:
    """Queues with the newer client: the older one has no share consumer."""

    pytestmark = pytest.mark.parametrize("version", ["4.3.1"], indirect=True, scope="session")

    @compat("queues: accept, each record once")
    def test_every_record_is_accepted_once(self, program: Program, servers: str, topic: str) -> None:
        assert program("Queue", servers, topic, "sharing") == ["seen 30, at most Optional[1] times"]

    @compat("queues: release and reject, with a delivery count")
    def test_each_acknowledgement_type_has_its_effect(self, program: Program, servers: str, topic: str) -> None:
        found = program("Queue", servers, topic, "answers")
        assert found == ["deliveries {0=[1], 1=[1, 2], 2=[1], 3=[1, 2, 3]}"]

    @compat("queues: locks that time out")
    def test_records_of_a_silent_member_go_to_another(self, program: Program, servers: str) -> None:
        with Client(servers) as client:
            client.create_topic("jobs", partitions=1)
        found = program("Queue", servers, "jobs", "timeout")
        assert found == ["kept some true, got 5, those kept again true"]
