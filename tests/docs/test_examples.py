"""The programs and outputs in the README and the docs are correct."""

import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka.protocol.admin import IncrementalAlterConfigsRequest

import headwater as hw
from headwater.cli.app_file import load_app
from headwater.clock import SystemClock
from headwater.record import Record, TopicPartition
from headwater.sink import Batch, Stream
from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
from headwater.store.pipelines.facts import FactStore
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client import groups as group_client
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import encode_batch

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(code: str, folder: Path) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_first_program_of_the_readme_is_the_demo() -> None:
    assert blocks("README.md", "python")[0] == (ROOT / "src/headwater/demo/shop.py").read_text()


def test_broker_program_of_the_readme(tmp_path: Path) -> None:
    program = blocks("README.md", "python")[1].replace("producer.flush()", "assert producer.flush(20) == 0")
    run(program, tmp_path)


def test_program_with_an_app_in_the_background(tmp_path: Path) -> None:
    page = "docs/how-to/run.md"
    (program,) = blocks(page, "python")
    shown = re.findall(r"^    (\{'product'.*)$", (ROOT / page).read_text(), re.MULTILINE)
    assert len(shown) == 2
    assert run(program, tmp_path).splitlines() == shown


def test_kafka_client_program(tmp_path: Path, broker: Broker) -> None:
    (program,) = blocks("docs/how-to/kafka-clients.md", "python")
    assert run(program.replace("127.0.0.1:9092", broker.bootstrap_servers), tmp_path) == "b'1'\n"


def test_queue_program(tmp_path: Path, broker: Broker) -> None:
    (program,) = blocks("docs/how-to/queues.md", "python")
    jobs = TopicPartition("jobs", 0)
    with Client(broker.bootstrap_servers) as client:
        client.create_topic("jobs")
        client.produce(jobs, encode_batch([Record(value=b"one"), Record(value=b"two")]))
        change = IncrementalAlterConfigsRequest.AlterConfigsResource
        earliest = change.AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
        resource = change(resource_type=32, resource_name="workers", configs=[earliest])
        client.call(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
        run(program.replace("127.0.0.1:9092", broker.bootstrap_servers), tmp_path)
        assert group_client.share_starts(client, "workers")[jobs].start == 2


def test_conditional_append_program(tmp_path: Path, broker: Broker) -> None:
    (program,) = blocks("docs/how-to/conditional-append.md", "python")
    page = (ROOT / "docs/how-to/conditional-append.md").read_text()
    create = re.search(r"    headwater (topic create accounts .*)", page)
    assert create is not None
    servers = f"--bootstrap-servers {broker.bootstrap_servers}"
    shell(f"{sys.executable} -m headwater {create[1]} {servers}", tmp_path)
    run(program.replace("127.0.0.1:9092", broker.bootstrap_servers), tmp_path)


@pytest.mark.filterwarnings("default")
def test_spark_source_programs(spark: Any, broker: Broker, produce: Any, capsys: Any) -> None:
    produce(broker.bootstrap_servers, "orders", [b"one", b"two"])
    read, write = blocks("docs/how-to/spark-source.md", "python")
    names: dict[str, Any] = {}
    exec(read.replace("127.0.0.1:9092", broker.bootstrap_servers), names)
    assert "|  one|" in capsys.readouterr().out
    exec(write.replace("127.0.0.1:9092", broker.bootstrap_servers), names)
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "copy"}
    assert spark.read.format("headwater").options(**options).load().count() == 2


def test_tutorial(tmp_path: Path, broker: Broker) -> None:
    (program,) = blocks("docs/tutorial.md", "python")
    (send,) = blocks("docs/tutorial.md", "sh")
    (tmp_path / "visits.py").write_text(program)
    headwater = f"{sys.executable} -m headwater"
    servers = f"--bootstrap-servers {broker.bootstrap_servers}"
    shell(
        send.strip().replace("headwater topic produce visits", f"{headwater} topic produce visits {servers}"),
        tmp_path,
    )
    shell(f"{headwater} run visits.py --once {servers}", tmp_path)
    page = (ROOT / "docs/tutorial.md").read_text()
    shown = re.search(r"\$ headwater view rows popular\n((?:    .*\n)+)", page)
    assert shown is not None
    expected = [line.split() for line in shown[1].splitlines()]
    assert [line.split() for line in shell(f"{headwater} view rows popular", tmp_path).splitlines()] == expected
    letters = shell(f"{headwater} deadletter list visits.deadletter {servers}", tmp_path)
    assert "the value is not JSON" in letters
    letter = shell(f"{headwater} deadletter show visits.deadletter 0 {servers}", tmp_path)
    assert "value    this is not JSON" in letter


