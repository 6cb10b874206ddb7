"""Bags: aggregates that keep the values themselves, with their weights, or a sketch of them.

A bag is for aggregates that need all values (quantiles), or must be able to remove values when the input retracts
rows (a maximum over changes). Its values are in a list column, or in a table of their own, see `exact_values`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from headwater.errors import InternalError
from headwater.process.aggregates.aggregates import Aggregate, FoldInput, Function

_VALUE, _WEIGHT = pl.element().struct.field("v"), pl.element().struct.field("w")


@dataclass(frozen=True, slots=True)
class Bag:
    """Values with weights, as a list of structs in a column. A value whose weights add up to 0 is removed.

    `transform` is applied to each value before it is kept. The list is sorted by `order`; values of the same time
    are in the order in which they first arrived, or, if the `latest` is wanted, last arrived. `keep` limits the
    number of values: the least ones if sorted by value, else the most frequent, whose counts are then reduced by
    the count of the first one left out. A bag that is not `bounded` may grow with its window, so its values can be
    kept in a table of their own, see `exact_values`.
    """

    read: Callable[[pl.Expr], pl.Expr]
    transform: Callable[[pl.Expr], pl.Expr] | None = None
    order: Literal["value", "time", "weight"] = "value"
    keep: int | None = None
    bounded: bool = False
    latest: bool = False

    @property
    def is_count(self) -> bool:
        """True if the result is only the number of values."""
        return self.read is _read_distinct

    @property
    def has_counter(self) -> bool:
        """True if a window whose values are in a table keeps a number: of the values, or of those that arrived."""
        return self.is_count or self.order == "time"

    @property
    def arrival(self) -> pl.Expr:
        """The place of several equal values, `s`, in the order of arrival; retractions do not change it."""
        first = pl.col("s").min()
        return pl.coalesce(pl.col("s").filter(pl.col("w") > 0).max(), first) if self.latest else first

    @property
    def fields(self) -> list[str]:
        return ["v", "t"] if self.order == "time" else ["v"]

    def of_rows(self, row: FoldInput) -> list[pl.Expr]:
        """Return the columns of the long form: one row for each value."""
        value = row.value if self.transform is None else self.transform(row.value)
        return [value.alias("v"), row.time.alias("t"), row.weight.alias("w")]

    def collect(self, long: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        """Convert the long form to one list for each key, in the column `bag`; an empty bag has no row."""
        there = long.filter(pl.col("v").is_not_null() & pl.col("w").is_not_null())
        places = []
        if self.order == "time":
            there = there if "s" in there.columns else there.with_row_index("s")
            places = [self.arrival]
        summed = there.group_by(*keys, *self.fields, maintain_order=True).agg(pl.col("w").sum(), *places)
        summed = summed.filter(pl.col("w") != 0)
        match self.order:
            case "value":
                summed = summed.sort("v", maintain_order=True)
            case "time":
                summed = summed.sort("t", "s")
            case "weight":
                summed = summed.sort("w", "v", descending=[True, False], maintain_order=True)
        if self.keep is not None and self.order == "weight":
            beyond = pl.col("w").slice(self.keep, 1).first().fill_null(0).over(list(keys))
            summed = summed.with_columns(w=pl.col("w") - beyond).filter(pl.col("w") > 0)
        items = pl.struct(*self.fields, "w")
        items = items if self.keep is None else items.head(self.keep)
        return summed.group_by(*keys, maintain_order=True).agg(bag=items)


def _positive(expression: pl.Expr) -> pl.Expr:
    # If inputs are out of order, a value can be retracted before it is inserted: it then has a negative weight.
    return expression.filter(_WEIGHT > 0)


def _values(bag: pl.Expr) -> pl.Expr:
    return bag.list.eval(_positive(_VALUE))


def _repeated(bag: pl.Expr) -> pl.Expr:
    return bag.list.eval(_positive(_VALUE).repeat_by(_positive(_WEIGHT)).explode()).fill_null([])


def _read_quantile(q: float) -> Callable[[pl.Expr], pl.Expr]:
    # A product such as 0.07 * 100 is slightly more than 7, which would require one more value: so subtract more
    # than the rounding error.
    reached = _positive(_WEIGHT).cum_sum() >= _positive(_WEIGHT).sum() * (q * (1 - 2**-50)) - 1e-9
    return lambda bag: bag.list.eval(_positive(_VALUE).filter(reached)).list.first()


def _read_top(k: int) -> Callable[[pl.Expr], pl.Expr]:
    pairs = pl.struct(_positive(_VALUE).alias("value"), _positive(_WEIGHT).alias("count"))
    return lambda bag: bag.list.eval(pairs.head(k)).fill_null([])


def _read_distinct(bag: pl.Expr) -> pl.Expr:
    return _values(bag).list.len().cast(pl.Int64).fill_null(0)


def _approx_distinct(error: float, changes: bool) -> Bag:
    """Return a bag of the k least hashes of values (k minimum values); the greatest of them gives the estimate."""
    k = math.ceil(1 / error**2) + 2

    def hashed(value: pl.Expr) -> pl.Expr:
        return pl.when(value.is_not_null()).then(value.hash(0))

    # A hash that was dropped cannot be restored after a retraction, so over changes all are kept, without error.
    if changes:
        return Bag(_read_distinct, transform=hashed)

    def read(bag: pl.Expr) -> pl.Expr:
        greatest = _values(bag).list.last().cast(pl.Float64)
        estimate = ((k - 1) * 2.0**64 / greatest).round(0).cast(pl.Int64, strict=False)
        return pl.when(bag.list.len() >= k).then(estimate).otherwise(_read_distinct(bag))

    return Bag(read, transform=hashed, keep=k, bounded=True)


_ZERO_AT = 2**40  # Bucket numbers start here and are positive, so that the sign can mark negative values.
_INFINITY, _NAN = 2**41, 2**42
_GREATEST = float.fromhex("0x1.fffffffffffffp+1023")


def _approx_quantile(q: float, error: float) -> Bag:
    """Return a DDSketch: buckets whose bounds grow by a factor, so that the values in a bucket are close.

    Zero, infinities and NaN have buckets of their own.
    """
    factor = (1 + error) / (1 - error)

    def bucket(value: pl.Expr) -> pl.Expr:
        value = value.cast(pl.Float64)
        is_number = value.is_finite() & (value != 0)
        size = pl.when(is_number).then(value.abs()).otherwise(1.0)
        number = (size.log() / math.log(factor)).ceil().cast(pl.Int64) + _ZERO_AT
        number = pl.when(value.is_infinite()).then(_INFINITY).when(value == 0).then(0).otherwise(number)
        number = pl.when(value < 0).then(-number).otherwise(number)
        return pl.when(value.is_nan()).then(_NAN).when(value.is_not_null()).then(number)

    def read(bag: pl.Expr) -> pl.Expr:
        number = _read_quantile(q)(bag)
        is_special = number.abs() >= _INFINITY
        exponent = (pl.when(is_special).then(_ZERO_AT).otherwise(number.abs()) - _ZERO_AT).cast(pl.Float64)
        size = (exponent * math.log(factor) + math.log(2 / (factor + 1))).exp().clip(upper_bound=_GREATEST)
        size = pl.when(is_special).then(float("inf")).when(number == 0).then(0.0).otherwise(size)
        signed = pl.when(number < 0).then(-size).otherwise(size)
        return pl.when(number == _NAN).then(float("nan")).when(number.is_not_null()).then(signed)

    return Bag(read, transform=bucket, bounded=True)


def _end_of_bag(function: Function) -> Bag:
    """Return a bag for the first, last, least or greatest value; if values may be retracted, all are needed."""
    order: Literal["value", "time"] = "value" if function in (Function.MIN, Function.MAX) else "time"
    if function in (Function.MIN, Function.FIRST):
        return Bag(lambda bag: _values(bag).list.first(), order=order)
    return Bag(lambda bag: _values(bag).list.last(), order=order, latest=True)


def bag_of(aggregate: Aggregate, changes: bool) -> Bag:
    """Return the bag that computes an aggregate, over rows that may be retracted or not."""
    argument, error = aggregate.argument or 0, aggregate.error or 0
    match aggregate.function:
        case Function.MIN | Function.MAX | Function.FIRST | Function.LAST:
            return _end_of_bag(aggregate.function)
        case Function.COLLECT:
            return Bag(_repeated, order="time")
        case Function.DISTINCT:
            return Bag(_read_distinct)
        case Function.QUANTILE:
            return Bag(_read_quantile(argument))
        case Function.TOP_K:
            return Bag(_read_top(int(argument)), order="weight")
        case Function.APPROX_DISTINCT:
            return _approx_distinct(error, changes)
        case Function.APPROX_QUANTILE:
            return _approx_quantile(argument, error)
        case Function.APPROX_TOP_K:
            # A count that was dropped cannot be reduced by a retraction, so all are kept over changes.
            keep = None if changes else math.ceil(1 / error)
            return Bag(_read_top(int(argument)), order="weight", keep=keep, bounded=keep is not None)
    raise InternalError(f"cannot compute {aggregate!r}: it has no fold")
