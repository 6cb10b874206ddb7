"""Aggregates: the functions that are computed over the events of a window or group.

They are named as in SQL, and have the results and types of Spark. An aggregate over nothing but nulls is null;
`count()` counts rows. These are values; `folds` turns them into columns. Users can define their own, see
`CustomAggregate`.
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


def check_mapping(operator: str, what: Any) -> None:
    """Raise an InvalidError if `what` is not a dictionary."""
    if not isinstance(what, Mapping):
        raise InvalidError(
            f"{operator}: `what` must be a dictionary of aggregates by name, such as {{'n': hw.count()}}, "
            f"not {what!r}"
        )


def check_what(operator: str, what: Any) -> None:
    """Raise an InvalidError if `what` is not a dictionary of aggregates by name."""
    check_mapping(operator, what)
    if not what:
        raise InvalidError(
            f"{operator}: `what` is empty; name at least one aggregate, such as {{'n': hw.count()}}"
        )
    for name, aggregate in what.items():
        if not isinstance(name, str) or not name:
            raise InvalidError(f"{operator}: `what` has the name {name!r}; names of aggregates are texts")
        check_aggregate(operator, name, aggregate)


def check_aggregate(operator: str, name: str, aggregate: Any) -> None:
    """Raise an InvalidError if a value of `what` is not an aggregate."""
    if isinstance(aggregate, Aggregate) or _is_custom(aggregate):
        return
    if type(aggregate).__module__.startswith("pyspark."):
        raise InvalidError(
            f"{operator}: {name!r} is a Spark Column, which only `hw.windowed` without `when`, `how` and "
            "`lateness` computes; use Headwater's aggregates (hw.sum, hw.quantile, ...) or one of your own with "
            "`partial`, `merge` and `result`"
        )
    raise InvalidError(
        f"{operator}: {name}={aggregate!r} is not an aggregate; use hw.sum('amount') or another one, "
        "or an object with `column`, `partial`, `merge` and `result`"
    )


def _is_custom(aggregate: Any) -> bool:
    # A Spark Column has every attribute, but these are not functions.
    if isinstance(aggregate, type) or not isinstance(aggregate, CustomAggregate):
        return False
    methods = (aggregate.partial, aggregate.merge, aggregate.result)
    return all(map(callable, methods)) and isinstance(aggregate.column, str | None)


def count(column: str | None = None) -> Aggregate:
    """Count the rows, or the values of a column that are not null."""
    return Aggregate(Function.COUNT, None if column is None else _column("count", column))


def sum(column: str) -> Aggregate:
    """Sum a column of numbers: integers as bigint, decimals with ten more digits, others as double.

    A sum that does not fit its type raises an error. Over changes, sums of integers and decimals are exact; sums
    of floats have rounding errors that retractions do not remove.
    """
    return Aggregate(Function.SUM, _column("sum", column))


def mean(column: str) -> Aggregate:
    """Compute the arithmetic mean of a column of numbers, as double; that of decimals with four more digits."""
    return Aggregate(Function.MEAN, _column("mean", column))


def min(column: str) -> Aggregate:
    """Find the least value of a column, of any type but maps.

    NaN is greater than every number. Structs and arrays are compared field by field, null fields first.
    """
    return Aggregate(Function.MIN, _column("min", column))


def max(column: str) -> Aggregate:
    """Find the greatest value of a column, of any type but maps; compared as in `hw.min`."""
    return Aggregate(Function.MAX, _column("max", column))


def first(column: str) -> Aggregate:
    """Find the value with the earliest event time; of equal times, the one that arrived first."""
    return Aggregate(Function.FIRST, _column("first", column))


def last(column: str) -> Aggregate:
    """Find the value with the latest event time; of equal times, the one that arrived last."""
    return Aggregate(Function.LAST, _column("last", column))


def collect(column: str) -> Aggregate:
    """Collect all values of a column, in the order of event time; those of equal times in the order of arrival.

    Equal values of the same time are next to each other, where the first of them arrived.
    """
    return Aggregate(Function.COLLECT, _column("collect", column))


def distinct(column: str) -> Aggregate:
    """Count the different values of a column, exactly. NaN equals NaN, and -0.0 equals 0.0."""
    return Aggregate(Function.DISTINCT, _column("distinct", column))


def quantile(column: str, q: float) -> Aggregate:
    """Find the exact quantile `q` (0.5: median): the least value that a fraction `q` of values do not exceed."""
    return Aggregate(Function.QUANTILE, _column("quantile", column), _fraction("quantile", q))


def top_k(column: str, k: int) -> Aggregate:
    """Find the `k` most frequent values with their counts, exactly; of equally frequent ones, the lesser first."""
    return Aggregate(Function.TOP_K, _column("top_k", column), _number("top_k", k))


def approx_distinct(column: str, error: float = 0.02) -> Aggregate:
    """Estimate the number of different values, with a relative standard error of `error`. State is bounded."""
    return Aggregate(
        Function.APPROX_DISTINCT, _column("approx_distinct", column), error=_error("approx_distinct", error)
    )


def approx_quantile(column: str, q: float, error: float = 0.01) -> Aggregate:
    """Estimate a quantile of numbers, as double, with a relative error of at most `error`. State is bounded.

    Infinities and NaN, which is greater than every number, are found exactly.
    """
    return Aggregate(
        Function.APPROX_QUANTILE,
        _column("approx_quantile", column),
        _fraction("approx_quantile", q),
        _bucket_error(error),
    )


def approx_top_k(column: str, k: int, error: float = 0.001) -> Aggregate:
    """Estimate the `k` most frequent values; counts are low by at most `error` of all rows. State is bounded."""
    return Aggregate(
        Function.APPROX_TOP_K,
        _column("approx_top_k", column),
        _number("approx_top_k", k),
        _error("approx_top_k", error),
    )


def _column(name: str, column: str) -> str:
    if not isinstance(column, str):
        raise InvalidError(f"{name} takes the name of a column, such as 'amount', not {column!r}")
    return column


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


def _bucket_error(error: float) -> float:
    """Return the error of a quantile's buckets; logarithms of floats cannot tell narrower ones apart."""
    if _error("approx_quantile", error) < 1e-6:
        raise InvalidError(f"approx_quantile takes an error of 0.000001 or more, not {error!r}; use hw.quantile")
    return float(error)
