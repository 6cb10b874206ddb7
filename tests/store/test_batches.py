"""Commits of several batches: one transaction writes all of them or none, and an error names its query."""

import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import ConflictError, InvalidError, RefusedError, UnavailableError
from headwater.store import tables
from headwater.store.batches import BatchCommitError, LateBatch, ViewBatch
from headwater.store.databases.engine import Db
from headwater.store.late import LateRow
from headwater.store.pipelines.generations import Generations
from headwater.store.questions import Question
from headwater.store.shapes import Access, ViewShape
from headwater.store.tables import ViewProgress
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore

VIEWS = ("counts", "prices", "sums")
COLUMNS = (Column("product", "string"), Column("n", "bigint"))


def shape(view: str, *more: Column) -> ViewShape:
    return ViewShape(name=view, key=("product",), columns=(*COLUMNS, *more))


@pytest.fixture
def store(location: Path | str, open_store: Callable[..., ViewStore]) -> ViewStore:
    store = open_store(location)
    for view in VIEWS:
        store.declare(shape(view))
    return store


def table(**numbers: int) -> pa.Table:
    return pa.table({"product": list(numbers), "n": pa.array(numbers.values(), pa.int64())})


def batch(view: str, number: int = 0, *, run: str = "r", rows: pa.Table | None = None, **more: Any) -> ViewBatch:
    return ViewBatch(view=view, rows=table(tea=number) if rows is None else rows, run=run, batch=number, **more)


def late(amount: int, text: str = "tea") -> LateRow:
    return LateRow(
        operator="windowed-0",
        key={"product": text},
        window_start=0,
        window_end=60_000_000,
        event_time=1_000_000,
        late_by=5_000_000,
        reason="expired",
        last_pane=None,
        row={"amount": amount},
    )


def numbers(store: ViewStore, view: str) -> dict[str, int]:
    return {row["product"]: row["n"] for row in store.rows(view)}


def everything(store: ViewStore) -> list[Any]:
    return [
        (store.rows(view), store.changes(view, after=0), store.progress(view), store.late_rows(view))
        for view in VIEWS
    ]


def test_all_views_are_written(store: ViewStore) -> None:
    offsets = {"orders": {"0": 7}}
    assert store.commit_batches([batch(view, offsets=offsets) for view in VIEWS]) == [True, True, True]
    for view in VIEWS:
        assert (numbers(store, view), store.position(view)) == ({"tea": 0}, 1)
        assert store.progress(view) == ViewProgress(run="r", batch=0, note={"offsets": offsets})
    assert store.commit_batches([]) == []


