"""The store of views: rows, changes and batch numbers are updated together."""

import datetime as dt
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.change import Op
from headwater.errors import ConflictError, InvalidError, RefusedError
from headwater.store.shapes import Access, ViewShape
from headwater.store.tables import ViewProgress
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore

TOTALS = ViewShape(
    name="totals", key=("product",), columns=(Column("product", "string"), Column("total", "double"))
)
INSTANT = pa.timestamp("us", tz="UTC")


def opened(location: Path | str, open_store: Callable[..., ViewStore], shape: ViewShape = TOTALS) -> ViewStore:
    store = open_store(location)
    store.declare(shape)
    return store


def totals(*rows: tuple[str | None, float | None]) -> pa.Table:
    return pa.table(
        {
            "product": pa.array([product for product, _ in rows], pa.string()),
            "total": pa.array([total for _, total in rows], pa.float64()),
        }
    )


def as_mapping(rows: list[dict[str, Any]]) -> dict[Any, Any]:
    return {row["product"]: row["total"] for row in rows}


def test_rows_are_replaced_by_key(location, open_store):
    store = opened(location, open_store)
    assert store.commit_rows("totals", totals(("tea", 1.0), ("coffee", 2.0)), run="r", batch=0)
    assert store.commit_rows("totals", totals(("tea", 5.0)), run="r", batch=1)
    assert as_mapping(store.rows("totals")) == {"coffee": 2.0, "tea": 5.0}
    assert (store.count("totals"), store.position("totals")) == (2, 3)


def test_the_last_row_of_a_key_in_a_batch_wins(location, open_store):
    store = opened(location, open_store)
    store.commit_rows("totals", totals(("tea", 1.0), ("tea", 2.0)), run="r", batch=0)
    assert as_mapping(store.rows("totals")) == {"tea": 2.0}


def test_unchanged_rows_make_no_changes(location, open_store):
    store = opened(location, open_store)
    store.commit_rows("totals", totals(("tea", 1.0)), run="r", batch=0)
    store.commit_rows("totals", totals(("tea", 1.0)), run="r", batch=1)
    assert store.position("totals") == 1


def test_same_batch_again_is_skipped(location, open_store):
    store = opened(location, open_store)
    store.commit_rows("totals", totals(("tea", 1.0)), run="r", batch=0)
    assert not store.commit_rows("totals", totals(("tea", 99.0)), run="r", batch=0)
    assert as_mapping(store.rows("totals")) == {"tea": 1.0}
    assert store.progress("totals") == ViewProgress(run="r", batch=0, note={})


def test_a_new_run_starts_with_an_empty_view(location, open_store):
    store = opened(location, open_store)
    store.commit_rows("totals", totals(("tea", 1.0), ("milk", 2.0)), run="first", batch=7)
    assert store.commit_rows("totals", totals(("tea", 3.0)), run="second", batch=0)
    assert as_mapping(store.rows("totals")) == {"tea": 3.0}
    changes = store.changes("totals", after=2)
    assert [(change.op, change.key) for change in changes] == [
        (Op.DELETE, ("milk",)),
        (Op.DELETE, ("tea",)),
        (Op.INSERT, ("tea",)),
    ]


def test_failed_batch_leaves_no_trace(location, open_store):
    store = opened(location, open_store)
    store.commit_rows("totals", totals(("tea", 1.0)), run="first", batch=0)
    with pytest.raises(KeyError):
        store.commit_rows("totals", pa.table({"product": ["tea"]}), run="second", batch=0)
    assert as_mapping(store.rows("totals")) == {"tea": 1.0}
    assert store.progress("totals") == ViewProgress(run="first", batch=0, note={})


def test_a_rehearsal_leaves_no_trace(location, open_store):
    store = opened(location, open_store)
    store.commit_rows("totals", totals(("tea", 1.0)), run="r", batch=0)
    store.rehearse_rows("totals", totals(("tea", 2.0), ("milk", 3.0)))
    assert (as_mapping(store.rows("totals")), store.position("totals")) == ({"tea": 1.0}, 1)
    if isinstance(location, str):  # PostgreSQL cannot store this character.
        for attempt in (store.rehearse_rows, partial(store.commit_rows, run="r", batch=1)):
            with pytest.raises(RefusedError, match="write to the store"):
                attempt("totals", totals(("\0", 1.0)))
    assert store.commit_rows("totals", totals(("milk", 4.0)), run="r", batch=1)
    assert as_mapping(store.rows("totals")) == {"milk": 4.0, "tea": 1.0}


def test_null_keys_are_one_key(location, open_store):
    store = opened(location, open_store)
    store.commit_rows("totals", totals((None, 1.0), ("tea", 2.0)), run="r", batch=0)
    store.commit_rows("totals", totals((None, 3.0)), run="r", batch=1)
    assert store.rows("totals") == [{"product": None, "total": 3.0}, {"product": "tea", "total": 2.0}]
    assert store.changes("totals", after=2)[0].before == {"product": None, "total": 1.0}


def test_nan_is_kept_and_is_not_null(location, open_store):
    store = opened(location, open_store)
    store.commit_rows("totals", totals(("tea", math.nan), ("milk", None)), run="r", batch=0)
    assert as_mapping(store.rows("totals")) == {"milk": None, "tea": "NaN"}
    store.commit_rows("totals", totals(("tea", math.nan)), run="r", batch=1)
    assert store.position("totals") == 2


