"""A process that ends within a batch: after a restart nothing is lost, and nothing is there twice."""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headwater as hw
from headwater.clock import SystemClock
from headwater.sinks.parquet import parquet_files
from headwater.spark.lanes.batch_log import BatchLog
from headwater.spark.lanes.lane import Lane
from headwater.spark.lanes.member import Member
from headwater.spark.lanes.state_files import StateFiles
from headwater.spark.pipeline.batch_sinks import ExternalSink
from headwater.spark.pipeline.dead_letters import DeadLetterSink
from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
from headwater.spark.source import topic_reads
from headwater.store.pipelines.facts import FactStore
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from tests.spark.pipeline.test_pipeline import letters
from tests.spark.run_pipeline import run_once

RECORDS = 60
BATCH = 10


class KilledError(BaseException):
    """Ends a lane as the end of the process would."""


def numbers(folder: Path) -> hw.App:
    app = hw.App("numbers")
    topic = app.topic("numbers", schema="n long, at timestamp", event_time="at")
    app.view(topic, key="n", name="plain")(lambda rows: rows.select("n"))
    app.view(topic, key="k", name="sums")(
        lambda rows: hw.aggregate(rows.selectExpr("n % 3 as k", "n"), what={"s": hw.sum("n")}, by="k")
    )
    app.sink(topic, to=hw.Parquet(folder / "parquet"), name="files")(lambda rows: rows.select("n"))
    return app


def record(n: int) -> bytes:
    return b"broken" if n % 20 == 7 else json.dumps({"n": n, "at": f"2026-01-01T00:00:{n:02d}Z"}).encode()


def kill_at(patch: pytest.MonkeyPatch, place: Any, name: str, call: int, *, after: bool) -> None:
    """Make the call of that number raise, before or after it has done its work."""
    original, calls = getattr(place, name), iter(range(1000))

    def killing(*args: Any, **options: Any) -> Any:
        is_last = next(calls) == call
        if is_last and not after:
            raise KilledError
        done = original(*args, **options)
        if is_last:
            raise KilledError
        return done

    patch.setattr(place, name, killing)


def run_until_killed(app: hw.App, spark: Any, servers: str, folder: Path, store: ViewStore) -> None:
    settings = PipelineSettings(bootstrap_servers=servers, data=folder, once=True)
    pipeline = Pipeline(app, spark, store, FactStore(folder / "facts.db"), settings, SystemClock())
    pipeline.start()
    deadline = time.monotonic() + 60
    while any(running.streaming.isActive for _, running in pipeline._queries) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert any(isinstance(running.streaming.exception(), KilledError) for _, running in pipeline._queries)
    pipeline.stop()


POINTS: dict[str, tuple[Any, str, int, bool]] = {
    "offsets of some queries are recorded": (BatchLog, "begin", 2 * 4 + 1, True),
    "records are read": (Lane, "_commit", 2, False),
    "the state is half written": (StateFiles, "_kept", 2, False),
    "the state is written": (Member, "save", 4 * 1 + 1, True),
    "rows are in the sink": (ExternalSink, "write", 2, True),
    "letters are in the topic": (DeadLetterSink, "write", 0, True),
    "before the views": (ViewStore, "commit_batches", 3, False),
    "after the views": (ViewStore, "commit_batches", 3, True),
    "one query has finished": (Member, "finish", 4 * 2 + 1, False),
    "one query has half finished": (BatchLog, "finish", 4 * 3 + 1, True),
    "all have finished": (Lane, "_commit", 2, True),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_costs_nothing_and_repeats_nothing(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(topic_reads, "OFFSETS_PER_TRIGGER_MAX", BATCH)
    servers, store = broker.bootstrap_servers, ViewStore(tmp_path / "views.db")
    produce(servers, "numbers", [record(n) for n in range(RECORDS)])
    place, name, call, after = POINTS[point]
    with monkeypatch.context() as patch:
        kill_at(patch, place, name, call, after=after)
        run_until_killed(numbers(tmp_path), spark, servers, tmp_path, store)
    run_once(numbers(tmp_path), spark, servers, tmp_path, store)
    good = [n for n in range(RECORDS) if record(n) != b"broken"]
    assert [row["n"] for row in store.rows("plain")] == good
    assert {row["k"]: row["s"] for row in store.rows("sums")} == {
        k: sum(n for n in good if n % 3 == k) for k in range(3)
    }
    files = parquet_files(tmp_path / "parquet")
    assert sorted(n for file in files for n in pq.read_table(file)["n"].to_pylist()) == good
    assert len(letters(broker, "numbers.deadletter")) == RECORDS - len(good)
    assert store.counters() == {"numbers.deadletter": RECORDS - len(good)}
    store.close()
