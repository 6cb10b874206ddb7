"""Aggregates: the functions that are computed over the events of a window or group.

They are named as in SQL. An aggregate over nothing but nulls is null; `count()` counts rows. These are values;
`folds` turns them into columns. Users can define their own, see `CustomAggregate`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from headwater.errors import InvalidError

if TYPE_CHECKING:  # Polars takes long to import, and apps that only define queries do not need it.
    import polars as pl


class Function(StrEnum):
    """The built-in aggregates."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    FIRST = "first"
    LAST = "last"
    COLLECT = "collect"
    DISTINCT = "distinct"
    QUANTILE = "quantile"
    TOP_K = "top_k"
    APPROX_DISTINCT = "approx_distinct"
    APPROX_QUANTILE = "approx_quantile"
    APPROX_TOP_K = "approx_top_k"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function over a column, or over whole rows if `column` is None.

    `argument` is the requested quantile or number of values, `error` the permitted error of an approximation.
    """

    function: Function
    column: str | None = None
    argument: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class FoldInput:
    """The rows that an aggregate is computed from, as expressions.

    `value` is the aggregate's column, `time` the event time, `weight` 1 for an inserted and -1 for a retracted
    row. `changes` is False if all weights are 1.
    """

    value: "pl.Expr"
    time: "pl.Expr"
    weight: "pl.Expr"
    changes: bool


Of = Callable[[str], "pl.Expr"]
"""A function that returns the partial column of a name, which `partial` chose."""


@runtime_checkable
class CustomAggregate(Protocol):
    """An aggregate defined by a user; an instance can be used in `what` like a built-in one.

    It is computed in three steps, each as Polars expressions: partial results from rows, one partial result from
    several, and the result from a partial one.

        class Spread:
            column = "amount"

            def partial(self, row):
                return {"low": row.value.min(), "high": row.value.max()}

            def merge(self, of):
                return {"low": of("low").min(), "high": of("high").max()}

            def result(self, of):
                return of("high") - of("low")

    Merging must not depend on how rows were divided into partial results. If the input has changes
    (`FoldInput.changes`), `partial` must take the weights into account.
    """

    @property
    def column(self) -> str | None:
        """Name of the column that `FoldInput.value` refers to; the event time if None."""
        ...

    def partial(self, row: FoldInput) -> "Mapping[str, pl.Expr]":
        """Return the columns of a partial result by name, as expressions that aggregate a group of rows."""
        ...

    def merge(self, of: Of) -> "Mapping[str, pl.Expr]":
        """Return the columns of one partial result, under the same names, as expressions that merge several."""
        ...

    def result(self, of: Of) -> "pl.Expr":
        """Return the result, as an expression over the columns of one partial result."""
        ...


def check_aggregate(operator: str, name: str, aggregate: Any) -> None:
    """Raise an InvalidError if a value of `what` is not an aggregate."""
    if not isinstance(aggregate, Aggregate | CustomAggregate):
        raise InvalidError(
            f"{operator}: {name}={aggregate!r} is not an aggregate; use hw.sum('amount') or another one, "
            "or an object with `column`, `partial`, `merge` and `result`"
        )


def count(column: str | None = None) -> Aggregate:
    """Count the rows, or the values of a column that are not null."""
    return Aggregate(Function.COUNT, column)


def sum(column: str) -> Aggregate:
    """Sum a column."""
    return Aggregate(Function.SUM, column)


def mean(column: str) -> Aggregate:
    """Compute the arithmetic mean of a column."""
    return Aggregate(Function.MEAN, column)


def min(column: str) -> Aggregate:
    """Find the least value of a column."""
    return Aggregate(Function.MIN, column)


def max(column: str) -> Aggregate:
    """Find the greatest value of a column."""
    return Aggregate(Function.MAX, column)


def first(column: str) -> Aggregate:
    """Find the value with the earliest event time; of equal times, the one that arrived first."""
    return Aggregate(Function.FIRST, column)


def last(column: str) -> Aggregate:
    """Find the value with the latest event time; of equal times, the one that arrived last."""
    return Aggregate(Function.LAST, column)


def collect(column: str) -> Aggregate:
    """Collect all values of a column, in the order of event time."""
    return Aggregate(Function.COLLECT, column)


def distinct(column: str) -> Aggregate:
    """Count the different values of a column, exactly."""
    return Aggregate(Function.DISTINCT, column)


def quantile(column: str, q: float) -> Aggregate:
    """Find the exact quantile `q` (0.5: median): the least value that a fraction `q` of values do not exceed."""
    return Aggregate(Function.QUANTILE, column, _fraction("quantile", q))


def top_k(column: str, k: int) -> Aggregate:
    """Find the `k` most frequent values with their counts, exactly; of equally frequent ones, the lesser first."""
    return Aggregate(Function.TOP_K, column, _number("top_k", k))


def approx_distinct(column: str, error: float = 0.02) -> Aggregate:
    """Estimate the number of different values, with a relative standard error of `error`. State is bounded."""
    return Aggregate(Function.APPROX_DISTINCT, column, error=_error("approx_distinct", error))


def approx_quantile(column: str, q: float, error: float = 0.01) -> Aggregate:
    """Estimate a quantile, with a relative error of at most `error`. State is bounded."""
    return Aggregate(
        Function.APPROX_QUANTILE,
        column,
        _fraction("approx_quantile", q),
        _error("approx_quantile", error),
    )


def approx_top_k(column: str, k: int, error: float = 0.001) -> Aggregate:
    """Estimate the `k` most frequent values; counts are low by at most `error` of all rows. State is bounded."""
    return Aggregate(Function.APPROX_TOP_K, column, _number("approx_top_k", k), _error("approx_top_k", error))


def _fraction(name: str, q: float) -> float:
    if not isinstance(q, int | float) or not 0 <= q <= 1:
        raise InvalidError(f"{name} takes a fraction between 0 and 1, such as 0.99, not {q!r}")
    return float(q)


def _number(name: str, k: int) -> int:
    if not isinstance(k, int) or k < 1:
        raise InvalidError(f"{name} takes a number of values, 1 or more, not {k!r}")
    return k


def _error(name: str, error: float) -> float:
    if not isinstance(error, int | float) or not 0 < error < 1:
        raise InvalidError(f"{name} takes an error between 0 and 1, such as 0.01, not {error!r}")
    return float(error)
