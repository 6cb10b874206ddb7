"""`headwater deadletter` as users run it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.dead_letters import dead_letter_headers

Run = Callable[..., "subprocess.CompletedProcess[str]"]
ORDERS = TopicPartition("orders", 0)


def test_dead_letters_are_listed_shown_and_redriven(tmp_path: Path, headwater: Run) -> None:
    with Broker(tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        with Client(servers) as client:
            client.create_topic("orders", partitions=1)
            client.create_topic("orders.deadletter", partitions=1)
            values = [b"{", b"\xff\x00"]
            client.produce(ORDERS, encode_batch([Record(value=value, timestamp_ms=1) for value in values]))
            letters = [
                Record(value=value, headers=dead_letter_headers(ORDERS, n, "it is not JSON"), timestamp_ms=2)
                for n, value in enumerate(values)
            ]
            client.produce(TopicPartition("orders.deadletter", 0), encode_batch(letters))

        def run(*arguments: str) -> str:
            done = headwater("deadletter", *arguments, "-b", servers)
            assert done.returncode == 0, done.stderr
            return done.stdout

        (topic,) = json.loads(run("list", "-o", "json"))["topics"]
        assert topic == {
            "topic": "orders.deadletter", "letters": 2, "waiting": 2, "redriven": 0,
            "newestReason": "it is not JSON",
        }  # fmt: skip
        assert "orders-0@1" in run("list", "orders.deadletter")
        shown = json.loads(run("show", "orders.deadletter", "1", "-o", "json"))
        assert (shown["record"]["value"], shown["by"]) == ({"hex": "ff00"}, "schema")
        assert "value    0xff00" in run("show", "orders.deadletter", "0@1")

        redriven = run("redrive", "orders.deadletter", "1", "--value", '{"product": "tea"}')
        assert "orders.deadletter-0@1 was redriven to orders-0@2" in redriven
        assert "was redriven before, to orders-0@2" in run("redrive", "orders.deadletter", "1")
        assert "1 dead letters redriven" in run("redrive", "orders.deadletter", "--all")
        assert json.loads(run("list", "orders.deadletter", "--waiting", "-o", "json"))["letters"] == []
        with Client(servers) as client:
            data = client.fetch(ORDERS, 2)
            assert b'{"product": "tea"}' in data

        for arguments, words in [
            (("redrive", "orders.deadletter"), "pass the offset of one dead letter"),
            (("redrive", "orders.deadletter", "9"), "there is no dead letter at offset 9"),
            (("redrive", "orders.deadletter", "x"), "expected OFFSET or PARTITION@OFFSET"),
            (("redrive", "orders.deadletter", "0", "--value", "a", "--from-file", "b"), "not both"),
            (("list", "nothing.deadletter"), "it does not exist"),
        ]:
            refused = headwater("deadletter", *arguments, "-b", servers)
            assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr
