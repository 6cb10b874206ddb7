"""Joins of two changing tables, compared with SQLite after every step."""

import sqlite3
from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.tables.sides import LEFT, RIGHT, How, read_how
from headwater.process.tables.table_join import JoinKernel
from tests.process.relations import EXAMPLES, Running

ORDERS = pl.Schema({"order": pl.Int64, "customer": pl.Int32, CHANGE: pl.Int8})
CUSTOMERS = pl.Schema({"id": pl.Int64, "city": pl.String, CHANGE: pl.Int8})

keys = st.none() | st.integers(0, 2)
orders = st.tuples(st.integers(0, 2), keys)
customers = st.tuples(keys, st.sampled_from(["Ulm", "Bonn", None]))
# True for the left side, the values for either side, True for an insert, and True if the batch ends after it.
changes = st.tuples(st.booleans(), orders, customers, st.booleans(), st.booleans())

SQL = {
    How.INNER: 'select l."order", l.customer, r.id, r.city from l join r on l.customer = r.id',
    How.LEFT: 'select l."order", l.customer, r.id, r.city from l left join r on l.customer = r.id',
    How.RIGHT: 'select l."order", l.customer, r.id, r.city from l right join r on l.customer = r.id',
    How.FULL: 'select l."order", l.customer, r.id, r.city from l full join r on l.customer = r.id',
    How.SEMI: "select * from l where exists (select 1 from r where r.id = l.customer)",
    How.ANTI: "select * from l where not exists (select 1 from r where r.id = l.customer)",
}


def join_in_sqlite(how: How, left: Counter[Any], right: Counter[Any]) -> Counter[Any]:
    with sqlite3.connect(":memory:") as database:
        database.execute('create table l ("order", customer)')
        database.execute("create table r (id, city)")
        database.executemany("insert into l values (?, ?)", left.elements())
        database.executemany("insert into r values (?, ?)", right.elements())
        found = Counter(database.execute(SQL[how]).fetchall())
    database.close()
    return found


def sided(kernel: Any, side: str, rows: list[Any]) -> pl.DataFrame:
    schema = ORDERS if side == LEFT else CUSTOMERS
    return kernel.sides.rows(side, pl.DataFrame(rows, schema=schema, orient="row"))


@settings(max_examples=EXAMPLES)
@given(st.sampled_from(How), st.lists(changes, max_size=16))
def test_the_sum_of_changes_is_the_join(how: How, script: list[Any]) -> None:
    running = Running(JoinKernel.of({"customer": "id"}, how, ORDERS, CUSTOMERS))
    tables: dict[str, Counter[Any]] = {LEFT: Counter(), RIGHT: Counter()}
    batch: list[pl.DataFrame] = []
    for is_left, order, customer, is_insert, ends in script:
        side, row = (LEFT, order) if is_left else (RIGHT, customer)
        if not is_insert and not tables[side][row]:
            continue
        tables[side][row] += 1 if is_insert else -1
        batch.append(sided(running.kernel, side, [(*row, 1 if is_insert else -1)]))
        if ends:
            running.step(pl.concat(batch), seal=is_insert)
            batch = []
            assert running.table == join_in_sqlite(how, tables[LEFT], tables[RIGHT])
    if batch:
        running.step(pl.concat(batch))
    assert running.table == join_in_sqlite(how, tables[LEFT], tables[RIGHT])


@settings(max_examples=EXAMPLES)
@given(st.lists(changes, max_size=12), st.randoms())
def test_a_chain_of_joins_in_any_order_of_changes(script: list[Any], random: Any) -> None:
    """Cities of customers of orders, and sights of the city; a retraction may precede its insert."""
    sights = pl.Schema({"city": pl.String, "sight": pl.String, CHANGE: pl.Int8})
    first = Running(JoinKernel.of({"customer": "id"}, How.LEFT, ORDERS, CUSTOMERS))
    second = Running(JoinKernel.of("city", How.LEFT, first.kernel.output_schema, sights))
    known = [("Ulm", "minster", 1), ("Bonn", "museum", 1), ("Bonn", "Rhine", 1)]
    second.step(second.kernel.sides.rows(RIGHT, pl.DataFrame(known, schema=sights, orient="row")))
    tables: dict[str, Counter[Any]] = {LEFT: Counter(), RIGHT: Counter()}
    for is_left, order, customer, is_insert, _ in script:
        side, row = (LEFT, order) if is_left else (RIGHT, customer)
        if is_insert or tables[side][row]:
            tables[side][row] += 1 if is_insert else -1
            first.step(sided(first.kernel, side, [(*row, 1 if is_insert else -1)]))
            shuffled = list(range(first.output.height))
            random.shuffle(shuffled)
            second.step(second.kernel.sides.rows(LEFT, first.output[shuffled]), seal=is_insert)
    expected: Counter[Any] = Counter()
    for row, n in join_in_sqlite(How.LEFT, tables[LEFT], tables[RIGHT]).items():
        seen = [s for c, s, _ in known if c == row[3]] or [None]
        expected.update({(*row, sight): n for sight in seen})
    assert second.table == expected


def test_a_key_with_the_same_name_on_both_sides_is_one_column() -> None:
    left = pl.DataFrame({"id": [1, 2], "a": ["x", "y"]})
    right = pl.DataFrame({"id": [2, 3], "b": [[1, 2], []]})
    running = Running(JoinKernel.of("id", How.FULL, left.schema, right.schema))
    sides = running.kernel.sides
    running.step(pl.concat([sides.rows(LEFT, left), sides.rows(RIGHT, right)]))
    assert running.output.columns == ["id", "a", "b", CHANGE]
    assert running.table == {(1, "x", None): 1, (2, "y", (1, 2)): 1, (3, None, ()): 1}


def test_deleted_rows_leave_no_state() -> None:
    running = Running(JoinKernel.of({"customer": "id"}, How.LEFT, ORDERS, CUSTOMERS))
    for change in (1, -1):
        running.step(sided(running.kernel, LEFT, [(1, 1, change), (2, None, change)]), seal=True)
        running.step(sided(running.kernel, RIGHT, [(1, "Ulm", change)]), seal=True)
    assert (running.state_rows, running.table) == (0, {})


@pytest.mark.parametrize(
    ("on", "left", "right", "message"),
    [
        (
            "id",
            {"id": pl.String},
            {"id": pl.Int64},
            "'id' is String on the left and 'id' is Int64 on the right; cast",
        ),
        ("id", {"id": pl.Int64}, {"key": pl.Int64}, "the right side has no column 'id'; it has: key"),
        ({"a": "id"}, {"id": pl.Int64}, {"id": pl.Int64}, "the left side has no column 'a'; it has: id"),
        (
            "id",
            {"id": pl.Int64, "n": pl.Int64},
            {"id": pl.Int64, "n": pl.Int64},
            "both sides have a column n; rename",
        ),
        ([], {"id": pl.Int64}, {"id": pl.Int64}, "`on` is empty"),
    ],
)
def test_tables_that_cannot_be_joined_are_rejected(on: Any, left: Any, right: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        JoinKernel.of(on, How.INNER, pl.Schema(left), pl.Schema(right))


def test_kinds_of_joins_have_the_names_of_spark() -> None:
    assert [read_how(name) for name in ("outer", "left_anti", "left_semi")] == [How.FULL, How.ANTI, How.SEMI]
    with pytest.raises(
        InvalidError, match="how='cross' is unknown; use one of inner, left, right, full, semi, anti"
    ):
        read_how("cross")
