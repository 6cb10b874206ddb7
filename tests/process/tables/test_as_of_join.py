"""Joins of a stream with a table's history, compared with a search of the whole history for each event."""

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
actions = st.tuples(st.booleans(), orders, profiles, st.booleans(), st.sampled_from([0, 0, 0, 1, 4, 9]))


def sided(kernel: Any, side: str, some: list[Any]) -> pl.DataFrame:
    if side == LEFT:
        rows = kernel.sides.rows(LEFT, pl.DataFrame(some, schema=ORDERS, orient="row"), "at")
        return rows.with_columns(pl.lit(None, pl.Boolean).alias(GONE))
    frame = pl.DataFrame(some, schema=PROFILES, orient="row")
    return kernel.sides.rows(RIGHT, frame, "since").with_columns(frame[GONE])


class Oracle:
    """Joins each event that was on time by searching the whole history.

    An event older than the watermark by more than the lateness keeps its version: late history does not correct
    it.
    """

    def __init__(self, how: How, lateness: int) -> None:
        self.how, self.lateness, self.watermark = how, lateness, 0
        self.events: Counter[Any] = Counter()
        self.history: dict[Any, Any] = {}
        self.final: dict[Any, Any] = {}

    def is_late(self, time: int | None) -> bool:
        return time is None or time < self.watermark - self.lateness

    def valid(self, user: str | None, at: int) -> Any:
        versions = [(since, v) for (name, since), v in self.history.items() if name == user and since <= at]
        version = max(versions)[1] if versions and user is not None else None
        return None if version is None or version[1] else version[0]

    def advance(self, by: int) -> None:
        self.watermark += by
        for row in self.events:
            if self.is_late(row[2]) and row not in self.final:
                self.final[row] = self.valid(row[0], row[2])

    def join(self) -> Counter[Any]:
        found: Counter[Any] = Counter()
        for row, n in self.events.items():
            version = self.final[row] if row in self.final else self.valid(row[0], row[2])
            if self.how in (How.SEMI, How.ANTI):
                if (version is not None) == (self.how is How.SEMI):
                    found[row] += n
            elif version is not None or self.how is How.LEFT:
                found[(*row, *(version or (None, None)))] += n
        return +found


@settings(max_examples=2 * EXAMPLES)
@given(st.sampled_from(POSSIBLE), st.sampled_from([0, 5]), st.lists(actions, max_size=24), st.booleans())
def test_the_sum_of_changes_is_the_join(how: How, lateness: int, script: Any, seal: bool) -> None:
    kernel = AsOfKernel.of("user", how, ORDERS, HISTORY, lateness=lateness)
    running, oracle, late = Running(kernel), Oracle(how, lateness), 0
    for is_left, order, (user, city, since, gone), is_insert, forward in script:
        sign = 1 if is_insert else -1
        if is_left:
            if not is_insert and not oracle.events[order]:
                continue
            if oracle.is_late(order[2]):
                late += 1
            else:
                oracle.events[order] += sign
            part = sided(kernel, LEFT, [(*order, sign)])
        else:
            if since is None or (not is_insert and oracle.is_late(since)):
                late += 1
            elif is_insert and user is not None:
                oracle.history[user, since] = ((city, since), gone)
            elif oracle.history.get((user, since), (None,))[0] == (city, since):
                del oracle.history[user, since]
            part = sided(kernel, RIGHT, [(user, city, since, sign, gone)])
        running.step(part, oracle.watermark, seal=seal)
        assert running.table == oracle.join()
        if forward:
            oracle.advance(forward)
            running.step(None, oracle.watermark, seal=seal)
            assert running.table == oracle.join()
    assert len(running.late) == late


def history_of(kernel: Any, *versions: Any) -> pl.DataFrame:
    return sided(kernel, RIGHT, [(user, city, since, 1, False) for user, city, since in versions])


def test_late_versions_correct_the_output_and_state_is_deleted() -> None:
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


def test_several_versions_with_the_same_time_in_one_step() -> None:
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
def test_as_of_now_uses_the_table_at_the_time_of_arrival(how: How, first: Any, second: Any) -> None:
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


def test_invalid_joins_are_rejected() -> None:
    with pytest.raises(InvalidError, match="how='full' is not possible with `as_of`"):
        AsOfKernel.of("user", How.FULL, ORDERS, PROFILES)
    with pytest.raises(InvalidError, match=r"the left side has changes .* cannot be joined as of now"):
        NowKernel.of("user", How.LEFT, ORDERS, PROFILES)
