"""Values of each type, their aggregates in plain Python with the semantics of Spark, and kernels on all paths."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from typing import Any

import polars as pl
from hypothesis import strategies as st

import headwater as hw
from headwater.change import CHANGE
from headwater.process.kernel import Now
from headwater.process.tables.aggregate import AggregateKernel
from headwater.process.tables.ranking import RankingKernel, RankOrder
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.windowing import Windowing

NAN, INF = math.nan, math.inf

floats = st.sampled_from([NAN, INF, -INF, -0.0, 0.0, 1.5, -2.25, 1e6])
small = st.integers(-100, 100)
deep = st.none() | st.fixed_dictionaries({"b": st.none() | floats})
texts = st.sampled_from(["", "a", "b", "é", "z", "\U0001f600"])

TYPES: dict[str, tuple[pl.DataType, st.SearchStrategy[Any]]] = {
    "tinyint": (pl.Int8(), st.sampled_from([-128, 127, 0, 3])),
    "smallint": (pl.Int16(), st.sampled_from([-(2**15), 2**15 - 1, 5])),
    "int": (pl.Int32(), st.sampled_from([-(2**31), 2**31 - 1, 7])),
    "bigint": (pl.Int64(), small),
    "float": (pl.Float32(), floats),
    "double": (pl.Float64(), floats),
    "decimal(10,2)": (pl.Decimal(10, 2), small.map(lambda n: Decimal(n) / 4)),
    "decimal(38,10)": (pl.Decimal(38, 10), small.map(lambda n: Decimal(n).scaleb(-10))),
    "string": (pl.String(), texts),
    "binary": (pl.Binary(), st.sampled_from([b"", b"a", b"\x00", b"\xff"])),
    "boolean": (pl.Boolean(), st.booleans()),
    "date": (pl.Date(), st.sampled_from([date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)])),
    "timestamp": (
        pl.Datetime("us", "UTC"),
        st.sampled_from([datetime(1900, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]),
    ),
    "timestamp_ntz": (pl.Datetime("us"), st.sampled_from([datetime(1900, 1, 1), datetime(2026, 1, 1)])),
    "struct<a:double,b:string>": (
        pl.Struct({"a": pl.Float64(), "b": pl.String()}),
        st.tuples(st.none() | floats, st.none() | texts).map(lambda pair: {"a": pair[0], "b": pair[1]}),
    ),
    "array<double>": (pl.List(pl.Float64()), st.lists(st.none() | floats, max_size=3)),
    "struct<a:array<struct<b:double>>>": (
        pl.Struct({"a": pl.List(pl.Struct({"b": pl.Float64()}))}),
        st.fixed_dictionaries({"a": st.none() | st.lists(deep, max_size=2)}),
    ),
}  # fmt: skip

NUMBERS = [name for name, (dtype, _) in TYPES.items() if dtype.is_numeric()]


def order(value: Any) -> Any:
    """Return a key that sorts values as Spark does."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (2,) if math.isnan(value) else (1, value)
    if isinstance(value, dict):
        return (1, tuple(order(part) for part in value.values()))
    if isinstance(value, list | tuple):
        return (1, tuple(order(part) for part in value))
    if isinstance(value, str):
        return (1, value.encode())
    return (1, value)


