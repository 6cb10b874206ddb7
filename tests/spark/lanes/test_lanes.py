"""The queries of a running app advance together; one that is behind catches up, one that fails drops out."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.errors import ConflictError, CorruptError
from headwater.sinks.parquet import parquet_files
from headwater.spark.lanes import batch_run
from headwater.spark.lanes import lane as lane_module
from headwater.spark.lanes import lanes as lanes_module
from headwater.spark.lanes.batch_log import BatchLog
from headwater.spark.lanes.member import Member
from headwater.spark.pipeline import failures
from headwater.spark.source import topic_reads
from headwater.store.pipelines.controls import Action
from headwater.store.pipelines.generations import Generations
from headwater.transmit.broker.embedded import Broker
from tests.spark.lanes.live_pipeline import PATIENCE_S, LivePipeline, wait_until
from tests.spark.lanes.test_kills import kill_at, run_until_killed
from tests.spark.pipeline.test_pipeline import letters
from tests.spark.run_pipeline import run_once


class Numbers:
    """Sends numbers to a topic, and runs apps over it."""

    def __init__(self, live: LivePipeline, produce: Any) -> None:
        self.live, self._produce = live, produce
        self.sent = 0

    def send(self, count: int = 1, partition: int = 0, topic: str = "numbers") -> None:
        values = [json.dumps({"n": n}).encode() for n in range(self.sent, self.sent + count)]
        self._produce(self.live.servers, topic, values, partition=partition)
        self.sent += count

    def everything(self, *views: str) -> bool:
        return all(sorted(self.live.numbers(view)) == list(range(self.sent)) for view in views)


@pytest.fixture
def numbers(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Numbers]:
    monkeypatch.setattr(failures, "PAUSE_S", 0.05)
    live = LivePipeline(spark, broker.bootstrap_servers, tmp_path)
    yield Numbers(live, produce)
    live.store.close()


def app_of(**views: Any) -> hw.App:
    app = hw.App("numbers")
    topic = app.topic("numbers", schema="n long")
    for name, function in views.items():
        app.view(topic, key="n", name=name)(function)
    return app


def plain(rows: Any) -> Any:
    return rows.select("n")


def counted(rows: Any) -> Any:
    return hw.aggregate(rows, what={"times": hw.count()}, by="n")


def test_a_new_view_catches_up_beside_the_others_and_then_advances_with_them(
    numbers: Numbers, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = numbers.live
    monkeypatch.setattr(topic_reads, "OFFSETS_PER_TRIGGER_MAX", 10)
    monkeypatch.setattr(lanes_module, "NEAR_RECORDS", 15)
    numbers.send(200)
    run_once(app_of(plain=plain), spark, live.servers, live.folder, live.store)
    everyone = {"plain", "added", "counted", "numbers.deadletter"}
    with live.running(app_of(plain=plain, added=plain, counted=counted)):
        assert sorted(map(len, live.lanes())) == [2, 2]
        first = live.query("plain")
        numbers.send(10)
        wait_until(lambda: numbers.everything("plain", "added", "counted") and live.lanes() == [everyone])
        assert live.query("plain") is first and first.isActive

        # In the front they have the same offsets in every transaction.
        seen = set()

        def is_consistent() -> bool:
            found = live.positions()
            positions = {json.dumps(found[view]) for view in ("plain", "added", "counted")}
            assert len(positions) == 1
            seen.update(positions)
            return len(seen) > 3

        for _ in range(4):
            numbers.send(12)
            before = len(seen)
            wait_until(lambda before=before: is_consistent() or len(seen) > before)  # type: ignore[misc]
        wait_until(lambda: numbers.everything("plain", "added", "counted"))

        # One that was paused joins again.
        assert live.ask("counted", Action.PAUSE) is None
        assert live.lanes() == [everyone - {"counted"}]
        numbers.send(40)
        wait_until(lambda: numbers.everything("plain", "added"))
        assert not numbers.everything("counted")
        assert live.ask("counted", Action.RESUME) is None
        wait_until(lambda: numbers.everything("counted") and live.lanes() == [everyone])

        # Records of a new partition are read from its first on, by all.
        admin = AdminClient({"bootstrap.servers": live.servers})
        admin.create_partitions([NewPartitions("numbers", 2)])["numbers"].result(10)
        numbers.send(30, partition=1)
        numbers.send(1)  # Wakes the lane, which waits only for records of the partitions that it knows.
        wait_until(lambda: numbers.everything("plain", "added", "counted"))

        # A view that is computed again replaces the one there is.
        requested = Generations(live.store).request_rebuild("counted")
        wait_until(lambda: Generations(live.store).current("counted") == requested)
        numbers.send(5)
        wait_until(lambda: numbers.everything("plain", "added", "counted") and live.lanes() == [everyone])
        assert live.query("plain") is first and first.isActive
    assert {row["times"] for row in live.store.rows("counted", limit=1000)} == {1}


class HinderedSink:
    """A sink that calls a function before it writes as Parquet does."""

    def __init__(self, folder: Path, hinder: Callable[[], None], *, opens: bool = False) -> None:
        self._to, self._hinder, self._opens = hw.Parquet(folder), hinder, opens

    @property
    def guarantee(self) -> Any:
        return self._to.guarantee

    def open(self, stream: Any) -> Any:
        if not self._opens:
            self._hinder()
        writer, hinder = self._to.open(stream), self._hinder

        class Writer:
            def write(self, batch: Any) -> None:
                hinder()
                writer.write(batch)

            def close(self) -> None:
                writer.close()

        return Writer()


def test_queries_that_fail_drop_out_and_come_back_while_the_others_never_stop(
    numbers: Numbers, broker: Broker, tmp_path: Path
) -> None:
    live, broken = numbers.live, tmp_path / "broken"

    def fail() -> None:
        if broken.exists():
            raise RuntimeError("the sink is broken")

    def picky(rows: Any) -> Any:
        refuse = F.udf(lambda n: n if n != 7 else 1 // 0, "long")
        return hw.aggregate(rows.select(refuse("n").alias("n")), what={"times": hw.count()}, by="n")

    app = app_of(plain=plain, counted=counted, picky=picky, refused=plain)
    app.sink(app.topics[0], to=HinderedSink(tmp_path / "parquet", fail), name="files")(plain)
    everyone = {"plain", "counted", "picky", "refused", "files", "numbers.deadletter"}
    numbers.send(5)
    with live.running(app):
        wait_until(lambda: numbers.everything("plain", "counted", "picky", "refused"))
        assert live.lanes() == [everyone]
        healthy = live.query("plain"), live.query("counted")
        broken.touch()
        with live.store.writing() as db:
            db.execute(
                "create trigger refuse before insert on view_refused when new.n = 8 "
                "begin select raise(abort, 'not this one'); end"
            )
        numbers.send(10)
        wait_until(lambda: numbers.everything("plain", "counted"))
        for name in ("files", "refused"):
            wait_until(lambda name=name: live.state(name) == "suspended")  # type: ignore[misc]
        numbers.send(5)
        wait_until(lambda: numbers.everything("plain", "counted"))
        assert live.numbers("refused") == list(range(5))
        # The record on which the function fails is left out, and the query is back.
        others = [n for n in range(numbers.sent) if n != 7]
        wait_until(lambda: sorted(live.numbers("picky")) == others and "picky" in live.lanes()[0])

        broken.unlink()
        with live.store.writing() as db:
            db.execute("drop trigger refuse")
        for name in ("files", "refused"):
            assert live.ask(name, Action.RESUME) is None
        wait_until(lambda: live.lanes() == [everyone] and numbers.everything("refused"))
        assert (live.query("plain"), live.query("counted")) == healthy
        assert all(query.isActive for query in healthy)
        numbers.send(1)
        wait_until(lambda: numbers.everything("plain", "counted", "refused"))
    files = parquet_files(tmp_path / "parquet")
    assert sorted(n for file in files for n in pq.read_table(file)["n"].to_pylist()) == list(range(numbers.sent))
    assert [letter["headwater.offset"] for letter in letters(broker, "numbers.deadletter")] == [b"7"]


def test_a_sink_that_does_not_answer_keeps_no_other_query_waiting(
    numbers: Numbers, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, blocked, answers = numbers.live, threading.Event(), threading.Event()
    monkeypatch.setattr(lane_module, "SLOW_S", 0.2)
    files = tmp_path / "parquet"

    def wait_for_answer() -> None:
        blocked.set()
        assert answers.wait(PATIENCE_S)

    def app(to: Any) -> hw.App:
        app = app_of(plain=plain, counted=counted)
        app.sink(app.topics[0], to=to, name="files")(plain)
        return app

    def written() -> list[int]:
        return sorted(n for file in parquet_files(files) for n in pq.read_table(file)["n"].to_pylist())

    others = {"plain", "counted", "numbers.deadletter"}
    numbers.send(5)
    with live.running(app(HinderedSink(files, wait_for_answer, opens=True))):
        for _ in range(3):
            wait_until(lambda: blocked.is_set() and numbers.everything("plain", "counted"))
            numbers.send(3)
        wait_until(lambda: numbers.everything("plain", "counted"))
        assert live.lanes() == [others, {"files"}]
        assert written() == []
        # Once it answers, its query continues by itself.
        answers.set()
        wait_until(lambda: written() == list(range(numbers.sent)))
        answers.clear()
        blocked.clear()
        numbers.send(2)
        wait_until(lambda: blocked.is_set() and numbers.everything("plain", "counted"))
        stopped = time.monotonic()
    assert time.monotonic() < stopped + PATIENCE_S / 3  # The app does not wait for the sink when it stops.
    assert len(written()) == numbers.sent - 2
    answers.set()  # The write of the run before is late, and may come before that of the next run.
    run_once(app(hw.Parquet(files)), spark, live.servers, live.folder, live.store)
    assert written() == list(range(numbers.sent))


def test_a_topic_that_cannot_be_read_fails_its_readers_only(numbers: Numbers) -> None:
    live = numbers.live
    app = app_of(plain=plain, counted=counted)
    missing, short = app.topic("missing"), app.topic("short", schema="n long")
    app.view(missing, key="offset", name="reads_missing")(lambda rows: rows.select("offset"))
    app.view(app.topics[0], short, key="n", name="reads_short")(lambda one, other: one.unionAll(other).select("n"))
    numbers.send(3)
    numbers.send(2, topic="short")
    numbers.sent = 3
    with live.running(app):
        wait_until(lambda: numbers.everything("plain", "counted"))
        wait_until(lambda: live.state("reads_missing") == "suspended")
        assert "cannot read topic 'missing': it does not exist" in " ".join(live.lines)
        wait_until(lambda: len(live.numbers("reads_short")) == 5)
        assert live.ask("reads_short", Action.PAUSE) is None
        numbers.send(4, topic="short")
        admin = AdminClient({"bootstrap.servers": live.servers})
        gone = TopicPartition("short", 0, 4)
        admin.delete_records([gone])[gone].result(10)
        assert live.ask("reads_short", Action.RESUME) is None
        wait_until(lambda: live.state("reads_short") == "suspended")
        assert "records were deleted before they were read: short-0 from 2 to 4" in " ".join(live.lines)
        numbers.sent = 3
        numbers.send(3)
        wait_until(lambda: numbers.everything("plain", "counted"))
        assert live.query("plain").isActive and live.query("counted").isActive


@pytest.mark.parametrize("call", [(Member, "finish"), (BatchLog, "begin")], ids=["finish", "begin"])
def test_queries_that_a_kill_left_at_different_positions_begin_together(
    numbers: Numbers, spark: Any, monkeypatch: pytest.MonkeyPatch, call: tuple[Any, str]
) -> None:
    live, app = numbers.live, app_of(plain=plain, counted=counted)
    monkeypatch.setattr(topic_reads, "OFFSETS_PER_TRIGGER_MAX", 10)
    numbers.send(40)
    with monkeypatch.context() as patch:
        kill_at(patch, *call, 4, after=False)
        run_until_killed(app, spark, live.servers, live.folder, live.store)
    with live.running(app):
        assert live.lanes() == [{"plain", "counted", "numbers.deadletter"}]
        wait_until(lambda: numbers.everything("plain", "counted"))
        numbers.send(5)
        wait_until(lambda: numbers.everything("plain", "counted"))
        assert len(live.lanes()) == 1
    assert {row["times"] for row in live.store.rows("counted")} == {1}


def test_a_view_far_behind_in_a_topic_of_its_own_does_not_slow_the_others_down(
    numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = numbers.live
    monkeypatch.setattr(topic_reads, "OFFSETS_PER_TRIGGER_MAX", 10)
    monkeypatch.setattr(lanes_module, "NEAR_RECORDS", 15)
    app = app_of(plain=plain, counted=counted)
    app.view(app.topic("big", schema="n long"), key="n", name="far")(plain)
    numbers.send(200, topic="big")
    numbers.sent = 0
    numbers.send(5)
    live.controls.request("far", Action.PAUSE)
    live.controls.request("big.deadletter", Action.PAUSE)
    with live.running(app):
        wait_until(lambda: numbers.everything("plain", "counted"))
        live.controls.request("far", Action.RESUME)
        wait_until(lambda: len(live.lanes()) == 2)
        wait_until(lambda: len(live.numbers("far")) == 200 and len(live.lanes()) == 1)
        numbers.send(5)
        wait_until(lambda: numbers.everything("plain", "counted"))
    # After a restart as well: what is new waits in a lane of its own.
    live.controls.request("big.deadletter", Action.RESUME)
    with live.running(app):
        assert {"big.deadletter"} in live.lanes()
        wait_until(lambda: len(live.lanes()) == 1)


def test_a_stop_waits_for_the_batch_and_the_next_start_continues_after_it(
    numbers: Numbers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    live, begun = numbers.live, tmp_path / "begun"
    monkeypatch.setattr(topic_reads, "OFFSETS_PER_TRIGGER_MAX", 5)
    path = str(begun)

    def slow(rows: Any) -> Any:
        def wait(n):  # type: ignore[no-untyped-def]
            Path(path).touch()
            time.sleep(0.1)
            return n

        return hw.aggregate(rows.select(F.udf(wait, "long")("n").alias("n")), what={"times": hw.count()}, by="n")

    numbers.send(20)
    with live.running(app_of(plain=plain, slow=slow)):
        wait_until(begun.exists)
    # Both after the same batch, so that they continue together.
    done = live.numbers("plain")
    assert done == sorted(live.numbers("slow"))
    assert len(done) in (5, 10)
    assert live.state("slow") == live.state("plain") == "stopped"
    with live.running(app_of(plain=plain, slow=slow)):
        wait_until(lambda: numbers.everything("plain", "slow"))
    assert {row["times"] for row in live.store.rows("slow")} == {1}


def test_a_view_cannot_leave_its_lane_with_its_checkpoint(numbers: Numbers, spark: Any) -> None:
    live = numbers.live
    numbers.send(3)
    run_once(app_of(counted=counted), spark, live.servers, live.folder, live.store)
    app = hw.App("numbers")
    topic = app.topic("numbers", schema="n long")
    app.view(topic, key="n", name="counted", pipeline="apart")(counted)
    with pytest.raises(ConflictError, match="it runs apart from the other queries now") as refused:
        run_once(app, spark, live.servers, live.folder, live.store)
    assert "headwater rebuild counted" in str(refused.value.hint)
    assert numbers.everything("counted")


def test_random_values_differ_in_every_batch(
    numbers: Numbers, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = numbers.live
    monkeypatch.setattr(topic_reads, "OFFSETS_PER_TRIGGER_MAX", 2)
    numbers.send(6)
    app = hw.App("numbers")
    topic = app.topic("numbers", schema="n long")
    app.view(topic, key="id", name="named")(lambda rows: rows.select(F.expr("uuid()").alias("id"), "n"))
    run_once(app, spark, live.servers, live.folder, live.store)
    assert numbers.everything("named")


def test_a_batch_without_records_is_no_error(numbers: Numbers) -> None:
    """An aborted transaction has offsets, and no records that are read."""
    live = numbers.live
    numbers.send(2)
    with live.running(app_of(plain=plain, counted=counted)):
        wait_until(lambda: numbers.everything("plain", "counted"))
        producer = Producer({"bootstrap.servers": live.servers, "transactional.id": "t"})
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce("numbers", b'{"n": 100}')
        producer.flush(10)
        producer.abort_transaction(10)
        wait_until(lambda: live.positions()["plain"]["numbers"]["0"] > 2)
        numbers.send(2)
        wait_until(lambda: numbers.everything("plain", "counted"))
        assert not [line for line in live.lines if "failed" in line]


def test_a_watermark_function_that_raises_fails_only_the_windows(numbers: Numbers) -> None:
    live = numbers.live
    app = hw.App("numbers")

    def estimate(observed: Any) -> Any:
        raise ValueError("no idea")

    topic = app.topic("numbers", schema="n long", watermark=estimate)
    app.view(topic, key="n", name="plain")(plain)
    what, where = {"times": hw.count()}, hw.Tumbling("1 minute")
    app.view(topic, key=["n", "window"], name="windows")(
        lambda rows: rows.transform(hw.windowed(what=what, where=where, by=["n"], when=hw.AfterWatermark()))
    )
    numbers.send(3)
    with live.running(app):
        wait_until(lambda: live.state("windows") == "suspended")
        numbers.send(3)
        wait_until(lambda: numbers.everything("plain"))
        assert live.query("numbers.deadletter").isActive


@pytest.mark.parametrize("stop", ["pause", "stop"])
def test_a_function_that_does_not_return_keeps_no_other_query_waiting(
    numbers: Numbers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stop: str
) -> None:
    live, stuck = numbers.live, str(tmp_path / "stuck")
    monkeypatch.setattr(batch_run, "SMALL_BATCH_S", 3.0)
    monkeypatch.setattr(lane_module, "STOP_S", 0.5)
    monkeypatch.setattr(lanes_module, "STOP_S", 0.5)

    def hanging(rows: Any) -> Any:
        def wait(n):  # type: ignore[no-untyped-def]
            while n == 7 and Path(stuck).exists():
                time.sleep(0.1)
            return n

        return hw.aggregate(rows.select(F.udf(wait, "long")("n").alias("n")), what={"times": hw.count()}, by="n")

    app = app_of(plain=plain, counted=counted, hanging=hanging)
    others = {"plain", "counted", "numbers.deadletter"}
    numbers.send(5)
    with live.running(app):
        wait_until(lambda: numbers.everything("plain", "counted", "hanging"))
        Path(stuck).touch()
        for _ in range(2):
            numbers.send(5)
            wait_until(lambda: numbers.everything("plain", "counted"))
        wait_until(lambda: live.lanes() == [others, {"hanging"}])
        wait_until(lambda: any(line.startswith("query hanging goes on by itself") for line in live.lines))
        assert sorted(live.numbers("hanging")) == list(range(5))
        assert live.state("hanging") == "running"
        if stop == "pause":
            assert live.ask("hanging", Action.PAUSE) is None
            assert live.state("hanging") == "paused"
            Path(stuck).unlink()
            assert live.ask("hanging", Action.RESUME) is None
            wait_until(lambda: numbers.everything("plain", "counted", "hanging"))
    if stop == "stop":
        assert live.state("hanging") == "stopped"
        Path(stuck).unlink()
        with live.running(app):
            wait_until(lambda: numbers.everything("plain", "counted", "hanging"))
    assert {row["times"] for row in live.store.rows("hanging")} == {1}


def test_an_expression_that_takes_long_keeps_no_other_query_waiting(
    numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java cannot stop it, as it cannot stop a regular expression that backtracks."""
    live = numbers.live
    monkeypatch.setattr(batch_run, "SMALL_BATCH_S", 1.5)
    slow = "length(reflect('java.lang.Thread', 'sleep', 8000L)) + n"

    def computed(rows: Any) -> Any:
        return rows.selectExpr("n", f"if(n = 7, {slow}, n) as total")

    app = app_of(plain=plain, computed=computed, shifted=lambda rows: rows.selectExpr("n", "n + 1 as next"))
    numbers.send(5)
    with live.running(app):
        wait_until(lambda: numbers.everything("plain", "computed", "shifted"))
        for _ in range(2):
            numbers.send(5)
            wait_until(lambda: numbers.everything("plain", "shifted"))
        assert sorted(live.numbers("computed")) == list(range(5))
        assert {"computed"} in live.lanes()
        wait_until(lambda: numbers.everything("plain", "computed", "shifted"))


