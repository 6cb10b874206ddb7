"""A table built from its changelog, compared with a dictionary after every step."""

from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.tables.changelog import AT, DELETED, POSITION, ChangelogKernel
from tests.process.relations import EXAMPLES, Running

SCHEMA = pl.Schema({"id": pl.String, "city": pl.String, DELETED: pl.Boolean})
ORDERED = pl.Schema({**SCHEMA, f"{POSITION}0": pl.Int64, f"{POSITION}1": pl.Int64})

ids = st.sampled_from(["ann", "bob", "cat", None])
cities = st.sampled_from(["Ulm", "Bonn", None])
change = st.tuples(ids, cities, st.booleans())
batches = st.lists(st.tuples(st.lists(change, max_size=6), st.booleans()), max_size=8)


def frame(rows: list[Any], schema: pl.Schema = SCHEMA) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row")


@settings(max_examples=EXAMPLES)
@given(batches)
def test_without_positions_the_last_change_counts(steps: list[Any]) -> None:
    running, table = Running(ChangelogKernel.of(["id"], SCHEMA)), {}
    for rows, seal in steps:
        running.step(frame(rows), seal=seal)
        for key, city, deleted in rows:
            table.pop(key, None)
            if key is not None and not deleted:
                table[key] = (key, city)
        assert running.table == Counter(table.values())
        assert running.state_rows == len(table)
    assert running.counters["late"] == sum(row[0] is None for rows, _ in steps for row in rows)


