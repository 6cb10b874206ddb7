"""A table of runs compared with a dictionary, under random changes; reads do not depend on the runs."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.process import table as tables
from headwater.process.table import Run, Table, hash_mark

SCHEMA = pl.Schema({"user": pl.String, "day": pl.Int64, "total": pl.Float64})
keys = st.tuples(st.sampled_from(["ann", "bob", "a name of more than twelve letters", None]), st.integers(0, 5))
changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.dictionaries(keys, st.floats(0, 9), min_size=1, max_size=6)),
        st.tuples(st.just("drop"), st.sets(keys, max_size=3)),
        st.tuples(st.just("drop users"), st.sets(keys, max_size=2)),
        st.tuples(st.just("seal"), st.none()),
    ),
    max_size=25,
)


def frame(rows: dict[Any, float]) -> pl.DataFrame:
    return pl.DataFrame([(*key, value) for key, value in rows.items()], schema=SCHEMA, orient="row")


def key_frame(some: Any) -> pl.DataFrame:
    return pl.DataFrame(list(some), schema={"user": pl.String, "day": pl.Int64}, orient="row")


def content(rows: pl.DataFrame) -> dict[Any, float]:
    found = {row[:2]: row[2] for row in rows.select("user", "day", "total").iter_rows()}
    assert len(found) == rows.height
    return found


@pytest.mark.parametrize("by", [("user", "day"), ("user",), ("day",), ()])
@pytest.mark.parametrize("collide", [False, True])
def test_a_table_is_a_dictionary(by: tuple[str, ...], collide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if collide:  # A hash with two values, so that different keys have the same.
        real_hash = tables.key_hash
        monkeypatch.setattr(tables, "key_hash", lambda rows, some: real_hash(rows, some) % np.uint64(2))

    @settings(max_examples=60, deadline=None)
    @given(changes, st.sets(keys, max_size=4))
    def check(steps: list[tuple[str, Any]], wanted: set[Any]) -> None:
        table, model = Table.empty(SCHEMA, ["user", "day"], by), dict[Any, float]()
        for what, argument in steps:
            before, was = table, dict(model)
            if what == "put":
                table = table.put(frame(argument))
                model.update(argument)
            elif what == "drop":
                table = table.drop(key_frame(argument))
                model = {k: v for k, v in model.items() if k not in argument}
            elif what == "drop users":
                users = {user for user, _ in argument}
                table = table.drop(pl.DataFrame({"user": list(users)}, schema={"user": pl.String}))
                model = {k: v for k, v in model.items() if k[0] not in users}
            else:
                table = table.sealed()
                assert not table.fresh.height
            assert content(table.rows) == model
            assert content(before.rows) == was  # A change does not modify the table.
        assert content(table.get(key_frame(wanted))) == {k: v for k, v in model.items() if k in wanted}
        users = {user for user, _ in wanted}
        of_users = table.get(pl.DataFrame({"user": list(users)}, schema={"user": pl.String}))
        assert content(of_users) == {k: v for k, v in model.items() if k[0] in users}
        assert content(table.where(pl.col("total") > 4)) == {k: v for k, v in model.items() if v > 4}
        assert len(table) == len(model)

    check()


def test_there_are_few_runs_and_a_small_change_does_not_rewrite_long_ones() -> None:
    table = Table.empty(pl.Schema({"k": pl.Int64, "v": pl.Int64}), ["k"])
    table = table.put(pl.DataFrame({"k": range(100_000), "v": [0] * 100_000})).sealed()
    longest = table.runs[0]
    for number in range(200):
        table = table.put(pl.DataFrame({"k": [number], "v": [number]})).sealed()
        assert len(table.runs) < 10
    assert table.runs[0] is longest
    assert table.get(pl.DataFrame({"k": [7, 100_001]})).rows() == [(7, 7)]


def test_dropped_rows_leave_no_tombstone_if_no_run_is_older() -> None:
    table = Table.empty(pl.Schema({"k": pl.Int64}), ["k"]).put(pl.DataFrame({"k": [1, 2, 3]})).sealed()
    table = table.drop(pl.DataFrame({"k": [1, 2, 3]})).sealed()
    assert sum(map(len, table.runs)) == 0


def test_a_table_without_a_key_has_one_row() -> None:
    table = Table.empty(pl.Schema({"v": pl.Int64}), [])
    for number in range(3):
        table = table.put(pl.DataFrame({"v": [number]})).sealed()
    assert table.rows.rows() == [(2,)]


def test_keys_with_another_integer_type_are_found() -> None:
    table = Table.empty(pl.Schema({"k": pl.Int64}), ["k"]).put(pl.DataFrame({"k": [1]}, schema={"k": pl.Int8}))
    assert table.sealed().get(pl.DataFrame({"k": [1]}, schema={"k": pl.Int32})).height == 1


def test_a_table_can_be_rebuilt_from_its_runs() -> None:
    table = Table.empty(SCHEMA, ["user", "day"]).put(frame({("ann", 1): 2.0})).sealed()
    again = Table.empty(SCHEMA, ["user", "day"]).of_runs([Run.ordered(run.frame) for run in table.runs])
    assert content(again.rows) == {("ann", 1): 2.0}
    assert hash_mark() == hash_mark()