def shell(command: str, folder: Path) -> str:
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_transcripts_of_the_page_hold(tmp_path: Path) -> None:
    windows, tables = blocks("docs/how-to/transcripts.md", "yaml")
    (tmp_path / "orders.yaml").write_text(windows)
    (tmp_path / "tables.yaml").write_text(tables)
    assert "2 transcripts on the simulator: 2 hold" in shell(
        f"{sys.executable} -m headwater transcript orders.yaml tables.yaml", tmp_path
    )
    (program,) = blocks("docs/how-to/transcripts.md", "python")
    run(f"{program}\n\ntest_orders()", tmp_path)


def test_windows_program(spark: Any, broker: Broker, produce: Any, tmp_path: Path) -> None:
    program, *_ = blocks("docs/how-to/windows.md", "python")
    (tmp_path / "shop.py").write_text(program)
    order = {"product": "tea", "customer": "ada", "amount": 2.5}
    minutes = (0, 1, 5)
    orders = [json.dumps({**order, "placed_at": f"2026-01-01T12:{m:02d}:00Z"}).encode() for m in minutes]
    later = json.dumps({**order, "product": "cocoa", "placed_at": "2026-01-01T13:00:00Z"}).encode()
    produce(broker.bootstrap_servers, "orders", [*orders, later])
    store = ViewStore(tmp_path / "views.db")
    settings = PipelineSettings(bootstrap_servers=broker.bootstrap_servers, data=tmp_path, once=True)
    facts = FactStore(tmp_path / "facts.db")
    pipeline = Pipeline(load_app(tmp_path / "shop.py"), spark, store, facts, settings, SystemClock())
    try:
        pipeline.start()
        pipeline.run()
    finally:
        pipeline.stop()
    tea = store.rows("sessions", key=["tea"])
    assert [(row["revenue"], row["buyers"], row["timing"]) for row in tea] == [(7.5, 1, "on_time")]


