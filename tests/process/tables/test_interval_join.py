"""Joins of streams within a time, compared after every step with all pairs of all rows on time."""

from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.tables.interval_join import Bounds, IntervalKernel, read_within
from headwater.process.tables.sides import LEFT, RIGHT, How
from tests.process.relations import EXAMPLES, Running

SEARCHES = pl.Schema({"user": pl.String, "query": pl.Int64, "at": pl.Int64, CHANGE: pl.Int8})
CLICKS = pl.Schema({"user": pl.String, "click": pl.Int64, "clicked": pl.Int64, CHANGE: pl.Int8})

rows = st.tuples(st.sampled_from(["ann", "bob", None]), st.integers(0, 1), st.none() | st.integers(0, 20))
# True for the left side, the row, True for an insert, and the advance of the watermark after it.
actions = st.tuples(st.booleans(), rows, st.booleans(), st.sampled_from([0, 0, 0, 1, 3, 9]))


class Oracle:
    """All rows of both sides that were on time, and their join at a watermark."""

    def __init__(self, how: How, bounds: Bounds, lateness: int) -> None:
        self.how, self.bounds, self.lateness = how, bounds, lateness
        self.tables: dict[str, Counter[Any]] = {LEFT: Counter(), RIGHT: Counter()}
        self.watermark = 0

    def is_late(self, row: Any) -> bool:
        return row[2] is None or row[2] < self.watermark - self.lateness

    def matches(self, left: Any, right: Any) -> bool:
        difference = right[2] - left[2]
        return left[0] is not None and left[0] == right[0] and self.bounds.least <= difference <= self.bounds.most

    def join(self) -> Counter[Any]:
        found: Counter[Any] = Counter()
        left, right = self.tables[LEFT], self.tables[RIGHT]
        for row, n in left.items():
            matches = [(other, m) for other, m in right.items() if m and self.matches(row, other)]
            passed = row[2] + self.bounds.most < self.watermark
            if self.how.has_pairs:
                found.update({(*row, other[1], other[2]): n * m for other, m in matches})
            if self.how in (How.LEFT, How.FULL) and not matches and passed:
                found[(*row, None, None)] += n
            if (self.how is How.SEMI and matches) or (self.how is How.ANTI and not matches and passed):
                found[row] += n
        for row, n in right.items():
            matches = [other for other, m in left.items() if m and self.matches(other, row)]
            if self.how.keeps(RIGHT) and not matches and row[2] - self.bounds.least < self.watermark:
                found[(row[0], None, None, row[1], row[2])] += n
        return +found


def sided(kernel: Any, side: str, some: list[Any]) -> pl.DataFrame:
    schema, time = (SEARCHES, "at") if side == LEFT else (CLICKS, "clicked")
    return kernel.sides.rows(side, pl.DataFrame(some, schema=schema, orient="row"), time)


@settings(max_examples=2 * EXAMPLES)
@given(
    st.sampled_from(How),
    st.tuples(st.integers(-6, 6), st.integers(0, 8)).map(lambda pair: Bounds(pair[0], pair[0] + pair[1])),
    st.sampled_from([0, 4]),
    st.lists(actions, max_size=24),
    st.booleans(),
)
def test_the_sum_of_changes_is_the_join(how: How, bounds: Bounds, lateness: int, script: Any, seal: bool) -> None:
    kernel = IntervalKernel.of("user", how, SEARCHES, CLICKS, bounds=bounds, lateness=lateness)
    running, oracle, late = Running(kernel), Oracle(how, bounds, lateness), 0
    for is_left, row, is_insert, forward in script:
        side = LEFT if is_left else RIGHT
        if not is_insert and not oracle.tables[side][row]:
            continue
        if oracle.is_late(row):
            late += 1
        else:
            oracle.tables[side][row] += 1 if is_insert else -1
        running.step(sided(kernel, side, [(*row, 1 if is_insert else -1)]), oracle.watermark, seal=seal)
        assert running.table == oracle.join()
        if forward:
            oracle.watermark += forward
            running.step(None, oracle.watermark, seal=seal)
            assert running.table == oracle.join()
    assert len(running.late) == late
    running.step(None, 100)
    oracle.watermark = 100
    assert running.table == oracle.join()
    assert running.state_rows == 0