def plain(value: Any) -> Any:
    """Return a value in a form in which equal values are equal in Python: NaN is a text, -0.0 is 0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple((name, plain(part)) for name, part in value.items())
    if isinstance(value, list | tuple | pl.Series):
        return tuple(plain(part) for part in value)
    return value


@dataclass(frozen=True)
class Event:
    """A value with its time."""

    value: Any
    time: int


def total(values: Sequence[Any], kind: str) -> Any:
    if not values:
        return None
    if kind.startswith("decimal"):
        with localcontext(prec=100):
            return sum(values, Decimal(0))
    return math.fsum(values) if kind in ("float", "double") and all(map(math.isfinite, values)) else sum(values)


def mean(values: Sequence[Any], kind: str) -> Any:
    if not values:
        return None
    if not kind.startswith("decimal"):
        return total(values, kind) / len(values)
    scale = int(kind.split(",")[1][:-1]) + 4
    exact = sum(map(Fraction, values)) / len(values)
    with localcontext(prec=200):
        number = Decimal(exact.numerator) / Decimal(exact.denominator)
        return number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)


def expected(events: Sequence[Event], kind: str) -> dict[str, Any]:
    """Compute the aggregates of all events, which are in the order of arrival."""
    known = [event for event in events if event.value is not None]
    values = [event.value for event in known]
    ordered = sorted(values, key=order)
    first: dict[Any, int] = {}
    for number, event in enumerate(known):
        first.setdefault((plain(event.value), event.time), number)
    in_time = sorted(known, key=lambda event: (event.time, first[plain(event.value), event.time]))
    last = max(enumerate(known), key=lambda pair: (pair[1].time, pair[0]), default=None)
    counts = Counter(map(plain, values))
    keys = {plain(value): order(value) for value in values}
    frequent = sorted(counts.items(), key=lambda item: (-item[1], keys[item[0]]))
    result = {
        "rows": len(events),
        "n": len(values),
        "least": ordered[0] if ordered else None,
        "most": ordered[-1] if ordered else None,
        "first": in_time[0].value if in_time else None,
        "last": None if last is None else last[1].value,
        "all": [event.value for event in in_time],
        "kinds": len(counts),
        "about": len(counts),
        "middle": ordered[max(0, math.ceil(len(ordered) * 0.5) - 1)] if ordered else None,
        "top": [{"value": value, "count": count} for value, count in frequent[:2]],
        "usual": [{"value": value, "count": count} for value, count in frequent[:2]],
    }
    if kind in NUMBERS:
        result |= {"sum": total(values, kind), "mean": mean(values, kind)}
    return {name: plain(value) for name, value in result.items()}


def aggregates(kind: str) -> dict[str, Any]:
    what = {
        "rows": hw.count(), "n": hw.count("x"), "least": hw.min("x"), "most": hw.max("x"), "first": hw.first("x"),
        "last": hw.last("x"), "all": hw.collect("x"), "kinds": hw.distinct("x"), "about": hw.approx_distinct("x"),
        "middle": hw.quantile("x", 0.5), "top": hw.top_k("x", 2), "usual": hw.approx_top_k("x", 2),
    }  # fmt: skip
    return what | ({"sum": hw.sum("x"), "mean": hw.mean("x")} if kind in NUMBERS else {})


class Path:
    """One way to compute aggregates: a kernel with its state. `last` is the result of the last step."""

    def __init__(self, kernel: Any, *, is_by_time: bool = False) -> None:
        self.kernel, self.is_by_time = kernel, is_by_time
        self.state = kernel.initial()
        self.last: dict[str, Any] = {}

    def step(self, rows: Sequence[tuple[Any, int, int]], *, seal: bool) -> None:
        schema = self.kernel.schema
        columns = {"event_time": [row[1] for row in rows], "x": [row[0] for row in rows]}
        columns |= {CHANGE: [row[2] for row in rows]} if CHANGE in schema else {}
        frame = pl.DataFrame(columns, schema=schema)
        step = self.kernel.step(self.state, self.kernel.combine(frame, Now()), Now())
        self.state = {name: table.sealed() if seal else table for name, table in step.state.items()}
        found = step.output.filter(pl.col(CHANGE) > 0)
        found = found.sort("event_time", maintain_order=True) if self.is_by_time else found
        if found.height:
            self.last = {name: plain(found.get_column(name)[-1]) for name in found.columns}


def schema_of(kind: str, changes: bool) -> pl.Schema:
    return pl.Schema({"event_time": pl.Int64(), "x": TYPES[kind][0], **({CHANGE: pl.Int8()} if changes else {})})


def _aggregate(kind: str, what: dict[str, Any], changes: bool) -> Path:
    return Path(AggregateKernel.of(what, [], schema_of(kind, changes), "event_time"))


def _windowed(where: Any) -> Callable[[str, dict[str, Any], bool], Path]:
    windowing = lambda what: Windowing(what=what, where=where, when=hw.EveryBatch())  # noqa: E731
    return lambda kind, what, changes: Path(WindowedKernel.of(windowing(what), schema_of(kind, changes)))


def _rolling(kind: str, what: dict[str, Any], changes: bool) -> Path:
    order = RankOrder.read("event_time")
    return Path(RankingKernel.rolling(1000, what, [], order, schema_of(kind, changes)), is_by_time=True)


PATHS = [_aggregate, _windowed(hw.Global()), _windowed(hw.Session("1 hour")), _rolling]
"""Groups without windows, fixed windows (values in tables), sessions (values in lists), and the last 1000 rows."""
