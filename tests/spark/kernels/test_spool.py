"""The files in which a stateful operator reports late rows and facts."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from headwater.spark.kernels.spool import PANES_KEPT, Facts, Spool, StepName, summarize_operators


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool"))


def late(*amounts: int) -> pl.DataFrame:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{"product": "tea", "amount": Decimal(a), "at": at, "raw": b"x"} for a in amounts]
    return pl.DataFrame(
        {
            "product": ["tea"] * len(amounts),
            "window_start": [0] * len(amounts),
            "window_end": [60] * len(amounts),
            "event_time": [1] * len(amounts),
            "late_by": [5] * len(amounts),
            "reason": ["expired"] * len(amounts),
            "last_pane": [None] * len(amounts),
            "row": rows,
        },
        schema_overrides={"last_pane": pl.Int32},
    )


def test_late_rows_are_read_back_with_json_types(spool: Spool) -> None:
    spool.put(StepName("run", 3, "windowed-0", 7), late(1), {})
    [row] = spool.late("run", 3)
    assert (row.operator, row.key, row.late_by, row.last_pane) == ("windowed-0", {"product": "tea"}, 5, None)
    assert row.row == {"product": "tea", "amount": "1", "at": "2026-01-01T00:00:00+00:00", "raw": "x"}


def test_a_repeated_step_replaces_its_report(spool: Spool) -> None:
    for _ in range(2):
        spool.put(StepName("run", 0, "windowed-0", 1), late(1, 2), {"rows": 2})
        spool.put(StepName("run", 0, "windowed-0", 2), late(3), {"rows": 1})
    assert [row.row["amount"] for row in spool.late("run", 0)] == ["1", "2", "3"]
    assert spool.facts("run", 0) == [
        Facts("windowed-0", {"rows": 2}, "windowed-0-1"),
        Facts("windowed-0", {"rows": 1}, "windowed-0-2"),
    ]


def test_clear_removes_batches_up_to_one_and_other_runs(spool: Spool) -> None:
    for run, batch in (("old", 9), ("run", 1), ("run", 2), ("run", 3)):
        spool.put(StepName(run, batch, "windowed-0", 0), late(batch), {})
    spool.clear("run", through=2)
    found = [len(spool.late(run, batch)) for run, batch in (("old", 9), ("run", 1), ("run", 2), ("run", 3))]
    assert found == [0, 0, 0, 1]


def test_facts_of_an_operator_are_the_sum_of_its_buckets() -> None:
    panes = [{"index": n} for n in range(PANES_KEPT)]
    facts = [
        Facts("windowed-0", {"watermark": 7, "stateRows": 2, "lateRows": 1, "panes": panes}),
        Facts("windowed-0", {"watermark": 7, "stateRows": 3, "panes": [{"index": -1}]}),
        Facts("windowed-1", {"watermark": 5, "stateRows": 1}),
    ]
    summary = summarize_operators(facts)
    assert summary["windowed-0"]["stateRows"] == 5
    assert summary["windowed-0"]["lateRows"] == 1
    assert summary["windowed-0"]["watermark"] == 7
    assert summary["windowed-0"]["panes"] == [*panes[1:], {"index": -1}]
    assert summary["windowed-1"]["stateRows"] == 1
