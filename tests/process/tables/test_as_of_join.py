"""Joins of a stream with a table's history, against a look through the whole history for each event."""

from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.tables.as_of_join import GONE, POSSIBLE, AsOfKernel, NowKernel
from headwater.process.tables.sides import LEFT, RIGHT, How
from tests.process.relations import EXAMPLES, Running

ORDERS = pl.Schema({"user": pl.String, "order": pl.Int64, "at": pl.Int64, CHANGE: pl.Int8})
PROFILES = pl.Schema({"user": pl.String, "city": pl.String, "since": pl.Int64, CHANGE: pl.Int8, GONE: pl.Boolean})
HISTORY = pl.Schema({name: PROFILES[name] for name in ("user", "city", "since")})

users = st.sampled_from(["ann", "bob", None])
times = st.none() | st.integers(0, 15)
orders = st.tuples(users, st.integers(0, 1), times)
profiles = st.tuples(users, st.sampled_from(["Ulm", "Bonn"]), times, st.booleans())
happenings = st.tuples(st.booleans(), orders, profiles, st.booleans(), st.sampled_from([0, 0, 0, 1, 4, 9]))


def sided(kernel: Any, side: str, some: list[Any]) -> pl.DataFrame:
    if side == LEFT:
        rows = kernel.sides.rows(LEFT, pl.DataFrame(some, schema=ORDERS, orient="row"), "at")
        return rows.with_columns(pl.lit(None, pl.Boolean).alias(GONE))
    frame = pl.DataFrame(some, schema=PROFILES, orient="row")
    return kernel.sides.rows(RIGHT, frame, "since").with_columns(frame[GONE])


class Obvious:
    """Each event that was on time with what the whole history says of its time."""

    def __init__(self, how: How, lateness: int) -> None:
        self.how, self.lateness, self.watermark = how, lateness, 0
        self.events: Counter[Any] = Counter()
        self.history: dict[Any, Any] = {}

    def is_late(self, time: int | None) -> bool:
        return time is None or time < self.watermark - self.lateness

    def valid(self, user: str, at: int) -> Any:
        versions = [(since, v) for (name, since), v in self.history.items() if name == user and since <= at]
        return max(versions)[1] if versions else None

    def join(self) -> Counter[Any]:
        found: Counter[Any] = Counter()
        for row, n in self.events.items():
            version = None if row[0] is None else self.valid(row[0], row[2])
            version = None if version is None or version[1] else version[0]
            if self.how in (How.SEMI, How.ANTI):
                if (version is not None) == (self.how is How.SEMI):
                    found[row] += n
            elif version is not None or self.how is How.LEFT:
                found[(*row, *(version or (None, None)))] += n
        return +found


@settings(max_examples=2 * EXAMPLES)
@given(st.sampled_from(POSSIBLE), st.sampled_from([0, 5]), st.lists(happenings, max_size=24), st.booleans())
def test_the_sum_of_changes_is_the_join(how: How, lateness: int, script: Any, seal: bool) -> None:
    kernel = AsOfKernel.of("user", how, ORDERS, HISTORY, lateness=lateness)
    running, obvious, late = Running(kernel), Obvious(how, lateness), 0
    for is_left, order, (user, city, since, gone), is_put, forward in script:
        sign = 1 if is_put else -1
        if is_left:
            if not is_put and not obvious.events[order]:
                continue
            if obvious.is_late(order[2]):
                late += 1
            else:
                obvious.events[order] += sign
            part = sided(kernel, LEFT, [(*order, sign)])
        else:
            if since is None or (not is_put and obvious.is_late(since)):
                late += 1
            elif is_put and user is not None:
                obvious.history[user, since] = ((city, since), gone)
            elif obvious.history.get((user, since), (None,))[0] == (city, since):
                del obvious.history[user, since]
            part = sided(kernel, RIGHT, [(user, city, since, sign, gone)])
        running.step(part, obvious.watermark, seal=seal)
        assert running.table == obvious.join()
        if forward:
            obvious.watermark += forward
            running.step(None, obvious.watermark, seal=seal)
            assert running.table == obvious.join()
    assert len(running.late) == late


