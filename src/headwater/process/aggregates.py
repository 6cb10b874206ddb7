"""What is computed over the events of a window.

Named as in SQL; an aggregate of nothing but nulls is null, and `count()` counts rows.
"""

from dataclasses import dataclass
from enum import StrEnum


class Function(StrEnum):
    """The aggregates there are."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function over a column; over the rows themselves where `column` is None."""

    function: Function
    column: str | None = None


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
