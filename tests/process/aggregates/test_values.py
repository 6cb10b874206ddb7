"""Aggregates of every type on every path, compared with plain Python, in any batches, over rows and changes."""

import math
import random
from decimal import Context, Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.kernel import Now
from headwater.process.tables.aggregate import AggregateKernel
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.windowing import Windowing
from tests.process.aggregates.values import (
    INF,
    NAN,
    NUMBERS,
    PATHS,
    TYPES,
    Event,
    Path,
    aggregates,
    expected,
    plain,
)
from tests.process.relations import EXAMPLES

EXTRA_TIME = 1000


def cut(changes: list[tuple[Any, int, int]], numbers: random.Random) -> list[list[tuple[Any, int, int]]]:
    """Divide changes into batches."""
    batches: list[list[tuple[Any, int, int]]] = [[]]
    for change in changes:
        if numbers.random() < 0.3:
            batches.append([])
        batches[-1].append(change)
    return batches


def with_extras(events: list[Event], extras: list[Any], numbers: random.Random) -> list[tuple[Any, int, int]]:
    """Return the events as changes, among others that are inserted and retracted."""
    changes = [(event.value, event.time, 1) for event in events]
    for number, value in enumerate(extras):
        at = numbers.randint(0, len(changes))
        changes.insert(at, (value, EXTRA_TIME + number, 1))
        changes.insert(numbers.randint(at + 1, len(changes)), (value, EXTRA_TIME + number, -1))
    return changes