def test_a_view_that_cannot_continue_is_suspended_until_it_is_rebuilt(numbers: Numbers, spark: Any) -> None:
    live = numbers.live

    def changed(rows: Any) -> Any:
        return hw.aggregate(rows, what={"times": hw.count(), "largest": hw.max("n")}, by="n")

    numbers.send(5)
    run_once(app_of(plain=plain, counted=counted, other=counted), spark, live.servers, live.folder, live.store)
    (live.folder / "checkpoints" / "other" / "metadata").write_text("damaged")
    with live.running(app_of(plain=plain, counted=changed, other=counted)):
        numbers.send(5)
        wait_until(lambda: numbers.everything("plain"))
        assert [live.state(name) for name in ("plain", "counted", "other")] == [
            "running",
            "suspended",
            "suspended",
        ]
        (line,) = [line for line in live.lines if line.startswith("query counted is suspended, the others go on")]
        assert "what: 'largest' is new" in line
        assert "headwater rebuild counted" in line
        assert "'largest' is new" in str(live.ask("counted", Action.RESUME))
        assert "is damaged" in str(live.ask("other", Action.RESUME))
        assert sorted(live.numbers("counted")) == list(range(5))

        for view in ("counted", "other"):
            Generations(live.store).request_rebuild(view)
        wait_until(lambda: numbers.everything("plain", "counted", "other"))
        wait_until(lambda: live.state("counted") == live.state("other") == "running")
        numbers.send(5)
        wait_until(lambda: numbers.everything("plain", "counted", "other"))
        assert live.pipeline is not None
        live.pipeline.check()
    assert {row["largest"] - row["n"] for row in live.store.rows("counted")} == {0}


