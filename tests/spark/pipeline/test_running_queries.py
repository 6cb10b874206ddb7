"""The registry of running queries, without Spark."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from headwater.clock import ManualClock
from headwater.errors import InvalidError
from headwater.spark.pipeline.running_queries import RunningQueries
from headwater.store.pipelines.facts import FactKind, FactStore
from tests.spark.pipeline.fake_queries import FakeStarts, progress


@pytest.fixture
def facts(tmp_path: Path) -> FactStore:
    return FactStore(tmp_path / "facts.db")


@pytest.fixture
def queries(facts: FactStore) -> RunningQueries:
    return RunningQueries(facts, ManualClock())


def states(facts: FactStore, query: str) -> list[Any]:
    return [fact.body["state"] for fact in facts.latest(query, limit=10)]


def test_a_launched_query_is_registered_and_reported(queries: RunningQueries, facts: FactStore) -> None:
    starts = FakeStarts()
    queries.launch("revenue", starts)
    assert queries["revenue"].streaming is starts.last
    assert states(facts, "revenue") == ["starting"]
    assert queries.get("other") is None


def test_rows_read_are_counted_across_restarts_and_launches(queries: RunningQueries) -> None:
    starts = FakeStarts()
    queries.launch("revenue", starts)
    starts.last.recentProgress.append(progress(0, rows=3))
    queries.restart("revenue")
    starts.last.recentProgress.append(progress(1, rows=4))
    queries.launch("revenue", starts)
    starts.last.recentProgress.append(progress(2, rows=5))
    assert len(starts.started) == 3
    assert queries.rows_read() == {"revenue": 12}


def test_rows_are_counted_once_although_spark_keeps_few_batches(queries: RunningQueries) -> None:
    starts = FakeStarts()
    queries.launch("revenue", starts)
    kept = starts.last.recentProgress
    for batch in range(5):
        kept.append(progress(batch, rows=10))
        del kept[:-2]
        assert queries.rows_read() == {"revenue": 10 * (batch + 1)}
    assert queries.rows_read() == {"revenue": 50}


def test_queries_are_settled_when_none_runs_or_waits(queries: RunningQueries) -> None:
    starts = FakeStarts()
    queries.launch("revenue", starts)
    assert not queries.are_settled
    starts.last.isActive = False
    assert queries.are_settled
    queries["revenue"].restart_at = 1.0
    assert not queries.are_settled


def test_a_query_that_spark_refuses_to_start_is_not_registered(queries: RunningQueries) -> None:
    def refuse() -> Any:
        raise PySparkException("no such column\nand the plan")

    with pytest.raises(InvalidError, match=r"cannot start query 'revenue': .*no such column$"):
        queries.launch("revenue", refuse)
    assert queries.get("revenue") is None


def test_a_forgotten_query_is_stopped_and_a_rebuild_loses_its_facts(
    queries: RunningQueries, facts: FactStore
) -> None:
    view, rebuild = FakeStarts(), FakeStarts()
    queries.launch("revenue", view)
    queries.launch("revenue@1", rebuild)
    for name, _ in queries:
        queries.forget(name)
    queries.forget("unknown")
    assert not view.last.isActive
    assert not rebuild.last.isActive
    assert [name for name, _ in queries] == []
    assert facts.queries() == ["revenue"]


def test_stop_reports_the_queries_that_ran(queries: RunningQueries, facts: FactStore) -> None:
    runs, ended = FakeStarts(), FakeStarts()
    queries.launch("runs", runs)
    queries.launch("ended", ended)
    ended.last.isActive = False
    queries.stop()
    assert not runs.last.isActive
    assert states(facts, "runs") == ["starting", "stopped"]
    assert states(facts, "ended") == ["starting"]


def test_reports_of_operators_are_kept_apart(queries: RunningQueries, facts: FactStore) -> None:
    queries.report_operators("revenue", {"run": "a", "batchId": 1, "operators": {}})
    assert facts.latest("revenue") == []
    (fact,) = facts.latest("revenue", kind=FactKind.OPERATORS)
    assert fact.body == {"run": "a", "batchId": 1, "operators": {}, "ignoredRows": 0}


def test_ignored_rows_are_added_up_once_for_each_batch(queries: RunningQueries) -> None:
    assert queries.ignored_rows("revenue") == 0
    operators = {"table-0": {"ignoredRows": 2}, "table-1": {"ignoredRows": 1}, "windowed-2": {}}
    for batch in (0, 1, 1):  # The last one was run again.
        queries.report_operators("revenue", {"run": "a", "batchId": batch, "operators": operators})
    assert queries.ignored_rows("revenue") == 6
    queries.report_operators("revenue", {"run": "b", "batchId": 0, "operators": operators})
    assert queries.ignored_rows("revenue") == 3
