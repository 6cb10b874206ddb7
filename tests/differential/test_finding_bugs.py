"""The comparison with SQL finds the bugs that were once in the kernels, when these are put back.

Each bug has a query that concerns it, so that a few seeds suffice; among random queries it takes some hundreds.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pytest

import headwater as hw
from differential.check import check_simulated
from differential.joins import Join
from differential.measures import Measure
from differential.operators import Aggregate, Operator, Rolling, Top
from differential.queries import Query
from differential.rows import generate
from differential.windows import Windowed
from headwater.process.aggregates import bags, folds, sums
from headwater.process.tables.ranking import RankOrder
from headwater.process.windows import intake

SEEDS = 8

Break = Callable[[pytest.MonkeyPatch], None]


def extremes_of_polars(patch: pytest.MonkeyPatch) -> None:
    """NaN is ignored, and structs and arrays have no greatest value."""
    patch.setattr(folds._Extreme, "_of", lambda self, values: values.max() if self.greatest else values.min())


def sums_that_wrap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(folds, "could_overflow", lambda *_: False)


def sums_that_fail_too_early(patch: pytest.MonkeyPatch) -> None:
    """A sum that fits is refused."""
    patch.setattr(sums.IntegerSum, "limit", property(lambda self: 20))
    patch.setattr(folds, "could_overflow", lambda *_: True)


def means_of_decimals_as_floats(patch: pytest.MonkeyPatch) -> None:
    exact = sums.DecimalSum.result

    def result(self: Any, of: Any) -> pl.Expr:
        return exact(self, of).cast(pl.Float64)

    patch.setattr(sums.DecimalSum, "result", result)


def sums_that_stay_nan(patch: pytest.MonkeyPatch) -> None:
    """A float sum over changes adds NaN and infinities like numbers, so they cannot be retracted."""
    patch.setattr(sums, "FloatSumOfChanges", sums.FloatSum)


def sketches_without_infinities(patch: pytest.MonkeyPatch) -> None:
    sketch = bags._approx_quantile

    def without(q: float, error: float) -> bags.Bag:
        bag = sketch(q, error)
        transform = bag.transform
        assert transform is not None
        return bags.Bag(bag.read, transform=lambda value: transform(_finite(value)), bounded=True)

    patch.setattr(bags, "_approx_quantile", without)


def _finite(value: pl.Expr) -> pl.Expr:
    return pl.when(value.cast(pl.Float64).is_finite()).then(value)


def nulls_always_last(patch: pytest.MonkeyPatch) -> None:
    def sort(self: RankOrder, rows: pl.DataFrame, columns: Any, seen: str) -> pl.DataFrame:
        return rows.sort(*columns, seen, descending=[*self.descending, self.newest_first], nulls_last=True)

    patch.setattr(RankOrder, "sort", sort)


def windows_that_ignore_retractions(patch: pytest.MonkeyPatch) -> None:
    """A session neither splits nor shrinks, and a sliding window stays without the event that ends it."""
    patch.setattr(intake.Intake, "recomputes", property(lambda self: False))


def global_windows_without_timeless_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intake, "has_place", lambda where, time: time.is_not_null())


def aggregates(*measures: Measure) -> Operator:
    return Aggregate(measures=measures)


GLOBAL = Windowed(where=hw.Global(), when=hw.EveryBatch())
SESSION = Windowed(where=hw.Session("4 seconds"))
SLIDING = Windowed(where=hw.Sliding("5 seconds"))
QUANTILE = Measure("approx_quantile", "x", 0.9)

BUGS: list[tuple[Break, tuple[Operator, ...]]] = [
    (extremes_of_polars, (aggregates(Measure("max", "x")),)),
    (extremes_of_polars, (aggregates(Measure("min", "s"), Measure("max", "l")),)),
    (sums_that_wrap, (aggregates(Measure("sum", "h")),)),
    (sums_that_fail_too_early, (aggregates(Measure("sum", "v")),)),
    (means_of_decimals_as_floats, (aggregates(Measure("mean", "d")),)),
    (sums_that_stay_nan, (Rolling(), aggregates(Measure("sum", "x")))),
    (sketches_without_infinities, (aggregates(QUANTILE),)),
    (nulls_always_last, (Top(order=(("v", False), ("id", False))),)),
    (windows_that_ignore_retractions, (SESSION,)),
    (windows_that_ignore_retractions, (SLIDING,)),
    (global_windows_without_timeless_rows, (Join("table", "full"), GLOBAL)),
]


def problems(operators: tuple[Operator, ...]) -> Iterator[str]:
    for seed in range(SEEDS):
        # Windows are tested over changes, aggregates over rows, whose kernels differ more from Spark.
        data = generate(random.Random(seed), retracts=isinstance(operators[0], Windowed), unusual=True)
        try:
            yield from check_simulated(Query(f"seed {seed}", operators, data, seed))
        except Exception as error:
            yield repr(error)


@pytest.mark.parametrize(("bug", "operators"), BUGS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: Break, operators: tuple[Operator, ...]) -> None:
    assert list(problems(operators)) == []
    bug(monkeypatch)
    assert next(problems(operators), None) is not None