def test_a_damaged_state_suspends_its_view_or_refuses_an_app_that_has_no_other(
    numbers: Numbers, spark: Any
) -> None:
    live = numbers.live
    numbers.send(5)
    run_once(app_of(plain=plain, counted=counted), spark, live.servers, live.folder, live.store)
    for path in (live.folder / "checkpoints" / "counted" / "state").glob("*.state"):
        path.write_bytes(b"damaged")
    with live.running(app_of(plain=plain, counted=counted)):
        numbers.send(5)
        wait_until(lambda: numbers.everything("plain"))
        assert live.state("counted") == "suspended"
        (line,) = [line for line in live.lines if line.startswith("query counted is suspended, the others go on")]
        assert line.endswith("is missing or damaged; use `headwater rebuild`")
    with pytest.raises(CorruptError, match="is missing or damaged"), live.running(app_of(counted=counted)):
        pass


def test_a_view_that_is_removed_is_shown_as_removed_until_it_is_put_back(numbers: Numbers, spark: Any) -> None:
    live = numbers.live

    def run(**views: Any) -> None:
        run_once(app_of(**views), spark, live.servers, live.folder, live.store)

    numbers.send(3)
    run(plain=plain, counted=counted)
    numbers.send(2)
    run(plain=plain)
    assert (live.state("plain"), live.state("counted")) == ("stopped", "removed")
    assert sorted(live.numbers("counted")) == [0, 1, 2]
    run(plain=plain, counted=counted)
    assert live.state("counted") == "stopped"
    assert numbers.everything("plain", "counted")
    assert {row["times"] for row in live.store.rows("counted")} == {1}


def test_an_expression_that_spark_cannot_plan_fails_only_its_query(numbers: Numbers) -> None:
    live = numbers.live
    numbers.send(3)
    with live.running(app_of(plain=plain, wrong=lambda rows: rows.selectExpr("n", "cast('x' as int) as i"))):
        wait_until(lambda: numbers.everything("plain"))
        wait_until(lambda: live.state("wrong") == "suspended")
        numbers.send(3)
        wait_until(lambda: numbers.everything("plain"))
        assert "CAST_INVALID_INPUT" in " ".join(live.lines)
