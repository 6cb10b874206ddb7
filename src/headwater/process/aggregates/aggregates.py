"""What is computed over the events of a window.

Named as in SQL; an aggregate of nothing but nulls is null, and `count()` counts rows. These are values; `folds.py`
makes columns of them. Whatever has `partial`, `merge` and `result` (see `folds.Fold`) can stand in their place.
"""

from dataclasses import dataclass
from enum import StrEnum

from headwater.errors import InvalidError


class Function(StrEnum):
    """The aggregates there are."""

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
    """A function over a column; over the rows themselves where `column` is None.

    `argument` is the quantile or the number of values asked for, `error` what an approximate one may be off by.
    """

    function: Function
    column: str | None = None
    argument: float | None = None
    error: float | None = None


def count(column: str | None = None) -> Aggregate:
    """The number of rows, or of values of a column that are not null."""
    return Aggregate(Function.COUNT, column)


def sum(column: str) -> Aggregate:
    """The sum of a column."""
    return Aggregate(Function.SUM, column)


def mean(column: str) -> Aggregate:
    """The arithmetic mean of a column."""
    return Aggregate(Function.MEAN, column)


def min(column: str) -> Aggregate:
    """The least value of a column."""
    return Aggregate(Function.MIN, column)


def max(column: str) -> Aggregate:
    """The greatest value of a column."""
    return Aggregate(Function.MAX, column)


def first(column: str) -> Aggregate:
    """The value with the least event time; of equal times the one that came first."""
    return Aggregate(Function.FIRST, column)


def last(column: str) -> Aggregate:
    """The value with the greatest event time; of equal times the one that came last."""
    return Aggregate(Function.LAST, column)


def collect(column: str) -> Aggregate:
    """All values of a column, in the order of event time."""
    return Aggregate(Function.COLLECT, column)


def distinct(column: str) -> Aggregate:
    """The number of different values of a column, exactly."""
    return Aggregate(Function.DISTINCT, column)


def quantile(column: str, q: float) -> Aggregate:
    """The least value that is not less than the share `q` of all values, exactly; `0.5` is a median."""
    return Aggregate(Function.QUANTILE, column, _share("quantile", q))


def top_k(column: str, k: int) -> Aggregate:
    """The `k` most frequent values with their counts, most frequent first, exactly; of equals the lesser value."""
    return Aggregate(Function.TOP_K, column, _number("top_k", k))


def approx_distinct(column: str, error: float = 0.02) -> Aggregate:
    """About the number of different values: the standard error is `error` of it. Bounded in size."""
    return Aggregate(Function.APPROX_DISTINCT, column, error=_error("approx_distinct", error))


def approx_quantile(column: str, q: float, error: float = 0.01) -> Aggregate:
    """A quantile, off by at most `error` of its own value. Bounded in size."""
    return Aggregate(
        Function.APPROX_QUANTILE, column, _share("approx_quantile", q), _error("approx_quantile", error)
    )


def approx_top_k(column: str, k: int, error: float = 0.001) -> Aggregate:
    """The `k` most frequent values; a count may be too low by `error` of all rows, never too high. Bounded."""
    return Aggregate(Function.APPROX_TOP_K, column, _number("approx_top_k", k), _error("approx_top_k", error))


def _share(name: str, q: float) -> float:
    if not isinstance(q, int | float) or not 0 <= q <= 1:
        raise InvalidError(f"{name} takes a share between 0 and 1, such as 0.99, not {q!r}")
    return float(q)


def _number(name: str, k: int) -> int:
    if not isinstance(k, int) or k < 1:
        raise InvalidError(f"{name} takes a number of values from 1 on, not {k!r}")
    return k


def _error(name: str, error: float) -> float:
    if not isinstance(error, int | float) or not 0 < error < 1:
        raise InvalidError(f"{name} takes an error between 0 and 1, such as 0.01, not {error!r}")
    return float(error)
