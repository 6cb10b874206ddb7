"""Aggregates of a query, and their results computed from the values of a group in plain Python."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import headwater as hw
from differential.dialects import Dialect
from differential.values import Approximate, InAnyOrder, OneOf, order_key, plain

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

ROUNDING = 1e-9
"""The error that values which were retracted may leave in a sum of floats."""

ERROR = "an error, because a sum is too large"
MAYBE = "the sum, or an error, because a part of it is too large"

Pair = tuple[Any, Any]
"""A value that is not null, and its time."""

_ORDERED = ("v", "h", "x", "d", "s", "l", "k")
_NUMBERS = ("v", "x", "d")


@dataclass(frozen=True, slots=True)
class Measure:
    """One aggregate over a column; None counts rows."""

    function: str
    column: str | None = None
    argument: float | None = None

    @property
    def aggregate(self) -> Any:
        """The aggregate as users write it."""
        make: Callable[..., Any] = getattr(hw, self.function)
        arguments = [part for part in (self.column, self.argument) if part is not None]
        return make(*arguments)

    def sql(self, dialect: Dialect, time: str) -> str:
        """Return an aggregate in SQL: Spark's own if it has one, else all values, for `finish`."""
        if self.column is None:
            return "count(*)"
        if dialect.name == "spark" and self.is_native:
            names = {"mean": "avg"}
            return f"{names.get(self.function, self.function)}({self.column})"
        return dialect.values(self.column, time)

    @property
    def is_native(self) -> bool:
        return self.function in ("count", "sum", "mean", "min", "max")

    def finish(self, found: Any, dialect: Dialect) -> Any:
        """Compute the expected result from what `sql` returned."""
        if self.column is None or (dialect.name == "spark" and self.is_native):
            return _tolerant(found) if self.function in ("sum", "mean") else found
        pairs = [(part["v"], part["t"]) for part in found or () if part["v"] is not None]
        return _FINISH[self.function](pairs, self.argument)

    def __str__(self) -> str:
        arguments = [repr(part) for part in (self.column, self.argument) if part is not None]
        return f"{self.function}({', '.join(arguments)})"


def _tolerant(found: Any) -> Any:
    return Approximate(found, abs(found) * 1e-9) if isinstance(found, float) and math.isfinite(found) else found


def _sum(pairs: Sequence[Pair], _: Any) -> Any:
    values = [value for value, _ in pairs]
    if not values:
        return None
    if isinstance(values[0], float):
        total = _float_sum(values)
        scale = math.fsum(abs(value) for value in values if math.isfinite(value))
        return Approximate(total, scale * 1e-9 + ROUNDING)
    total = sum(values)
    if isinstance(total, int):
        if not LONG_MIN <= total <= LONG_MAX:
            return ERROR
        if sum(map(abs, values)) > LONG_MAX:
            return OneOf((total, MAYBE))
    return total


def _float_sum(values: Sequence[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


def _mean(pairs: Sequence[Pair], _: Any) -> Any:
    values = [value for value, _ in pairs]
    if not values:
        return None
    if isinstance(values[0], Decimal):
        with localcontext(prec=60):
            return (sum(values, Decimal(0)) / len(values)).quantize(Decimal("1e-8"), ROUND_HALF_UP)
    floats = [float(value) for value in values]
    scale = math.fsum(abs(value) for value in floats if math.isfinite(value))
    return Approximate(_float_sum(floats) / len(floats), scale * 1e-9 + ROUNDING)


def _end(greatest: bool) -> Callable[[Sequence[Pair], Any], Any]:
    def end(pairs: Sequence[Pair], _: Any) -> Any:
        values = sorted((value for value, _ in pairs), key=order_key)
        return (values[-1] if greatest else values[0]) if values else None

    return end


def _by_time(latest: bool) -> Callable[[Sequence[Pair], Any], Any]:
    def pick(pairs: Sequence[Pair], _: Any) -> Any:
        if not pairs:
            return None
        times = [time for _, time in pairs]
        end = max(times) if latest else min(times)
        return OneOf(tuple(value for value, time in pairs if time == end))

    return pick


def _quantile(pairs: Sequence[Pair], q: Any) -> Any:
    values = sorted((value for value, _ in pairs), key=order_key)
    if not values:
        return None
    return values[max(0, math.ceil(q * len(values) - 1e-9) - 1)]


def _approx_quantile(pairs: Sequence[Pair], q: Any) -> Any:
    exact = _quantile(pairs, q)
    return None if exact is None else Approximate(float(exact), abs(float(exact)) * 0.0101)


def _top(pairs: Sequence[Pair], k: Any) -> Any:
    counts = Counter(plain(value) for value, _ in pairs)
    values = {plain(value): value for value, _ in pairs}
    ordered = sorted(counts, key=lambda value: (-counts[value], order_key(values[value])))
    return [{"value": values[value], "count": counts[value]} for value in ordered[: int(k)]]


def _distinct(pairs: Sequence[Pair], _: Any) -> Any:
    return len({plain(value) for value, _ in pairs})


_FINISH: dict[str, Callable[[Sequence[Pair], Any], Any]] = {
    "count": lambda pairs, _: len(pairs),
    "sum": _sum,
    "mean": _mean,
    "min": _end(False),
    "max": _end(True),
    "first": _by_time(False),
    "last": _by_time(True),
    "collect": lambda pairs, _: InAnyOrder(tuple(value for value, _ in pairs)),
    "distinct": _distinct,
    "quantile": _quantile,
    "top_k": _top,
    "approx_distinct": _distinct,
    "approx_quantile": _approx_quantile,
    "approx_top_k": _top,
}

_COMMON = ("sum", "mean", "min", "max")
"""Functions that are chosen twice as often."""

_COLUMNS: dict[str, Sequence[str]] = {
    "sum": (*_NUMBERS, "h"),
    "mean": _NUMBERS,
    "approx_quantile": _NUMBERS,
    "approx_distinct": ("v", "h", "x", "k"),
}
_ARGUMENTS: dict[str, Sequence[float]] = {
    "quantile": (0, 0.1, 0.5, 0.9, 1),
    "approx_quantile": (0, 0.1, 0.5, 0.9, 1),
    "top_k": (1, 2, 3),
    "approx_top_k": (1, 2),
}

SIMPLE = (Measure("count"), Measure("sum", "v"), Measure("max", "x"), Measure("min", "s"))
"""The measures of the pairs of operators."""


def random_measures(chance: random.Random, number: int) -> tuple[Measure, ...]:
    """Choose measures among all functions and columns."""
    found = []
    for _ in range(number):
        function = chance.choice((*_FINISH, *_COMMON))
        column = chance.choice(_COLUMNS.get(function, _ORDERED))
        argument = chance.choice(_ARGUMENTS[function]) if function in _ARGUMENTS else None
        found.append(Measure(function, column, argument))
    return tuple(dict.fromkeys(found))
