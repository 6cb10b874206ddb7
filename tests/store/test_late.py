"""The late ledger: rows are recorded once, in the transaction of their batch, and deleted with their run."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.store.late import SCHEMA, LateRow
from headwater.store.shapes import ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore

SHAPE = ViewShape(
    name="totals", key=("product",), columns=(Column("product", "string"), Column("total", "bigint"))
)


@pytest.fixture
def store(location: Path | str, open_store: Callable[..., ViewStore]) -> ViewStore:
    store = open_store(location)
    store.declare(SHAPE)
    return store


def rows(**totals: int) -> pa.Table:
    return pa.table({"product": list(totals), "total": pa.array(totals.values(), pa.int64())})


def late(amount: int) -> LateRow:
    return LateRow(
        operator="windowed-0",
        key={"product": "tea"},
        window_start=0,
        window_end=60_000_000,
        event_time=1_000_000,
        late_by=5_000_000,
        reason="expired",
        last_pane=None,
        row={"product": "tea", "amount": amount},
    )


def test_late_rows_are_numbered_in_order_of_arrival(store: ViewStore) -> None:
    store.commit_rows("totals", rows(tea=1), run="a", batch=0, late_rows=[late(1), late(2)])
    store.commit_rows("totals", rows(tea=2), run="a", batch=1, late_rows=[late(3)])
    found = store.late_rows("totals")
    assert [(row.number, row.batch, row.row["amount"]) for row in found] == [(1, 0, 1), (2, 0, 2), (3, 1, 3)]
    assert [row.number for row in store.late_rows("totals", after=1, limit=1)] == [2]
    assert store.late_counts() == {"totals": (3, 3)}


def test_a_repeated_batch_adds_no_late_rows(store: ViewStore) -> None:
    for _ in range(2):
        store.commit_rows("totals", rows(tea=1), run="a", batch=0, late_rows=[late(1)])
    assert store.late_counts() == {"totals": (1, 1)}


def test_new_run_starts_with_an_empty_ledger(store: ViewStore) -> None:
    store.commit_rows("totals", rows(tea=1), run="a", batch=0, late_rows=[late(1)])
    store.commit_rows("totals", rows(tea=1), run="b", batch=0)
    assert store.late_rows("totals") == []


def test_failed_commit_leaves_no_late_row(store: ViewStore) -> None:
    broken = pa.table({"product": ["tea"]})
    with pytest.raises(KeyError):
        store.commit_rows("totals", broken, run="a", batch=0, late_rows=[late(1)])
    assert store.late_rows("totals") == []


def test_affected_rows_that_are_no_longer_computed_are_deleted(store: ViewStore) -> None:
    store.commit_rows("totals", rows(tea=1, milk=2), run="a", batch=0, late_rows=[late(1)])
    store.commit_late("totals", rows(coffee=3), [1], affected=lambda row: row["product"] != "milk")
    assert [row["product"] for row in store.rows("totals")] == ["coffee", "milk"]


def test_reprocessed_rows_are_marked_together_with_their_results(store: ViewStore) -> None:
    store.commit_rows("totals", rows(tea=1), run="a", batch=0, late_rows=[late(1), late(2)])
    store.commit_late("totals", rows(tea=2, milk=9), [1], affected=lambda row: row["product"] == "tea")
    assert store.rows("totals") == [{"product": "tea", "total": 2}]
    assert [row.reprocessed for row in store.late_rows("totals")] == [True, False]
    assert store.late_counts() == {"totals": (2, 1)}


def test_a_ledger_of_an_earlier_version_accepts_rows_without_window_or_time(tmp_path: Path) -> None:
    path = tmp_path / "views.db"
    strict = SCHEMA[0].replace("window_start bigint,", "window_start bigint not null,")
    assert strict != SCHEMA[0]
    with sqlite3.connect(path) as db:
        db.execute(strict)
        db.execute(
            "insert into headwater_late values ('hits', 1, 0, 'windowed-0', '{}', 1, 2, 3, 4, 'x', null, '{}', 0)"
        )
    db.close()
    store = ViewStore(path)
    store.record_late(
        "hits",
        [replace(late(1), window_start=None, window_end=None, event_time=None, late_by=None)],
        run="r",
        batch=1,
    )
    [before, row] = store.late_rows("hits")
    assert (before.window_start, before.late_by) == (1, 4)
    assert (row.window_start, row.event_time, row.late_by) == (None, None, None)
    store.close()