@settings(max_examples=EXAMPLES)
@given(
    st.lists(
        st.tuples(
            st.lists(
                st.tuples(ids, cities, st.booleans(), st.none() | st.integers(0, 3), st.integers(0, 9)), max_size=6
            ),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_order_is_by_position_not_by_arrival(steps: list[Any]) -> None:
    running = Running(ChangelogKernel.of(["id"], ORDERED))
    table: dict[Any, Any] = {}
    for rows, seal in steps:
        running.step(frame(rows, ORDERED), seal=seal)
        for key, city, deleted, first, second in rows:
            position = (-1 if first is None else first, second)
            if key is not None and (key not in table or table[key][0] <= position):
                table[key] = (position, None if deleted else (key, city))
        assert running.table == Counter(row for _, row in table.values() if row is not None)


@settings(max_examples=EXAMPLES)
@given(batches, st.randoms())
def test_its_changes_give_the_same_table_in_any_order(steps: list[Any], random: Any) -> None:
    first = Running(ChangelogKernel.of(["id"], SCHEMA))
    second = Running(ChangelogKernel.of(["id"], first.kernel.output_schema))
    for rows, seal in steps:
        first.step(frame(rows), seal=seal)
        order = list(range(first.output.height))
        random.shuffle(order)  # as Spark's shuffle may do
        second.step(first.output[order], seal=seal)
        assert second.table == first.table


def test_a_row_may_be_retracted_before_it_is_inserted() -> None:
    running = Running(ChangelogKernel.of(["id"], pl.Schema({"id": pl.String, "city": pl.String, CHANGE: pl.Int8})))
    schema = running.kernel.schema
    running.step(frame([("ann", "Ulm", -1), ("ann", "Bonn", 1)], schema))
    assert running.table == {("ann", "Bonn"): 1}
    running.step(frame([("ann", "Ulm", 1)], schema))
    assert running.table == {("ann", "Bonn"): 1}
    assert running.state_rows == 1
    # A key has two rows until one of them is retracted: the newer one is emitted.
    running.step(frame([("ann", "Kiel", 1)], schema))
    assert running.table == {("ann", "Kiel"): 1}
    running.step(frame([("ann", "Kiel", -1)], schema))
    assert running.table == {("ann", "Bonn"): 1}


def test_changes_without_effect_are_not_emitted() -> None:
    running = Running(ChangelogKernel.of(["id"], ORDERED))
    running.step(frame([("ann", "Ulm", False, 0, 5)], ORDERED))
    running.step(frame([("ann", "Ulm", False, 0, 6), ("bob", "Bonn", True, 0, 7)], ORDERED))
    assert running.output.height == 0
    running.step(frame([("ann", "Kiel", False, 0, 4), ("bob", "Bonn", False, 0, 1)], ORDERED))
    assert (running.output.height, running.counters["ignored"]) == (0, 2)
    running.step(frame([(None, "Kiel", False, 0, 9)], ORDERED))
    [late] = running.late
    assert (late["reason"], late["row"]) == ("no key", {"id": None, "city": "Kiel"})


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_changes_without_effect_are_counted_in_any_cut(in_one_batch: bool) -> None:
    older = [("ann", "Ulm", False, 0, 5), ("ann", "Kiel", False, 0, 4), ("ann", "Bonn", False, 0, 5)]
    unknown = [("bob", None, True), ("bob", "Rome", False), ("bob", None, True), ("bob", None, True)]
    for schema, rows, expected in ((ORDERED, older, 1), (SCHEMA, unknown, 2)):
        running = Running(ChangelogKernel.of(["id"], schema))
        for batch in [rows] if in_one_batch else [[row] for row in rows]:
            running.step(frame(batch, schema))
        assert running.counters["ignored"] == expected


TIMED = pl.Schema({**SCHEMA, f"{POSITION}0": pl.Int64, AT: pl.Int64})


def test_positions_of_deleted_keys_are_discarded_after_the_lateness() -> None:
    running = Running(ChangelogKernel.of(["id"], TIMED, lateness=10))
    running.step(frame([("ann", "Ulm", False, 1, 0), ("bob", "Bonn", False, 2, 1)], TIMED), 0, seal=True)
    running.step(frame([("ann", None, True, 5, 5)], TIMED), 5, seal=True)
    # Until then, an older change is ignored.
    running.step(frame([("ann", "Kiel", False, 4, 4)], TIMED), 15)
    assert (running.table, running.counters["ignored"]) == ({("bob", "Bonn"): 1}, 1)
    running.step(None, 16)
    assert (running.state_rows, running.counters["evicted"]) == (1, 1)
    # After that, it could precede the deletion, unless the key is known.
    running.step(frame([("ann", "Kiel", False, 4, 4), ("bob", "Rome", False, 3, 2)], TIMED), 16)
    assert running.table == {("bob", "Rome"): 1}
    [late] = running.late
    assert (late["reason"], late["row"], late["late_by"]) == ("expired", {"id": "ann", "city": "Kiel"}, 12)
    running.step(frame([("ann", "Kiel", False, 9, 30)], TIMED), 16)
    assert running.table == {("bob", "Rome"): 1, ("ann", "Kiel"): 1}


@settings(max_examples=EXAMPLES)
@given(
    st.lists(
        st.tuples(st.sampled_from(["ann", "bob"]), cities, st.booleans(), st.integers(0, 20), st.integers(0, 3)),
        max_size=15,
    ),
    st.integers(0, 8),
)
def test_discarding_positions_does_not_affect_changes_on_time(rows: Any, lateness: int) -> None:
    limited = Running(ChangelogKernel.of(["id"], TIMED, lateness=lateness))
    complete = Running(ChangelogKernel.of(["id"], TIMED))
    watermark = 0
    for key, city, deleted, time, ahead in rows:
        if time < watermark - lateness:
            continue
        change = frame([(key, city, deleted, time, time)], TIMED)
        limited.step(change, watermark)
        complete.step(change)
        watermark = max(watermark, time + ahead)
        limited.step(None, watermark, seal=deleted)
        assert limited.table == complete.table
    assert limited.late == []


def test_an_invalid_key_is_rejected() -> None:
    with pytest.raises(InvalidError, match="no key column 'name'; the columns are id, city"):
        ChangelogKernel.of(["name"], SCHEMA)
    with pytest.raises(InvalidError, match="`key` is empty"):
        ChangelogKernel.of([], SCHEMA)