SOME = max(5, EXAMPLES // 8)
"""The number of examples for each type, each with a few of the aggregates."""


@pytest.mark.parametrize("kind", TYPES)
def test_all_paths_give_the_result_of_plain_python(kind: str) -> None:
    values = st.none() | TYPES[kind][1]
    events = st.lists(st.builds(Event, values, st.integers(0, 3)), min_size=1, max_size=8)

    @settings(max_examples=SOME)
    @given(
        events, st.lists(values, max_size=4), st.randoms(use_true_random=False), st.booleans(), st.integers(0, 3)
    )
    def check(some: list[Event], extras: list[Any], numbers: random.Random, changes: bool, number: int) -> None:
        what = aggregates(kind)
        what = {name: what[name] for name in numbers.sample(list(what), 4)}
        path = PATHS[number](kind, what, changes)
        if path.is_by_time:  # Otherwise extras are among the last rows.
            some, extras = [Event(event.value, at) for at, event in enumerate(some)], []
        for batch in cut(with_extras(some, extras if changes else [], numbers), numbers):
            path.step(batch, seal=numbers.random() < 0.5)
        wanted = expected(some, kind)
        assert {name: path.last[name] for name in what} == {name: wanted[name] for name in what}

    check()


EXACT = Context(prec=100)
huge = st.sampled_from([2**63 - 1, -(2**63), 2**62, -(2**62), 1, -1, 0])
huge_decimals = st.sampled_from([10**38 - 1, -(10**38) + 1, 10**37, 5, -5, 0])


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize(
    ("dtype", "values", "limit"),
    [
        (pl.Int64(), huge, 2**63),
        (pl.Decimal(38, 0), huge_decimals.map(Decimal), 10**38),
        (pl.Decimal(38, 10), huge_decimals.map(lambda n: Decimal(n).scaleb(-10, EXACT)), 10**38),
    ],
    ids=["bigint", "decimal(38,0)", "decimal(38,10)"],
)
def test_a_sum_is_exact_or_raises_an_error(dtype: pl.DataType, values: Any, limit: int, changes: bool) -> None:
    @settings(max_examples=EXAMPLES)
    @given(st.lists(values, min_size=1, max_size=6), st.lists(values, max_size=3), st.integers(0, 10**6))
    def check(some: list[Any], extras: list[Any], seed: int) -> None:
        numbers = random.Random(seed)
        exact, all_of_it = sum(map(int_of, some)), sum(abs(int_of(value)) for value in some + extras)
        fits = -limit <= exact < limit if dtype == pl.Int64 else abs(exact) < limit
        schema = pl.Schema({"event_time": pl.Int64(), "x": dtype, **({CHANGE: pl.Int8()} if changes else {})})
        windowing = Windowing(what={"y": hw.sum("x")}, where=hw.Session("1 hour"), when=hw.EveryBatch())
        for kernel in (AggregateKernel.of({"y": hw.sum("x")}, [], schema), WindowedKernel.of(windowing, schema)):
            path = Path(kernel)
            rows = with_extras([Event(value, 0) for value in some], extras if changes else [], numbers)
            try:
                for batch in cut(rows, numbers):
                    path.step(batch, seal=numbers.random() < 0.5)
            except InvalidError as error:
                assert "'y', the sum of 'x', does not fit" in str(error)
                assert all_of_it >= limit
            else:
                assert fits
                assert int_of(path.last["y"]) == exact

    check()


def int_of(value: Any) -> int:
    """Return the digits of a decimal, or an integer."""
    if not isinstance(value, Decimal):
        return int(value)
    sign, digits, _ = value.as_tuple()
    return int("".join(map(str, digits))) * (-1 if sign else 1)


@pytest.mark.parametrize(
    ("values", "result"),
    [
        ([1.0, NAN], "NaN"),
        ([1.0, INF], INF),
        ([INF, -INF], "NaN"),
        ([1e308, 1e308], INF),
        ([-1e308, -1e308], -INF),
        ([1e308, -1e308, 2.0], 2.0),
    ],
)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_a_sum_of_floats_forgets_what_was_retracted(values: list[float], result: Any, name: str) -> None:
    aggregate = {"sum": hw.sum("x"), "mean": hw.mean("x")}[name]
    for make in PATHS[:3]:
        path = make("double", {"y": aggregate}, True)
        path.step([(value, 0, 1) for value in values], seal=True)
        divisor = len(values) if name == "mean" and isinstance(result, float) and math.isfinite(result) else 1
        assert path.last["y"] == (result if divisor == 1 else result / divisor)
        path.step([(value, 0, -1) for value in values] + [(0.5, 0, 1)], seal=False)
        assert path.last["y"] == 0.5


def test_a_mean_of_integers_forgets_what_was_retracted() -> None:
    path = PATHS[0]("bigint", {"y": hw.mean("x")}, True)
    path.step([(2**62, 0, 1), (1, 0, 1), (-(2**63), 0, 1)], seal=True)
    path.step([(2**62, 0, -1), (-(2**63), 0, -1)], seal=True)
    assert path.last["y"] == 1.0


def test_the_mean_of_decimals_is_rounded_half_up_as_in_spark() -> None:
    schema = pl.Schema({"event_time": pl.Int64(), "x": pl.Decimal(10, 2)})
    for values, mean in (
        (["0.01", "0.02", "0.02"], "0.016667"),
        (["-0.01", "-0.02", "-0.02"], "-0.016667"),
        (["0.01"] + ["0.00"] * 19_999, "0.000001"),
        (["-0.01"] + ["0.00"] * 19_999, "-0.000001"),
    ):
        path = Path(AggregateKernel.of({"y": hw.mean("x")}, [], schema))
        path.step([(Decimal(value), 0, 1) for value in values], seal=False)
        assert path.last["y"] == Decimal(mean)


def test_a_mean_of_decimals_that_does_not_fit_raises_an_error() -> None:
    schema = pl.Schema({"event_time": pl.Int64(), "x": pl.Decimal(38, 10)})
    path = Path(AggregateKernel.of({"y": hw.mean("x")}, [], schema))
    with pytest.raises(InvalidError, match="the mean of decimals does not fit a decimal with 38 digits"):
        path.step([(Decimal(10) ** 24, 0, 1)], seal=False)


RESULTS = {
    ("sum", "tinyint"): pl.Int64(),
    ("sum", "bigint"): pl.Int64(),
    ("sum", "float"): pl.Float64(),
    ("sum", "decimal(10,2)"): pl.Decimal(20, 2),
    ("sum", "decimal(38,10)"): pl.Decimal(38, 10),
    ("mean", "int"): pl.Float64(),
    ("mean", "decimal(10,2)"): pl.Decimal(14, 6),
    ("mean", "decimal(38,10)"): pl.Decimal(38, 14),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("changes", [False, True])
def test_every_path_has_the_same_types(kind: str, changes: bool) -> None:
    what = aggregates(kind)
    found = [make(kind, what, changes).kernel.output_schema for make in PATHS]
    types = [{name: schema[name] for name in what} for schema in found]
    assert all(other == types[0] for other in types)
    dtype = TYPES[kind][0]
    for name in ("least", "most", "first", "last", "middle"):
        assert types[0][name] == dtype
    assert types[0]["all"] == pl.List(dtype)
    for name in ("sum", "mean"):
        if (name, kind) in RESULTS:
            assert types[0][name] == RESULTS[name, kind]
        elif kind in NUMBERS:
            assert types[0][name] == (pl.Int64() if name == "sum" and dtype.is_integer() else pl.Float64())


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in NUMBERS])
@pytest.mark.parametrize("make", [hw.sum, hw.mean, lambda name: hw.approx_quantile(name, 0.5)])
def test_only_numbers_are_summed(kind: str, make: Any) -> None:
    schema = pl.Schema({"event_time": pl.Int64(), "x": TYPES[kind][0]})
    with pytest.raises(InvalidError, match="and not a number"):
        AggregateKernel.of({"y": make("x")}, [], schema)


MAPS = [
    pl.Map(pl.String(), pl.Int64()),
    pl.List(pl.Map(pl.String(), pl.Int64())),
    pl.Struct({"a": pl.Map(pl.String(), pl.Int64())}),
]