def test_windows_sort_by_their_start(location, open_store):
    window = pa.struct([("start", INSTANT), ("end", INSTANT)])
    shape = ViewShape(
        name="windowed",
        key=("window",),
        columns=(Column("window", "struct<start:timestamp,end:timestamp>"), Column("n", "bigint")),
    )
    store = opened(location, open_store, shape)
    starts = [dt.datetime(2026, 11, day, hour, tzinfo=dt.UTC) for day, hour in ((15, 9), (9, 23), (15, 10))]
    windows = [{"start": start, "end": start + dt.timedelta(hours=1)} for start in starts]
    rows = pa.table({"window": pa.array(windows, window), "n": [1, 2, 3]})
    store.commit_rows("windowed", rows, run="r", batch=0)
    assert [row["n"] for row in store.rows("windowed", order_by="window", descending=True)] == [3, 1, 2]
    assert store.rows("windowed")[0]["window"] == {
        "start": "2026-11-09T23:00:00.000000Z",
        "end": "2026-11-10T00:00:00.000000Z",
    }


def test_a_changed_shape_is_a_conflict_with_a_hint(location, open_store):
    store = opened(location, open_store)
    changed = ViewShape(name="totals", key=("product",), columns=(*TOTALS.columns, Column("orders", "bigint")))
    store.commit_rows("totals", totals(("tea", 1.0)), run="r", batch=0)
    with pytest.raises(ConflictError) as caught:
        store.declare(changed)
    assert str(caught.value) == (
        "cannot continue view 'totals': its columns are (product string, total double) by key (product), and "
        "the app now computes (product string, total double, orders bigint) by key (product)"
    )
    assert "headwater rebuild totals" in (caught.value.hint or "")


def test_declaring_the_same_shape_again_keeps_the_rows(location, open_store):
    store = opened(location, open_store)
    store.commit_rows("totals", totals(("tea", 1.0)), run="r", batch=0)
    assert opened(location, open_store).count("totals") == 1


def test_unknown_view_names_the_others(location, open_store):
    with pytest.raises(InvalidError, match=r"there is no view 'sales' in .*; it has: totals"):
        opened(location, open_store).rows("sales")


def test_old_changes_are_deleted(location, open_store):
    store = opened(location, open_store)
    store.declare(TOTALS, Access(history=3))
    for batch in range(5):
        store.commit_rows("totals", totals(("tea", float(batch))), run="r", batch=batch)
    assert [change.position for change in store.changes("totals", after=0)] == [3, 4, 5]
    assert store.changes("totals", after=0)[0].position == 3


products = st.one_of(st.none(), st.sampled_from(["", "tea", "coffee", 'quo"te', "Ünï"]))
numbers = st.one_of(st.none(), st.floats(allow_infinity=False, width=32))
batches = st.lists(
    st.tuples(st.booleans(), st.lists(st.tuples(products, numbers), max_size=6)), min_size=1, max_size=6
)


@given(batches)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_changes_add_up_to_the_rows(new_location, open_store, given_batches):
    store = opened(new_location(), open_store)
    run, batch = 0, 0
    for starts_over, rows in given_batches:
        run, batch = (run + 1, 0) if starts_over else (run, batch + 1)
        store.commit_rows("totals", totals(*rows), run=str(run), batch=batch)
    table: dict[Any, Any] = {}
    for position, change in enumerate(store.changes("totals", after=0), 1):
        assert change.position == position
        before = None if change.before is None else dict(change.before)
        assert before == table.get(change.key)
        if change.after is None:
            del table[change.key]
        else:
            table[change.key] = dict(change.after)
    assert table == {(row["product"],): row for row in store.rows("totals")}
    store.close()


@pytest.mark.parametrize("number", [math.inf, -math.inf])
def test_infinities_are_returned_as_text(location, open_store, number):
    store = opened(location, open_store)
    store.commit_rows("totals", totals(("tea", number)), run="r", batch=0)
    assert isinstance(store.rows("totals")[0]["total"], str)


def test_changes_insert_and_retract_rows(location: Path | str, open_store: Callable[..., ViewStore]) -> None:
    store = open_store(location)
    columns = (Column("product", "string"), Column("n", "bigint"), Column("total", "double"))
    store.declare(ViewShape(name="sums", key=("product",), columns=columns))

    def commit(batch: int, *changes: tuple[str, int, float, int]) -> dict[str, int]:
        product, n, total, signs = zip(*changes, strict=True)
        rows = pa.table({"product": product, "n": n, "total": total})
        store.commit_rows("sums", rows, run="run", batch=batch, signs=signs)
        return {row["product"]: row["n"] for row in store.rows("sums")}

    assert commit(0, ("tea", 1, 0.3, 1), ("cocoa", 1, 1.0, 1)) == {"tea": 1, "cocoa": 1}
    assert commit(1, ("tea", 1, 0.3, -1), ("tea", 2, 0.6, 1)) == {"tea": 2, "cocoa": 1}
    # A retracted row may be rounded differently than when it was inserted.
    assert commit(2, ("tea", 2, 0.6000000000000001, -1)) == {"cocoa": 1}
    # Another row has the key now, and stays.
    assert commit(3, ("cocoa", 5, 1.0, 1), ("cocoa", 1, 1.0, -1)) == {"cocoa": 5}
    assert commit(4, ("cocoa", 1, 1.0, -1)) == {"cocoa": 5}
    assert [change.op for change in store.changes("sums", after=0)] == ["c", "c", "u", "d", "u"]
    store.close()