def test_sinks_program(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "docs/how-to/sinks.md"
    (tmp_path / "shop.py").write_text(blocks(page, "python")[0])
    monkeypatch.chdir(tmp_path)
    orders = [{"product": "tea", "amount": amount, "at": "2026-01-01T12:00:00Z"} for amount in (2.5, 5.0)]
    produce(broker.bootstrap_servers, "orders", [json.dumps(order).encode() for order in orders])
    settings = PipelineSettings(bootstrap_servers=broker.bootstrap_servers, data=tmp_path / "data", once=True)
    store, facts = ViewStore(tmp_path / "data" / "views.db"), FactStore(tmp_path / "data" / "facts.db")
    pipeline = Pipeline(load_app(tmp_path / "shop.py"), spark, store, facts, settings, SystemClock())
    try:
        pipeline.start()
        pipeline.run()
    finally:
        pipeline.stop()
    with closing(sqlite3.connect("shop.db")) as db:
        (row,) = db.execute("select * from revenue")
    assert "|".join(map(str, row)) in (ROOT / page).read_text()


def test_the_sinks_of_the_page_can_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sink expression evaluates, and the Parquet example reads what was written."""
    monkeypatch.chdir(tmp_path)
    written = blocks("docs/how-to/sinks.md", "python")
    values = [block for block in written if block.startswith("hw.")]
    names: dict[str, Any] = {"hw": hw}
    for block in values:
        exec(block, names)
    for name in ("Postgres", "KafkaTopic", "Parquet", "Delta", "Webhook", "Mail"):
        assert any(f"hw.{name}(" in block for block in values)
    rows = pa.table({"product": ["tea"], "revenue": [7.5]})
    with closing(hw.Parquet("out/revenue").open(Stream(query="shop.revenue", schema=rows.schema))) as writer:
        writer.write(Batch(run="r", number=0, rows=rows))
    exec(next(block for block in written if "parquet_files" in block), names)
    assert names["revenue"].to_dicts() == [{"product": "tea", "revenue": 7.5}]


def test_the_page_on_windows_shows_spark_windows_and_a_watermark_function(spark: Any) -> None:
    names: dict[str, Any] = {"hw": hw, "app": hw.App("shop")}
    found = [text for text in blocks("docs/how-to/windows.md", "python") if "stddev" in text or "settled" in text]
    assert len(found) == 2
    for text in found:
        exec(text, names)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    seen = hw.Observed(partition="0", highest=moment, lowest=moment, latest=moment, watermark=None)
    assert names["orders"].watermark(seen) == moment - timedelta(minutes=10)


def test_the_programs_of_the_page_on_joins(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "countries.csv").write_text("code,country\nde,Germany\n")
    program, *others = blocks("docs/how-to/joins.md", "python")
    (tmp_path / "shop.py").write_text(program)
    assert [view.name for view in load_app(tmp_path / "shop.py").views] == ["placed"]

    def rows(values: list[Any], schema: str, time: str | None = None) -> Any:
        frame = spark.createDataFrame(values, schema)
        if time is None:
            return frame
        timed = frame.withColumn(time, frame[time].cast("timestamp"))
        return timed.withMetadata(time, {"headwater.eventTime": True})

    changes = [("ann", '{"city": "Ulm"}', 0), ("bob", '{"city": "Bonn"}', 1), ("bob", None, 2)]
    names: dict[str, Any] = {
        "hw": hw,
        "compacted": rows(changes, "key string, value string, offset long"),
        "orders": rows([(1, 7, 2.5), (2, 7, 4.0), (3, 8, 1.0)], "order long, customer long, amount double"),
        "earlier": rows([(8,), (9,)], "customer long"),
        "visits": rows([(1, "de"), (2, "fr")], "visit long, code string"),
        "sales": rows([(5.0, "USD"), (1.0, "CHF")], "amount double, currency string"),
        "customers": rows([(7, "Ulm"), (8, "Bonn")], "id long, city string"),
        "searches": rows([("ann", "tea", 0), ("bob", "mug", 0)], "user string, query string, at long", "at"),
        "clicks": rows(
            [("ann", "/tea", 60), ("ann", "/pot", 70)], "user string, page string, clicked long", "clicked"
        ),
        "orders_at": rows([("tea", 5), ("tea", 15)], "product string, at long", "at"),
        "prices": rows([("tea", 1.0, 0), ("tea", 2.0, 10)], "product string, price double, since long", "since"),
    }
    for block in others:
        exec(block, names)

    def found(name: str, *columns: str) -> set[Any]:
        changed = names[name].select(*columns, "_change").collect()
        assert {row["_change"] for row in changed} == {1}
        return {tuple(row)[:-1] for row in changed}

    assert found("cities", "id", "city") == {("ann", "Ulm")}
    assert found("in_ulm", "order") == {(1,), (2,)}
    assert found("found", "query", "page") == {("tea", "/tea"), ("tea", "/pot"), ("mug", None)}
    assert found("steps", "page", "next_page") == {("/tea", "/pot")}
    assert found("priced", "price") == {(1.0,), (2.0,)}
    assert found("located", "visit", "country") == {(1, "Germany"), (2, None)}
    assert found("priced_in_euro", "amount", "rate") == {(5.0, 0.9)}
    assert found("revenue", "customer", "orders", "highest") == {(7, 2, 4.0), (8, 1, 1.0)}
    assert found("best", "order", "place") == {(2, 1), (1, 2), (3, 1)}
    assert found("once", "order") == {(1,), (2,), (3,)}
    assert found("recent", "order", "mean") == {(1, 2.5), (2, 3.25), (3, 1.0)}
    assert found("customers_of_both", "customer") == {(7,), (8,), (9,)}


@pytest.mark.parametrize("number", [-2, -1], ids=["view over a view", "several results"])
def test_programs_with_views_that_share_a_computation(tmp_path: Path, number: int) -> None:
    page = "docs/how-to/views.md"
    assert run(blocks(page, "python")[number], tmp_path) == blocks(page, "text")[number]


def test_views_page(spark: Any, broker: Broker, tmp_path: Path) -> None:
    page = "docs/how-to/views.md"
    app, program, *_ = blocks(page, "python")
    send, query, _, join = blocks(page, "sh")
    shown, *_ = blocks(page, "text")
    (tmp_path / "shop.py").write_text(app)
    headwater, servers = f"{sys.executable} -m headwater", f"--bootstrap-servers {broker.bootstrap_servers}"
    produce, run_app = send.split("headwater run")
    shell(
        produce.replace("headwater topic produce orders", f"{headwater} topic produce orders {servers}"), tmp_path
    )
    assert run_app.strip() == "shop.py --once"
    data = tmp_path / ".headwater"
    settings = PipelineSettings(bootstrap_servers=broker.bootstrap_servers, data=data, once=True)
    store, facts = ViewStore(data / "views.db"), FactStore(data / "facts.db")
    pipeline = Pipeline(load_app(tmp_path / "shop.py"), spark, store, facts, settings, SystemClock())
    try:
        pipeline.start()
        pipeline.run()
    finally:
        pipeline.stop()
    assert run(program, tmp_path) == shown
    found = shell(re.sub(r"^headwater", headwater, query, flags=re.MULTILINE), tmp_path)
    assert found.count("Black tea") == 3  # queried, searched, subscribed to
    found = shell(re.sub(r"^headwater sql", f"{headwater} sql {servers}", join, flags=re.MULTILINE), tmp_path)
    assert [line.split() for line in found.splitlines()] == [
        ["product", "orders", "amount"],
        ["Black", "tea", "1", "9"], ["Café", "crème", "1", "30"], ["Green", "tea", "1", "4.5"],
        ["city", "records"], ["Bonn", "1"], ["Ulm", "2"],
    ]  # fmt: skip