def test_readers_see_all_batches_or_none(
    store: ViewStore, open_store, location: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit_batches([batch(view) for view in VIEWS])
    reader = open_store(location, read_only=True)
    seen = []
    set_progress = tables.set_progress

    def read_after(db: Db, query: str, progress: ViewProgress) -> None:
        set_progress(db, query, progress)
        seen.append([reader.position(view) for view in VIEWS])

    monkeypatch.setattr(tables, "set_progress", read_after)
    store.commit_batches([batch(view, 1) for view in VIEWS])
    assert seen == [[1, 1, 1]] * 3
    assert [reader.position(view) for view in VIEWS] == [2, 2, 2]


def test_recorded_batches_are_skipped_and_the_others_written(store: ViewStore) -> None:
    store.commit_batches([batch("counts", 4), batch("prices", 3)])
    repeated = table(tea=99)
    found = store.commit_batches(
        [
            batch("counts", 4, rows=repeated),
            batch("prices", 4),
            batch("sums", 4),
            batch("counts", 3, rows=repeated),
        ]
    )
    assert found == [False, True, True, False]
    assert [numbers(store, view) for view in VIEWS] == [{"tea": 4}] * 3


def test_a_recorded_batch_is_skipped_even_if_its_rows_cannot_be_encoded(store: ViewStore) -> None:
    store.commit_batches([batch("counts")])
    broken = batch("counts", rows=pa.table({"product": ["tea"]}))
    assert store.commit_batches([broken, batch("sums")]) == [False, True]


def test_two_batches_of_a_view_are_written_in_order(store: ViewStore) -> None:
    found = store.commit_batches([batch("sums", 0), batch("sums", 1), batch("sums", 1, rows=table(tea=9))])
    assert found == [True, True, False]
    assert [change.position for change in store.changes("sums", after=0)] == [1, 2]
    assert numbers(store, "sums") == {"tea": 1}


def test_new_runs_start_with_an_empty_view_unless_they_continue(store: ViewStore) -> None:
    store.commit_batches([batch(view, 5, rows=table(milk=1), late_rows=[late(1)]) for view in VIEWS])
    store.commit_batches(
        [batch("counts", 6), batch("prices", run="new"), batch("sums", run="new", continues="r")],
    )
    assert numbers(store, "counts") == {"milk": 1, "tea": 6}
    assert numbers(store, "prices") == {"tea": 0}
    assert numbers(store, "sums") == {"milk": 1, "tea": 0}
    assert store.late_counts() == {"counts": (1, 1), "sums": (1, 1)}
    assert [change.position for change in store.changes("prices", after=0)] == [1, 2, 3]


def test_late_rows_of_sinks_are_in_the_same_transaction(store: ViewStore) -> None:
    sink = LateBatch(query="mails", late_rows=[late(1), late(2)], run="r", batch=0)
    assert store.commit_batches([batch("counts", late_rows=[late(3)]), sink]) == [True, True]
    assert store.late_counts() == {"counts": (1, 1), "mails": (2, 2)}
    assert store.progress("mails") == ViewProgress(run="r", batch=0, note={})
    assert store.commit_batches([sink, batch("counts", 1)]) == [False, True]
    with pytest.raises(BatchCommitError):
        store.commit_batches(
            [LateBatch(query="mails", late_rows=[late(4)], run="new", batch=0), batch("unknown view")]
        )
    assert store.late_count("mails") == 2
    store.commit_batches([LateBatch(query="mails", late_rows=[late(4)], run="new", batch=0)])
    assert [row.row["amount"] for row in store.late_rows("mails")] == [4]


@pytest.mark.parametrize(
    ("rows", "cause"),
    [
        (pa.table({"product": ["tea"]}), KeyError),
        (pa.table({"product": ["tea"], "n": pa.array([2**64 - 1], pa.uint64())}), (OverflowError, RefusedError)),
    ],
    ids=["a column is missing", "a number is too large"],
)
def test_a_view_that_cannot_be_written_leaves_all_unwritten(
    store: ViewStore, rows: pa.Table, cause: type[Exception]
) -> None:
    store.commit_batches([batch(view, late_rows=[late(1)]) for view in VIEWS])
    before = everything(store)
    good = [batch("counts", run="new", late_rows=[late(2)]), batch("sums", 1)]
    with pytest.raises(BatchCommitError, match="query 'prices'") as caught:
        store.commit_batches([good[0], batch("prices", 1, rows=rows), good[1]])
    assert caught.value.query == "prices"
    assert isinstance(caught.value.cause, cause)
    assert everything(store) == before
    with pytest.raises(cause) as alone:
        store.commit_rows("prices", rows, run="r", batch=1)
    assert "BatchCommitError" not in "".join(traceback.format_exception(alone.value))
    assert store.commit_batches(good) == [True, True]


def test_an_unknown_view_is_named(store: ViewStore) -> None:
    with pytest.raises(BatchCommitError) as caught:
        store.commit_batches([batch("counts"), batch("unknown")])
    assert (caught.value.query, type(caught.value.cause)) == ("unknown", InvalidError)
    assert store.progress("counts") is None


def test_text_that_the_database_refuses_is_blamed_on_its_query(store: ViewStore, location: Path | str) -> None:
    if not isinstance(location, str):
        pytest.skip("only PostgreSQL refuses the character 0")
    refused = pa.table({"product": ["\0"], "n": pa.array([1], pa.int64())})
    with pytest.raises(BatchCommitError) as caught:
        store.commit_batches([batch("counts"), batch("prices", rows=refused)])
    assert (caught.value.query, type(caught.value.cause)) == ("prices", RefusedError)
    sink = LateBatch(query="mails", late_rows=[late(1)], run="\0", batch=0)
    with pytest.raises(BatchCommitError) as caught:
        store.commit_batches([batch("counts"), sink])
    assert caught.value.query == "mails"
    assert store.progress("counts") is None


def test_a_writer_that_lost_the_store_blames_no_view(store: ViewStore, open_store, location: Path | str) -> None:
    if not isinstance(location, str):
        pytest.skip("only PostgreSQL fences writers")
    store.claim("shop")
    open_store(location).claim("shop")
    with pytest.raises(ConflictError, match="another pipeline has claimed it"):
        store.commit_batches([batch("counts")])


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (sqlite3.SQLITE_FULL, UnavailableError),
        (sqlite3.SQLITE_IOERR, sqlite3.OperationalError),
        (sqlite3.SQLITE_TOOBIG, BatchCommitError),
    ],
)
def test_failures_of_the_disk_blame_no_view(
    tmp_path: Path, open_store, monkeypatch: pytest.MonkeyPatch, code: int, raised: type[Exception]
) -> None:
    store = open_store(tmp_path / "views.db")
    store.declare(shape("counts"))

    def fail(*_: object) -> None:
        error = sqlite3.OperationalError("it failed")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(tables, "upsert", fail)
    with pytest.raises(raised):
        store.commit_batches([batch("counts")])
    assert store.progress("counts") is None