def history_of(kernel: Any, *versions: Any) -> pl.DataFrame:
    return sided(kernel, RIGHT, [(user, city, since, 1, False) for user, city, since in versions])


def test_late_history_corrects_what_came_out_and_state_is_dropped() -> None:
    kernel = AsOfKernel.of("user", How.LEFT, ORDERS, HISTORY, lateness=10)
    running = Running(kernel)
    running.step(pl.concat([sided(kernel, LEFT, [("ann", 1, 8, 1)]), history_of(kernel, ("ann", "Ulm", 3))]), 0)
    assert running.output.rows() == [("ann", 1, 8, "Ulm", 3, 1)]
    running.step(history_of(kernel, ("ann", "Bonn", 9), ("ann", "Kiel", 7)), 8)
    assert running.output.rows() == [("ann", 1, 8, "Ulm", 3, -1), ("ann", 1, 8, "Kiel", 7, 1)]
    running.step(None, 100)
    running.step(history_of(kernel, ("ann", "Rome", 6)), 100)
    assert running.output.height == 0
    assert running.state_rows == 1
    running.step(sided(kernel, LEFT, [("ann", 2, 200, 1)]), 150)
    assert running.output.rows() == [("ann", 2, 200, "Bonn", 9, 1)]


def test_several_versions_of_one_moment_in_one_step() -> None:
    kernel = AsOfKernel.of("user", How.INNER, ORDERS, HISTORY, lateness=60)
    running = Running(kernel)
    running.step(history_of(kernel, ("ann", "Ulm", 3), ("ann", "Bonn", 3)))
    running.step(sided(kernel, LEFT, [("ann", 1, 8, 1)]), 0)
    assert running.table == {("ann", 1, 8, "Bonn", 3): 1}


@pytest.mark.parametrize(
    ("how", "first", "second"),
    [
        (How.INNER, [], [("ann", 2, "Ulm")]),
        (How.LEFT, [("ann", 1, None)], [("ann", 2, "Ulm"), (None, 3, None)]),
        (How.SEMI, [], [("ann", 2)]),
        (How.ANTI, [("ann", 1)], [(None, 3)]),
    ],
)
def test_as_of_now_a_row_has_what_the_table_has_when_it_comes(how: How, first: Any, second: Any) -> None:
    left = pl.Schema({"user": pl.String, "order": pl.Int64})
    right = pl.Schema({"user": pl.String, "city": pl.String, CHANGE: pl.Int8})
    kernel = NowKernel.of("user", how, left, right)
    running = Running(kernel)

    def order(*rows: Any) -> pl.DataFrame:
        return kernel.sides.rows(LEFT, pl.DataFrame(rows, schema=left, orient="row"))

    def profile(*rows: Any) -> pl.DataFrame:
        return kernel.sides.rows(RIGHT, pl.DataFrame(rows, schema=right, orient="row"))

    running.step(order(("ann", 1)))
    assert running.table == Counter(first)
    running.step(pl.concat([order(("ann", 2), (None, 3)), profile(("ann", "Ulm", 1))]), seal=True)
    running.step(profile(("ann", "Ulm", -1), ("ann", "Bonn", 1)))
    assert running.table == Counter([*first, *second])
    assert running.state_rows == 1


def test_what_cannot_be_is_told() -> None:
    with pytest.raises(InvalidError, match="`how` cannot be 'full' with `as_of`"):
        AsOfKernel.of("user", How.FULL, ORDERS, PROFILES)
    with pytest.raises(InvalidError, match=r"the left side has changes .* cannot be joined as of now"):
        NowKernel.of("user", How.LEFT, ORDERS, PROFILES)
