"""The time zone of the session has no effect on results: neither in operators nor in views and sinks."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.record import LATEST, TopicPartition
from headwater.sinks.json_rows import json_objects
from headwater.spark.pipeline.batch_sinks import collected
from headwater.spark.source.decoding import EVENT_TIME_KEY
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk
from support.postgres import PostgresServer
from tests.spark.run_pipeline import run_once

ZONE = "spark.sql.session.timeZone"
TIMES = [
    datetime(2026, 3, 29, 0, 30, tzinfo=UTC),
    datetime(2026, 3, 29, 2, 30, tzinfo=UTC),  # As local time it does not exist in Berlin.
    datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
    datetime(2026, 10, 25, 1, 30, tzinfo=UTC),  # The same local time in Berlin.
    datetime(1960, 5, 5, 5, 5, 5, 5, tzinfo=UTC),
    datetime(1883, 1, 1, tzinfo=UTC),
]
_TIMESTAMP = pa.timestamp("us", "UTC")
TABLE = pa.table(
    {
        "k": ["a", "b"] * 3,
        "v": range(6),
        "at": pa.array(TIMES, _TIMESTAMP),
        "local": pa.array([time.replace(tzinfo=None) for time in TIMES], pa.timestamp("us")),
        "day": pa.array([time.date() for time in TIMES]),
        "nested": pa.array(
            [{"t": t, "l": [t]} for t in TIMES], pa.struct([("t", _TIMESTAMP), ("l", pa.list_(_TIMESTAMP))])
        ),
    }
)
_NESTED = "struct<t: timestamp, l: array<timestamp>>"
SCHEMA = f"k string, v long, at timestamp, local timestamp_ntz, day date, nested {_NESTED}"
SIDE = hw.SideInput(
    lambda: [{"k": "a", "seen": TIMES[0], "local2": TIMES[1].replace(tzinfo=None)}],
    schema="k string, seen timestamp, local2 timestamp_ntz",
)
HOURS = {"what": {"n": hw.count(), "last": hw.max("local")}, "where": hw.Tumbling("1 hour"), "by": ["k"]}
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "top": lambda r: hw.top(r, 2, order="at desc", by="k"),
    "aggregate": lambda r: hw.aggregate(r, what={"last": hw.max("at"), "all": hw.collect("local")}, by="day"),
    "windowed": lambda r: r.transform(hw.windowed(**HOURS, how=hw.RETRACTING)),
    "native": lambda r: r.transform(hw.windowed(**HOURS)),
    "local event time": lambda r: (
        r.withMetadata("at", {}).withMetadata("local", {EVENT_TIME_KEY: True}).transform(hw.windowed(**HOURS))
    ),
    "side input": lambda r: hw.join(r, SIDE, on="k", how="left"),
    "correct_clocks": lambda r: r.withColumns({"sent": F.col("at"), "got": F.col("local")}).transform(
        hw.correct_clocks(device="k", sent="sent", received="got")
    ),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_give_the_same_bytes_in_every_zone(spark: Any, operator: str) -> None:
    found = {}
    try:
        for zone in ("UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata"):
            spark.conf.set(ZONE, zone)
            rows = spark.createDataFrame(TABLE, SCHEMA).withMetadata("at", {EVENT_TIME_KEY: True})
            table = collected(OPERATORS[operator](rows))
            found[zone] = str(table.schema), sorted(json_objects(table).to_pylist())
    finally:
        spark.conf.set(ZONE, "UTC")
    assert found["UTC"][1]
    assert all(result == found["UTC"] for result in found.values())


def parquet_rows(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.rglob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def test_views_and_sinks_are_the_same_in_every_zone(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    values = [
        {"k": "a", "at": "2026-03-29 02:30:00"},  # Without a zone it is in UTC.
        {"k": "b", "at": "2026-03-29T02:30:00+02:00"},
    ]
    produce(broker.bootstrap_servers, "events", [json.dumps(value).encode() for value in values])
    found = {}
    try:
        for zone in ("UTC", "America/St_Johns"):
            spark.conf.set(ZONE, zone)
            folder = tmp_path / zone.replace("/", "-")
            app = hw.App("zones")
            events = app.topic("events", schema="k string, at timestamp", event_time="at")
            app.view(events, key="k", name="first")(lambda rows: hw.deduplicate(rows, key="k"))
            app.sink(events, to=hw.Parquet(folder / "files"), name="files")(lambda rows: rows)
            store = ViewStore(folder / "views.db")
            run_once(app, spark, broker.bootstrap_servers, folder, store)
            found[zone] = store.rows("first"), parquet_rows(folder / "files")
    finally:
        spark.conf.set(ZONE, "UTC")
    assert [row["at"] for row in found["UTC"][1]] == [TIMES[0] + timedelta(hours=2), TIMES[0]]
    assert found["America/St_Johns"] == found["UTC"]


def topic_values(servers: str, topic: str) -> list[dict[str, Any]]:
    partition = TopicPartition(topic, 0)
    with Client(servers) as client:
        at, end, found = 0, client.offsets([partition], LATEST)[partition], []
        while at < end:
            data, at = client.read(partition, at)
            batches = [decode_batch(data, place) for place, header in walk(data) if not header.is_control]
            found += [json.loads(record.value) for batch in batches for record in batch if record.value]
    return found


def test_databases_tables_and_topics_get_the_times_that_were_sent(
    spark: Any, broker: Broker, produce: Any, postgres: PostgresServer, tmp_path: Path
) -> None:
    sent = {"a": TIMES[1], "b": TIMES[2], "c": TIMES[3]}  # In Berlin, b and c have the same local time.
    values = [json.dumps({"k": k, "at": at.isoformat()}).encode() for k, at in sent.items()]
    produce(broker.bootstrap_servers, "events", values)
    app = hw.App("zones")
    events = app.topic("events", schema="k string, at timestamp", event_time="at")
    app.sink(events, to=hw.Postgres(postgres.dsn, table="zoned_times"), name="pg", key="k")(lambda rows: rows)
    app.sink(events, to=hw.Delta(tmp_path / "delta"), name="delta")(lambda rows: rows)
    app.sink(events, to=hw.KafkaTopic("copies"), name="topic")(lambda rows: rows)
    spark.conf.set(ZONE, "Europe/Berlin")
    try:
        run_once(app, spark, broker.bootstrap_servers, tmp_path, ViewStore(tmp_path / "views.db"))
    finally:
        spark.conf.set(ZONE, "UTC")
    with psycopg.connect(postgres.dsn) as db:
        assert dict(db.execute("select k, at from zoned_times").fetchall()) == sent
    table = pa.table(DeltaTable(tmp_path / "delta").to_pyarrow_table())
    assert {row["k"]: row["at"] for row in table.to_pylist()} == sent
    copies = topic_values(broker.bootstrap_servers, "copies")
    assert {row["k"]: datetime.fromisoformat(row["at"]) for row in copies} == sent
