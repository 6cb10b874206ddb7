"""Commands that read and change topics and views, on real data."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer

from headwater.store.shapes import Access, ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def views(tmp_path: Path) -> ViewStore:
    store = ViewStore(tmp_path / "views.db")
    columns = (Column("product", "string"), Column("day", "int"), Column("revenue", "double"))
    store.declare(ViewShape(name="revenue", key=("product", "day"), columns=columns))
    rows = [("tea", 1, 2.5), ("tea", 2, 4.0), ("cocoa", 1, 1234567.25)]
    table = pa.table(dict(zip(("product", "day", "revenue"), zip(*rows, strict=True), strict=True)))
    store.commit_rows("revenue", table, run="r", batch=0)
    return store


def test_view_rows_as_table_and_json(headwater: Run, views: ViewStore, tmp_path: Path) -> None:
    text = headwater("view", "rows", "revenue", "--data", tmp_path).stdout.splitlines()
    assert text[0].split() == ["product", "day", "revenue"]
    assert [line.split() for line in text[1:]] == [
        ["cocoa", "1", "1,234,567.25"], ["tea", "1", "2.5"], ["tea", "2", "4"],
    ]  # fmt: skip
    found = json.loads(headwater("view", "rows", "revenue", "--data", tmp_path, "--output", "json").stdout)
    assert found["rows"][0] == {"product": "cocoa", "day": 1, "revenue": 1234567.25}


def test_view_rows_sorted_and_limited(headwater: Run, views: ViewStore, tmp_path: Path) -> None:
    options = ("--order-by", "revenue", "--descending", "--limit", "1")
    text = headwater("view", "rows", "revenue", *options, "--data", tmp_path).stdout
    assert "cocoa" in text
    assert "(2 more rows" in text


def test_view_get_by_the_first_part_of_the_key(headwater: Run, views: ViewStore, tmp_path: Path) -> None:
    found = json.loads(headwater("view", "get", "revenue", "tea", "--data", tmp_path, "-o", "json").stdout)
    assert [row["day"] for row in found["rows"]] == [1, 2]
    found = json.loads(headwater("view", "get", "revenue", "tea", "2", "--data", tmp_path, "-o", "json").stdout)
    assert [row["revenue"] for row in found["rows"]] == [4.0]


def test_view_get_without_result_exits_with_1(headwater: Run, views: ViewStore, tmp_path: Path) -> None:
    result = headwater("view", "get", "revenue", "milk", "--data", tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert "no row with key milk" in result.stderr


def test_view_list(headwater: Run, views: ViewStore, tmp_path: Path) -> None:
    found = json.loads(headwater("view", "list", "--data", tmp_path, "-o", "json").stdout)
    assert found == {"views": [{"name": "revenue", "key": ["product", "day"], "rows": 3}]}


def test_topic_create_and_list(headwater: Run, broker: Broker, produce: Any) -> None:
    servers = broker.bootstrap_servers
    assert headwater("topic", "create", "orders", "--partitions", "3", "-b", servers).returncode == 0
    produce(servers, "orders", [b"1", b"2"])
    found = json.loads(headwater("topic", "list", "-b", servers, "-o", "json").stdout)
    assert found == {"topics": [{"name": "orders", "partitions": 3, "records": 2}]}


def test_topic_produce_and_consume(headwater: Run, broker: Broker, tmp_path: Path) -> None:
    servers = broker.bootstrap_servers
    lines = "".join(f"k{i}:v{i}\n" for i in range(2500)) + "no key\n"
    arguments = ["topic", "produce", "t", "--key-separator", ":", "-b", servers]
    subprocess.run([sys.executable, "-m", "headwater", *arguments], input=lines, text=True, check=True, timeout=60)
    found = [json.loads(line) for line in headwater("topic", "consume", "t", "-b", servers).stdout.splitlines()]
    assert [(r["key"], r["payload"]) for r in found] == [(f"k{i}", f"v{i}") for i in range(2500)] + [
        (None, "no key")
    ]
    assert [r["offset"] for r in found] == list(range(2501))
    some = headwater("topic", "consume", "t", "--offset", "2499", "-n", "1", "-b", servers).stdout
    assert json.loads(some)["payload"] == "v2499"
    nothing = headwater("topic", "consume", "nowhere", "-b", servers)
    assert (nothing.returncode, nothing.stdout) == (2, "")


def test_topic_describe_alter_configs_and_delete(headwater: Run, broker: Broker, produce: Any) -> None:
    servers = broker.bootstrap_servers
    headwater("topic", "create", "orders", "-b", servers)
    produce(servers, "orders", [b"1", b"2"])
    assert headwater("topic", "alter", "orders", "retention.ms=5000", "-b", servers).returncode == 0
    found = json.loads(headwater("topic", "describe", "orders", "-b", servers, "-o", "json").stdout)
    partition = {"partition": 0, "start_offset": 0, "end_offset": 2}
    assert found["partitions"] == [partition]
    assert found["configs"]["retention.ms"] == "5000"
    assert headwater("topic", "alter", "orders", "retention.ms=", "-b", servers).returncode == 0
    rows = json.loads(headwater("topic", "configs", "orders", "-b", servers, "-o", "json").stdout)["configs"]
    (retention,) = [row for row in rows if row["name"] == "retention.ms"]
    assert (retention["value"], retention["source"]) == ("604800000", "default")
    bad = headwater("topic", "alter", "orders", "retention.ms=soon", "-b", servers)
    assert (bad.returncode, "retention.ms" in bad.stderr) == (2, True)
    assert headwater("topic", "delete", "orders", "-b", servers, "-o", "json").returncode == 0
    assert headwater("topic", "describe", "orders", "-b", servers).returncode == 2


def test_log_verify_lists_damaged_batches(headwater: Run, produce: Any, tmp_path: Path) -> None:
    with Broker(tmp_path / "log", segment_bytes=300) as broker:
        for n in range(10):
            produce(broker.bootstrap_servers, "orders", [b"%d" % n * 50], partition=0)
    found = json.loads(headwater("log", "verify", "--data", tmp_path / "log", "-o", "json").stdout)
    assert (found["batches"], found["damage"]) == (10, [])
    path = sorted((tmp_path / "log" / "log").glob("orders-0-*/*.log"))[1]
    content = bytearray(path.read_bytes())
    content[90] ^= 1
    path.write_bytes(content)
    result = headwater("log", "verify", "--data", tmp_path / "log")
    assert result.returncode == 1
    assert f"{path} is damaged at byte 0" in result.stdout


def test_broker_shows_metrics_and_logs_in_json(start: Any, tmp_path: Path) -> None:
    options = ("--metrics", "127.0.0.1:0", "--log-format", "json")
    process = start("broker", "--listen", "127.0.0.1:0", "--data", tmp_path / "log", *options)
    host, port = process.stdout.readline().split()[3].strip(",").split(":")
    url = process.stdout.readline().split()[-1]
    with urllib.request.urlopen(url, timeout=20) as page:
        assert b"kafka_brokers 1\n" in page.read()
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(b"GET ")  # read as a length, this exceeds the limit of a request
        assert client.recv(1) == b""
    process.terminate()
    assert process.wait(20) == 0
    line = json.loads(process.stdout.read().splitlines()[-1])
    assert line["level"] == "warning"
    assert "is it a Kafka client?" in line["message"]


def test_broker_runs_until_sigterm(start: Any, produce: Any, tmp_path: Path) -> None:
    process = start("broker", "--listen", "127.0.0.1:0", "--data", tmp_path / "log")
    line = process.stdout.readline()
    assert line.startswith("broker ready at 127.0.0.1:")
    servers = line.split()[3].rstrip(",")
    produce(servers, "t", [b"1"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    with Broker(tmp_path / "log") as again:
        consumer = Consumer(
            {"bootstrap.servers": again.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["t"])
        message = consumer.poll(20)
        assert message is not None
        assert message.value() == b"1"
        consumer.close()


def test_every_command_has_help_with_an_example(headwater: Run) -> None:
    commands = [
        ["run"], ["demo"], ["broker"], ["doctor"],
        ["topic", "list"], ["topic", "create"], ["topic", "produce"], ["topic", "consume"],
        ["topic", "describe"], ["topic", "configs"], ["topic", "alter"], ["topic", "delete"], ["log", "verify"],
        ["view", "list"], ["view", "rows"], ["view", "get"],
    ]  # fmt: skip
    for command in commands:
        text = headwater(*command, "--help").stdout
        words = " ".join(text.split())
        assert "Example: " in words, command
        assert f"headwater {' '.join(command)}" in words.split("Example: ")[1], command


def test_view_query_pages_and_earlier_positions(headwater: Run, views: ViewStore, tmp_path: Path) -> None:
    def query(*options: str) -> Any:
        return json.loads(headwater("view", "query", "revenue", *options, "--data", tmp_path, "-o", "json").stdout)

    first = query("--where", "revenue >= 2", "--order-by", "-revenue", "--limit", "2")
    assert [row["product"] for row in first["rows"]] == ["cocoa", "tea"]
    behind = query("--where", "revenue >= 2", "--order-by", "-revenue", "--after", first["next"])
    assert ([row["day"] for row in behind["rows"]], behind["next"]) == ([1], None)
    table = pa.table({"product": ["tea"], "day": [1], "revenue": [99.0]})
    views.commit_rows("revenue", table, run="r", batch=1, offsets={"orders": {"0": 5}})
    then = query("--where", "revenue = 99", "--as-of", first["token"])
    now = query("--where", "revenue = 99", "--at-least", "orders:0:4")
    assert (then["rows"], len(now["rows"])) == ([], 1)
    text = headwater("view", "query", "revenue", "--limit", "1", "--data", tmp_path).stdout
    assert "(more rows: pass --after " in text
    got = headwater("view", "get", "revenue", "tea", "1", "--as-of", "3", "--data", tmp_path, "-o", "json").stdout
    assert json.loads(got)["rows"][0]["revenue"] == 2.5


def test_view_search(headwater: Run, views: ViewStore, tmp_path: Path) -> None:
    refused = headwater("view", "search", "revenue", "tea", "--data", tmp_path)
    assert (refused.returncode, "cannot be searched" in refused.stderr) == (2, True)
    views.declare(views.shape("revenue"), Access(search=("product",)))
    found = headwater("view", "search", "revenue", "--data", tmp_path, "-o", "json", "--", "te*", "-cocoa").stdout
    assert [row["day"] for row in json.loads(found)["rows"]] == [1, 2]


def test_view_subscribe_and_resume(headwater: Run, views: ViewStore, tmp_path: Path) -> None:
    def subscribe(*options: str) -> list[Any]:
        done = headwater("view", "subscribe", "revenue", "--silent", "0", *options, "--data", tmp_path)
        return [json.loads(line) for line in done.stdout.splitlines()]

    events = subscribe()
    assert [event["event"] for event in events] == ["reset", "row", "row", "row", "ready"]
    table = pa.table({"product": ["tea"], "day": [1], "revenue": [99.0]})
    views.commit_rows("revenue", table, run="r", batch=1)
    (change,) = subscribe("--from", events[-1]["token"])
    assert (change["event"], change["change"]["before"]["revenue"]) == ("change", 2.5)
    assert subscribe("--from", change["token"]) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["query", "revenue", "--where", "revenue"], "cannot read the condition"),
        (["query", "revenue", "--as-of", "9"], "as of position 9: it is at 3"),
        (["query", "sales"], "there is no view 'sales'"),
        (["query", "revenue", "--at-least", "orders:0:1", "--timeout", "0"], "has not seen orders:0:1"),
        (["subscribe", "revenue", "--from", "x"], "cannot read 'x' as a position"),
        (["rows", "revenue", "--store", "mysql://db"], "expected an address"),
    ],
)
def test_invalid_queries_of_a_view(
    headwater: Run, views: ViewStore, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = headwater("view", *arguments, "--data", tmp_path)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
