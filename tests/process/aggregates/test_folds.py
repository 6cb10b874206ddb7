"""Aggregates: nulls, empty input, order, errors of approximations, and a user's own aggregate."""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest

import headwater as hw
from headwater.errors import InvalidError
from headwater.process.aggregates.aggregates import CustomAggregate, FoldInput, Of
from headwater.process.kernel import Now
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.windowing import Windowing

SCHEMA = pl.Schema({"event_time": pl.Int64, "x": pl.Float64, "s": pl.String})


def over(aggregate: Any, rows: list[tuple[int, float | None, str | None]], pieces: int = 1) -> Any:
    """Compute an aggregate of all rows, in several steps."""
    windowing = Windowing(what={"y": aggregate}, where=hw.Global(), when=hw.EveryBatch())
    kernel = WindowedKernel.of(windowing, SCHEMA)
    state, result = kernel.initial(), None
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    for number in range(pieces):
        step = kernel.step(state, frame[number::pieces], Now())
        state, result = step.state, step.output["y"][-1]
    return result.to_list() if isinstance(result, pl.Series) else result


NULLS = [(1, None, None), (2, None, None)]


@pytest.mark.parametrize("make", [hw.sum, hw.mean, hw.min, hw.max, hw.first, hw.last])
def test_an_aggregate_of_nulls_is_null(make: Any) -> None:
    assert over(make("x"), NULLS) is None


def test_counts_of_nulls() -> None:
    assert over(hw.count(), NULLS) == 2
    assert over(hw.count("x"), NULLS) == 0
    assert over(hw.distinct("x"), NULLS) == 0
    assert over(hw.approx_distinct("x"), NULLS) == 0
    assert over(hw.collect("x"), NULLS) == []
    assert over(hw.top_k("x", 3), NULLS) == []
    assert over(hw.quantile("x", 0.5), NULLS) is None
    assert over(hw.approx_quantile("x", 0.5), NULLS) is None


def test_first_and_last_are_by_event_time_then_by_arrival() -> None:
    rows = [(5, 1.0, "a"), (3, 2.0, "b"), (3, 3.0, "c"), (9, 4.0, "d"), (9, 5.0, "e"), (1, None, None)]
    assert over(hw.first("s"), rows) == "b"
    assert over(hw.last("s"), rows) == "e"
    assert over(hw.collect("s"), rows) == ["b", "c", "a", "d", "e"]


def test_first_and_last_over_many_steps() -> None:
    rows = [(11, None, "a"), (32, None, "b"), (2, None, "c"), (28, None, "d"), (2, None, "e"), (32, None, "f")]
    assert over(hw.first("s"), rows, len(rows)) == "c"
    assert over(hw.last("s"), rows, len(rows)) == "f"


def test_top_k_is_sorted_by_frequency() -> None:
    rows = [(n, None, s) for n, s in enumerate("abbcccdd")]
    assert over(hw.top_k("s", 3), rows, 2) == [
        {"value": "c", "count": 3},
        {"value": "b", "count": 2},
        {"value": "d", "count": 2},
    ]


def test_approx_distinct_keeps_its_error() -> None:
    numbers = random.Random(7)
    rows = [(n, float(numbers.randrange(50_000)), None) for n in range(100_000)]
    exact = len({x for _, x, _ in rows})
    for error in (0.1, 0.02):
        found = over(hw.approx_distinct("x", error), rows, 5)
        assert abs(found - exact) <= 4 * error * exact  # four standard errors


@pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 0.99, 1.0])
def test_approx_quantile_keeps_its_error(q: float) -> None:
    numbers = random.Random(7)
    rows = [(n, numbers.lognormvariate(0, 3) * numbers.choice([1, 1, -1, 0]), None) for n in range(5_000)]
    exact, found = over(hw.quantile("x", q), rows), over(hw.approx_quantile("x", q, 0.02), rows, 3)
    assert abs(found - exact) <= 0.02 * abs(exact) + 1e-12


def test_approx_top_k_keeps_its_error() -> None:
    numbers = random.Random(7)
    rows = [(n, None, str(int(numbers.paretovariate(0.7)))) for n in range(20_000)]
    exact = Counter(s for _, _, s in rows)
    found = over(hw.approx_top_k("s", 5, 0.01), rows, 10)
    assert [item["value"] for item in found] == [value for value, _ in exact.most_common(5)]
    for item in found:
        assert exact[item["value"]] - 0.01 * len(rows) <= item["count"] <= exact[item["value"]]


class Spread:
    """A user's own aggregate: the greatest value minus the least."""

    column = "x"

    def partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        return {"low": row.value.min(), "high": row.value.max()}

    def merge(self, of: Of) -> Mapping[str, pl.Expr]:
        return {"low": of("low").min(), "high": of("high").max()}

    def result(self, of: Of) -> pl.Expr:
        return of("high") - of("low")


def test_a_users_own_aggregate() -> None:
    rows = [(n, float(x), None) for n, x in enumerate([4, 1, 9, 3])]
    spread: CustomAggregate = Spread()
    assert over(spread, rows, 3) == 8.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hw.quantile("x", 99), "quantile takes a fraction between 0 and 1, such as 0.99, not 99"),
        (lambda: hw.top_k("x", 0), "top_k takes a number of values, 1 or more, not 0"),
        (lambda: hw.approx_distinct("x", 2), "approx_distinct takes an error between 0 and 1"),
        (lambda: over(hw.sum("s"), []), "'y' is the sum of 's', which is String and not a number"),
        (lambda: over(hw.sum("z"), []), "'y' needs the column 'z', which does not exist; the columns are"),
    ],
)
def test_invalid_aggregates_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        make()