@pytest.mark.parametrize("dtype", MAPS, ids=str)
def test_maps_can_only_be_counted(dtype: pl.DataType) -> None:
    schema = pl.Schema({"event_time": pl.Int64(), "x": dtype})
    for name, aggregate in aggregates("string").items():
        if name not in ("rows", "n"):
            with pytest.raises(
                InvalidError, match=r"maps cannot be compared; convert the column with F.map_entries"
            ):
                AggregateKernel.of({name: aggregate}, [], schema)
    AggregateKernel.of({"n": hw.count("x")}, [], schema)
    with pytest.raises(InvalidError, match="rows cannot be grouped or ordered by 'x'"):
        AggregateKernel.of({"n": hw.count()}, ["x"], schema)


def test_groups_of_floats() -> None:
    schema = pl.Schema({"k": pl.Float64(), "event_time": pl.Int64()})
    windowing = Windowing(what={"n": hw.count()}, where=hw.Global(), when=hw.EveryBatch(), by=("k",))
    for kernel in (AggregateKernel.of({"n": hw.count()}, ["k"], schema), WindowedKernel.of(windowing, schema)):
        state, found = kernel.initial(), {}
        for keys in ([-0.0, NAN, None], [0.0, NAN, None], [-0.0], [INF, -NAN]):
            frame = pl.DataFrame({"k": keys, "event_time": [0] * len(keys)}, schema=schema)
            step = kernel.step(state, kernel.combine(frame, Now()), Now())
            state = {name: table.sealed() for name, table in step.state.items()}
            for key, n, change in step.output.select("k", "n", CHANGE).iter_rows():
                if change > 0:
                    found[plain(key)] = n
                    assert key != 0 or math.copysign(1, key) > 0
        assert found == {0.0: 3, "NaN": 3, None: 2, INF: 1}


any_floats = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True)


@settings(max_examples=EXAMPLES * 2)
@given(
    st.lists(
        any_floats | st.sampled_from([0.0, -0.0, 5e-324, 1.7976931348623157e308, -INF, INF, NAN]), min_size=1
    ),
    st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
    st.sampled_from([0.001, 0.01, 0.2]),
    st.booleans(),
)
def test_an_approximate_quantile_keeps_its_error(
    values: list[float], q: float, error: float, changes: bool
) -> None:
    what = {"exact": hw.quantile("x", q), "about": hw.approx_quantile("x", q, error)}
    path = PATHS[0]("double", what, changes)
    path.step([(value, 0, 1) for value in values], seal=True)
    exact, about = path.last["exact"], path.last["about"]
    if exact == "NaN" or math.isinf(exact) or exact == 0:
        assert about == exact
    else:
        # The least floats are further apart than the error.
        assert abs(about - exact) <= abs(exact) * error * (1 + 1e-9) + 5e-324


@pytest.mark.parametrize("dtype", [pl.Int64(), pl.Decimal(38, 0)], ids=str)
def test_an_approximate_quantile_of_huge_numbers(dtype: pl.DataType) -> None:
    schema = pl.Schema({"event_time": pl.Int64(), "x": dtype})
    greatest = 2**63 - 1 if dtype == pl.Int64 else 10**38 - 1
    path = Path(
        AggregateKernel.of({"low": hw.approx_quantile("x", 0), "high": hw.approx_quantile("x", 1)}, [], schema)
    )
    path.step([(value, 0, 1) for value in (greatest, -greatest, 1)], seal=False)
    assert path.last["high"] == pytest.approx(greatest, rel=0.01)
    assert path.last["low"] == pytest.approx(-greatest, rel=0.01)


class Partial:
    """An object that is not an aggregate, although it has all attributes."""

    def __getattr__(self, name: str) -> Any:
        return Partial()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            [hw.count()],
            r"`what` must be a dictionary of aggregates by name, such as \{'n': hw.count\(\)\}, not \[",
        ),
        (hw.count(), "`what` must be a dictionary"),
        ({}, "`what` is empty"),
        ({1: hw.count()}, "`what` has the name 1; names of aggregates are texts"),
        ({"n": hw.count}, "n=<function count at .* is not an aggregate; use hw.sum"),
        ({"n": Partial()}, "is not an aggregate"),
        ({"n": type("Mine", (), {"column": None, "partial": 1, "merge": 1, "result": 1})}, "is not an aggregate"),
    ],
)
def test_what_must_be_aggregates_by_name(what: Any, message: str) -> None:
    schema = pl.Schema({"event_time": pl.Int64(), "x": pl.Float64()})
    with pytest.raises(InvalidError, match=message):
        AggregateKernel.of(what, [], schema)
    with pytest.raises(InvalidError, match=message):
        Windowing(what=what, where=hw.Global())


@pytest.mark.parametrize("make", [hw.sum, hw.min, hw.count, hw.collect, hw.distinct, hw.approx_distinct])
def test_an_aggregate_takes_the_name_of_a_column(make: Any) -> None:
    with pytest.raises(InvalidError, match="takes the name of a column, such as 'amount', not 5"):
        make(5)


def test_the_error_of_a_quantile_has_a_least_value() -> None:
    with pytest.raises(InvalidError, match=r"takes an error of 0.000001 or more, not 1e-09; use hw.quantile"):
        hw.approx_quantile("x", 0.5, 1e-9)