def test_many_rows_at_once_give_the_same_as_one_by_one() -> None:
    kernel = IntervalKernel.of("user", How.FULL, SEARCHES, CLICKS, bounds=Bounds(0, 10))
    once, each = Running(kernel), Running(kernel)
    left = [("ann", n, n, 1) for n in range(0, 40, 3)] + [("bob", 0, 30, 1)]
    right = [("ann", n, n, 1) for n in range(0, 60, 7)] + [("ann", 7, 7, -1), ("cat", 1, 8, 1)]
    parts = [sided(kernel, LEFT, [row]) for row in left] + [sided(kernel, RIGHT, [row]) for row in right]
    once.step(pl.concat(parts), 0)
    for part in parts:
        each.step(part, 0)
    for watermark in (5, 20, 33, 90):
        once.step(None, watermark)
        each.step(None, watermark)
        assert once.table == each.table
        assert once.state_rows == each.state_rows
    assert once.state_rows == 0


def test_a_stream_joined_with_itself() -> None:
    """Pairs of a user's searches within a time of 10: a row matches later ones."""
    kernel = IntervalKernel.of(
        "user",
        How.INNER,
        SEARCHES,
        pl.Schema({"user": pl.String, "next": pl.Int64}),
        bounds=Bounds(1, 10),
    )
    running = Running(kernel)
    first = pl.DataFrame([("ann", 1, 0, 1), ("ann", 2, 8, 1), ("ann", 3, 15, 1)], schema=SEARCHES, orient="row")
    second = first.select("user", pl.col("query").alias("next"), "at", CHANGE)
    running.step(pl.concat([kernel.sides.rows(LEFT, first, "at"), kernel.sides.rows(RIGHT, second, "at")]), 0)
    assert running.table == {("ann", 1, 0, 2): 1, ("ann", 2, 8, 3): 1}


def test_state_does_not_grow_with_time() -> None:
    kernel = IntervalKernel.of("user", How.FULL, SEARCHES, CLICKS, bounds=Bounds(-5, 60), lateness=5)
    running, most = Running(kernel), []
    for hour in range(12):
        for minute in range(0, 60, 5):
            now = hour * 60 + minute
            searches = sided(kernel, LEFT, [(f"{n % 7}", n, now + n % 5, 1) for n in range(20)])
            clicks = sided(kernel, RIGHT, [(f"{n % 5}", n, now + n % 5, 1) for n in range(20)])
            running.step(pl.concat([searches, clicks]), now, seal=True)
        most.append(running.state_rows)
    assert most[2:] == [most[2]] * 10


def test_the_late_ledger_has_the_reason() -> None:
    kernel = IntervalKernel.of("user", How.LEFT, SEARCHES, CLICKS, bounds=Bounds(0, 10))
    running = Running(kernel)
    running.step(sided(kernel, LEFT, [("ann", 1, 5, 1), ("ann", 2, None, 1)]), 7)
    assert [(row["reason"], row["late_by"]) for row in running.late] == [("no event time", None), ("expired", 2)]


def test_no_row_is_late_before_the_first_watermark() -> None:
    running = Running(IntervalKernel.of("user", How.LEFT, SEARCHES, CLICKS, bounds=Bounds(0, 10), lateness=60))
    running.step(sided(running.kernel, LEFT, [("ann", 1, 5, 1)]))
    assert (running.table, running.late) == ({}, [])
    running.step(None, 2**62)
    assert running.table == {("ann", 1, 5, None, None): 1}


def test_bounds_are_parsed() -> None:
    assert read_within("1 second") == Bounds(0, 1_000_000)
    assert read_within(("-1 minute", "0 seconds")) == Bounds(-60_000_000, 0)
    with pytest.raises(InvalidError, match="cannot read duration"):
        read_within("soon")


def test_bounds_in_the_wrong_order_are_rejected() -> None:
    with pytest.raises(InvalidError, match="`within` ends before it begins: from 5 to -5"):
        Bounds(5, -5)
