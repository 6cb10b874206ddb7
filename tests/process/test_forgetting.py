"""A day of events, ten minutes at a time: state does not grow."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from headwater.process.aggregates import aggregates as a
from headwater.process.tables.as_of_join import GONE, AsOfKernel
from headwater.process.tables.changelog import AT, DELETED, POSITION, ChangelogKernel
from headwater.process.tables.interval_join import Bounds, IntervalKernel
from headwater.process.tables.ranking import RankingKernel, RankLateness, RankOrder
from headwater.process.tables.sides import LEFT, RIGHT, How
from tests.process.relations import Running

MINUTE = 60_000_000
STEP, DAY, EACH, KEYS = 10 * MINUTE, 24 * 60 * MINUTE, 20, 4
SIDE = pl.Schema({"user": pl.Int64, "n": pl.Int64, "at": pl.Int64})
OTHER = pl.Schema({"user": pl.Int64, "m": pl.Int64, "then": pl.Int64})


def rows(start: int, schema: pl.Schema) -> pl.DataFrame:
    numbers = range(start // STEP * EACH, (start // STEP + 1) * EACH)
    values = [(number % KEYS, number, start + number % EACH * STEP // EACH) for number in numbers]
    return pl.DataFrame(values, schema=schema, orient="row")


def both_sides(kernel: Any) -> Callable[[int], pl.DataFrame]:
    def make(start: int) -> pl.DataFrame:
        left = kernel.sides.rows(LEFT, rows(start, SIDE), "at")
        right = kernel.sides.rows(RIGHT, rows(start, OTHER), "then")
        both = pl.concat([left, right])
        return both.with_columns(pl.lit(False).alias(GONE)) if GONE in kernel.schema else both

    return make


def within(how: How) -> tuple[Any, Any]:
    bounds = Bounds(0, 10 * MINUTE)
    kernel = IntervalKernel.of("user", how, SIDE, OTHER, bounds=bounds, lateness=5 * MINUTE)
    return kernel, both_sides(kernel)


def as_of() -> tuple[Any, Any]:
    kernel = AsOfKernel.of("user", How.LEFT, SIDE, OTHER, lateness=15 * MINUTE)
    return kernel, both_sides(kernel)


def rolling() -> tuple[Any, Any]:
    lateness = RankLateness("at", 15 * MINUTE)
    kernel = RankingKernel.rolling(10, {"mean": a.mean("n")}, ["user"], RankOrder.read("at"), SIDE, lateness)
    return kernel, lambda start: rows(start, SIDE)


def deleted_keys() -> tuple[Any, Any]:
    """Each key exists for one step, and is deleted in the next."""
    kernel = ChangelogKernel.of(
        ["n"], pl.Schema({"n": pl.Int64, DELETED: pl.Boolean, f"{POSITION}0": pl.Int64, AT: pl.Int64}), 15 * MINUTE
    )

    def make(start: int) -> pl.DataFrame:
        new = rows(start, SIDE).select("n", pl.lit(False).alias(DELETED), pl.col("at").alias(f"{POSITION}0"))
        deleted = new.with_columns(pl.col("n") - EACH, pl.lit(True).alias(DELETED))
        both = pl.concat([new, deleted])
        return both.with_columns(pl.col(f"{POSITION}0").alias(AT)).select(kernel.schema.names())

    return kernel, make


@pytest.mark.parametrize(
    "make",
    [lambda: within(How.INNER), lambda: within(How.FULL), as_of, rolling, deleted_keys],
    ids=["inner within", "full within", "as of", "rolling", "deleted keys"],
)
def test_state_after_a_day_is_not_larger_than_after_an_hour(make: Callable[[], tuple[Any, Any]]) -> None:
    kernel, events = make()
    running = Running(kernel)
    hour = 0
    for start in range(0, DAY, STEP):
        running.step(events(start), max(0, start - 1), seal=True)
        running.step(None, start + STEP - 1, seal=True)
        if start < 60 * MINUTE:
            hour = max(hour, running.state_rows)
        assert running.state_rows <= hour
    assert 0 < hour <= 400
    assert not running.late