def test_a_row_that_is_too_large_is_blamed_on_its_view(tmp_path: Path, open_store) -> None:
    store = open_store(tmp_path / "views.db")
    for view in VIEWS:
        store.declare(shape(view))
    store.reading().setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
    with pytest.raises(BatchCommitError) as caught:
        store.commit_batches([batch("counts"), batch("sums", rows=table(**{"x" * 10_001: 1}))])
    assert caught.value.query == "sums"
    assert store.progress("counts") is None


def test_a_layout_that_another_writer_changed_is_used(store: ViewStore, open_store, location: Path | str) -> None:
    store.commit_batches([batch(view) for view in VIEWS])
    other = open_store(location)
    other.declare(shape("counts"), Access(search=("product",), history=2))
    Generations(other).restart("sums")
    other.declare(shape("sums", Column("price", "double")))
    priced = table(milk=1).append_column("price", pa.array([0.5]))
    for number in range(1, 4):
        store.commit_batches([batch("counts", number), batch("sums", number, rows=priced)])
    assert [row["n"] for row in store.ask("counts", Question(search="tea")).rows] == [3]
    assert [change.position for change in store.changes("counts", after=0)] == [3, 4]
    assert store.rows("sums") == [{"product": "milk", "n": 1, "price": 0.5}]


def test_a_layout_that_changes_while_rows_are_encoded_is_used(
    store: ViewStore, open_store, location: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit_batches([batch("sums")])
    other = open_store(location)
    writing = store.database.writing

    @contextmanager
    def changed_before() -> Iterator[Db]:
        Generations(other).restart("sums")
        other.declare(shape("sums", Column("price", "double")))
        with writing() as db:
            yield db

    monkeypatch.setattr(store.database, "writing", changed_before)
    rows = table(milk=1).append_column("price", pa.array([0.5]))
    assert store.commit_batches([batch("sums", 1, rows=rows)]) == [True]
    assert store.rows("sums") == [{"product": "milk", "n": 1, "price": 0.5}]
