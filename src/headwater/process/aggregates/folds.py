"""Aggregates as columns: a partial result is a few columns, computed from rows, merged with others, then finished.

There are two kinds. A `Fold` is expressions for one `group_by`; users can write their own (`CustomAggregate`). A
`Bag` keeps the values themselves with their weights, in a list column. It is for aggregates that need all values
(quantiles), or must be able to remove values when the input retracts rows (a maximum over changes).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import polars as pl

from headwater.errors import InternalError, InvalidError
from headwater.process.aggregates.aggregates import Aggregate, FoldInput, Function, Of, check_aggregate

_PARTIAL = re.compile(r"_a\d+_")


def partial_column(number: int, name: str) -> str:
    """Return the name of a column of the partial result of aggregate `number`; part of a checkpoint."""
    return f"_a{number}_{name}"


def bag_column(number: int) -> str:
    """Return the name of the column with the values of aggregate `number`."""
    return partial_column(number, "bag")


def count_column(number: int) -> str:
    """Return the name of the column with the count of aggregate `number`, whose values are in a table."""
    return partial_column(number, "n")


def is_partial(column: str) -> bool:
    """Return True if a column is part of a partial result."""
    return _PARTIAL.match(column) is not None


class Fold(Protocol):
    """An aggregate as expressions for one `group_by`: `CustomAggregate` without its column."""

    def partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        """Return the columns of a partial result of a group of rows, by name."""
        ...

    def merge(self, of: Of) -> Mapping[str, pl.Expr]:
        """Return the columns of one partial result of several, under the same names."""
        ...

    def result(self, of: Of) -> pl.Expr:
        """Return the result of one partial result."""
        ...


@dataclass(frozen=True, slots=True)
class _Count:
    column: str | None

    def partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        if self.column is None:
            return {"n": row.weight.sum()}
        if not row.changes:
            return {"n": row.value.count().cast(pl.Int64)}
        return {"n": row.weight.filter(row.value.is_not_null()).sum()}

    def merge(self, of: Of) -> Mapping[str, pl.Expr]:
        return {"n": of("n").sum()}

    def result(self, of: Of) -> pl.Expr:
        return of("n").fill_null(0)


@dataclass(frozen=True, slots=True)
class _Sum:
    """Sum and mean: the total, and the number of values."""

    dtype: pl.DataType
    is_mean: bool

    def partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        value = row.value
        if not isinstance(self.dtype, pl.Decimal):
            value = value.cast(pl.Int64 if self.dtype.is_integer() and not self.is_mean else pl.Float64)
        if not row.changes:
            return {"sum": value.sum(), "n": value.count().cast(pl.Int64)}
        weights = row.weight.filter(row.value.is_not_null())
        return {"sum": (value * row.weight).sum(), "n": weights.sum()}

    def merge(self, of: Of) -> Mapping[str, pl.Expr]:
        return {"sum": of("sum").sum(), "n": of("n").sum()}

    def result(self, of: Of) -> pl.Expr:
        total = of("sum").cast(pl.Float64) / of("n") if self.is_mean else of("sum")
        return pl.when(of("n") > 0).then(total)


@dataclass(frozen=True, slots=True)
class _Extreme:
    """Min and max of values that are never retracted."""

    greatest: bool

    def partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        return {"v": self._of(row.value)}

    def merge(self, of: Of) -> Mapping[str, pl.Expr]:
        return {"v": self._of(of("v"))}

    def result(self, of: Of) -> pl.Expr:
        return of("v")

    def _of(self, values: pl.Expr) -> pl.Expr:
        return values.max() if self.greatest else values.min()


@dataclass(frozen=True, slots=True)
class _FirstOrLast:
    """First and last by event time, of values that are never retracted."""

    latest: bool

    def partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        return self._pick(row.value, row.time)

    def merge(self, of: Of) -> Mapping[str, pl.Expr]:
        return self._pick(of("v"), of("t"))

    def result(self, of: Of) -> pl.Expr:
        return of("v")

    def _pick(self, value: pl.Expr, time: pl.Expr) -> Mapping[str, pl.Expr]:
        there = value.is_not_null()
        end = time.filter(there).max() if self.latest else time.filter(there).min()
        candidates = value.filter(there & (time == end))
        return {"v": candidates.last() if self.latest else candidates.first(), "t": end}


_VALUE, _WEIGHT = pl.element().struct.field("v"), pl.element().struct.field("w")


@dataclass(frozen=True, slots=True)
class Bag:
    """Values with weights, as a list of structs in a column. A value whose weights add up to 0 is removed.

    `transform` is applied to each value before it is kept. The list is sorted by `order`. `keep` limits the number
    of values: the least ones if sorted by value, else the most frequent, whose counts are then reduced by the
    count of the first one left out. A bag that is not `bounded` may grow with its window, so its values can be
    kept in a table of their own, see `exact_values`.
    """

    read: Callable[[pl.Expr], pl.Expr]
    transform: Callable[[pl.Expr], pl.Expr] | None = None
    order: Literal["value", "time", "weight"] = "value"
    keep: int | None = None
    bounded: bool = False

    @property
    def is_count(self) -> bool:
        """True if the result is only the number of values."""
        return self.read is _read_distinct

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
        summed = there.group_by(*keys, *self.fields, maintain_order=True).agg(pl.col("w").sum())
        summed = summed.filter(pl.col("w") != 0)
        match self.order:
            case "value":
                summed = summed.sort("v", maintain_order=True)
            case "time":
                summed = summed.sort("t", maintain_order=True)
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
    # Subtract 1e-9 because a product such as 0.07 * 100 is slightly more than 7, which would require one more
    # value.
    reached = _positive(_WEIGHT).cum_sum() >= _positive(_WEIGHT).sum() * q - 1e-9
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


def _approx_quantile(q: float, error: float) -> Bag:
    """Return a DDSketch: buckets whose bounds grow by a factor, so that the values in a bucket are close."""
    factor = (1 + error) / (1 - error)

    def bucket(value: pl.Expr) -> pl.Expr:
        value = value.cast(pl.Float64)
        number = (value.abs().log() / math.log(factor)).ceil().cast(pl.Int64, strict=False) + _ZERO_AT
        return pl.when(value == 0).then(0).otherwise(number * value.sign().cast(pl.Int64, strict=False))

    def read(bag: pl.Expr) -> pl.Expr:
        number = _read_quantile(q)(bag)
        exponent = (number.abs() - _ZERO_AT).cast(pl.Float64)
        value = 2 * (exponent * math.log(factor)).exp() / (factor + 1) * number.sign()
        return pl.when(number == 0).then(0.0).otherwise(value)

    return Bag(read, transform=bucket, bounded=True)


def fold_of(aggregate: Aggregate, dtype: pl.DataType, changes: bool) -> Fold | Bag:
    """Return the fold or bag that computes an aggregate over a column of this type."""
    function = aggregate.function
    is_end = function in (Function.MIN, Function.MAX, Function.FIRST, Function.LAST)
    match function:
        case Function.COUNT:
            return _Count(aggregate.column)
        case Function.SUM | Function.MEAN:
            return _Sum(dtype, function is Function.MEAN)
        case Function.MIN | Function.MAX if not changes:
            return _Extreme(function is Function.MAX)
        case Function.FIRST | Function.LAST if not changes:
            return _FirstOrLast(function is Function.LAST)
        case _ if is_end:
            return _end_of_bag(function)
        case _:
            return _bag_of(aggregate, changes)


def _end_of_bag(function: Function) -> Bag:
    """Return a bag for the first, last, least or greatest value; if values may be retracted, all are needed."""
    order: Literal["value", "time"] = "value" if function in (Function.MIN, Function.MAX) else "time"
    if function in (Function.MIN, Function.FIRST):
        return Bag(lambda bag: _values(bag).list.first(), order=order)
    return Bag(lambda bag: _values(bag).list.last(), order=order)


def _bag_of(aggregate: Aggregate, changes: bool) -> Bag:
    argument, error = aggregate.argument or 0, aggregate.error or 0
    match aggregate.function:
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


@dataclass(frozen=True, slots=True)
class Folds:
    """All aggregates of a computation; their partial results are columns of one frame."""

    names: tuple[str, ...]
    columns: tuple[str | None, ...]
    folds: tuple[Fold | Bag, ...]
    time: str
    change: str | None
    separate: tuple[int, ...] = ()
    """The numbers of the aggregates whose values are in a table of their own, see `exact_values`."""

    @classmethod
    def of(
        cls,
        what: Mapping[str, Any],
        schema: pl.Schema,
        time: str,
        change: str | None,
        *,
        operator: str,
        is_separate: Callable[[Bag], bool] = lambda _: False,
    ) -> "Folds":
        """Build the folds for rows of this schema; `is_separate` selects bags that get a table of their own.

        `operator` names the operator in error messages.
        """
        folds: list[Fold | Bag] = []
        separate = []
        for name, aggregate in what.items():
            check_aggregate(operator, name, aggregate)
            column = aggregate.column
            if column is not None and column not in schema:
                raise InvalidError(
                    f"{operator}: {name!r} needs the column {column!r}, which does not exist; "
                    f"the columns are {', '.join(schema)}"
                )
            dtype = pl.Null() if column is None else schema[column]
            fold = aggregate
            if isinstance(aggregate, Aggregate):
                _check_type(operator, name, aggregate, dtype)
                fold = fold_of(aggregate, dtype, change is not None)
            # Nested values cannot be part of a table's key.
            if isinstance(fold, Bag) and is_separate(fold) and not dtype.is_nested():
                separate.append(len(folds))
            folds.append(fold)
        return cls(
            tuple(what), tuple(a.column for a in what.values()), tuple(folds), time, change, tuple(separate)
        )

    def partials(self, rows: pl.DataFrame, keys: Sequence[str], others: Sequence[pl.Expr]) -> pl.DataFrame:
        """Return one row for each key: the `others`, aggregated, and the partial results of its rows."""
        expressions = list(others)
        for number, fold in enumerate(self.folds):
            if not isinstance(fold, Bag):
                partial = fold.partial(self._row(number))
                expressions += [e.alias(partial_column(number, name)) for name, e in partial.items()]
        groups = rows.group_by(*keys, maintain_order=True).agg(expressions)
        for number, fold in enumerate(self.folds):
            if isinstance(fold, Bag):
                long = rows.select(*keys, *fold.of_rows(self._row(number)))
                groups = self._with_bag(groups, number, fold, long, keys)
        return groups

    def merge(
        self, partials: pl.DataFrame, keys: Sequence[str], others: Sequence[pl.Expr], *, in_order: bool = True
    ) -> pl.DataFrame:
        """Return one row for each key: the `others`, aggregated, and its partial results merged into one.

        With `in_order`, the keys are in the order of their first rows.
        """
        expressions = list(others)
        for number, fold in enumerate(self.folds):
            if number in self.counted:
                expressions.append(pl.col(count_column(number)).sum())
            elif not isinstance(fold, Bag):
                merged = fold.merge(_prefixed(number))
                expressions += [e.alias(partial_column(number, name)) for name, e in merged.items()]
        groups = partials.group_by(*keys, maintain_order=in_order).agg(expressions)
        for number, fold in enumerate(self.folds):
            if number in self.separate:
                continue
            if isinstance(fold, Bag):
                bags = partials.select(*keys, bag_column(number)).explode(bag_column(number))
                groups = self._with_bag(groups, number, fold, bags.unnest(bag_column(number)), keys)
        return groups

    def results(self) -> list[pl.Expr]:
        """Return the results of partial results, under the names of the aggregates."""
        return [self._result(n).alias(name) for n, name in enumerate(self.names)]

    @property
    def counted(self) -> tuple[int, ...]:
        """The numbers of the aggregates with a separate table of which a count is kept in the row."""
        return tuple(n for n in self.separate if getattr(self.folds[n], "is_count", False))

    @property
    def zero_counts(self) -> list[pl.Expr]:
        """The columns of these counts, with the value 0."""
        return [pl.lit(0, pl.Int64).alias(count_column(n)) for n in self.counted]

    @property
    def separate_lists(self) -> list[str]:
        """The list columns whose values move to separate tables, so that rows do not keep them."""
        return [bag_column(n) for n in self.separate]

    def _result(self, number: int) -> pl.Expr:
        fold = self.folds[number]
        if number in self.counted:
            return pl.col(count_column(number)).fill_null(0)
        return fold.read(pl.col(bag_column(number))) if isinstance(fold, Bag) else fold.result(_prefixed(number))

    def _row(self, number: int) -> FoldInput:
        column = self.columns[number]
        # The sum of a literal would not depend on the group's length, so this is a column of ones.
        weight = pl.col(self.change) if self.change is not None else pl.col(self.time).is_not_null()
        weight = weight.cast(pl.Int64)
        value = pl.col(self.time) if column is None else pl.col(column)
        return FoldInput(value, pl.col(self.time), weight, self.change is not None)

    @staticmethod
    def _with_bag(
        groups: pl.DataFrame, number: int, bag: Bag, long: pl.DataFrame, keys: Sequence[str]
    ) -> pl.DataFrame:
        lists = bag.collect(long, keys).rename({"bag": bag_column(number)})
        return groups.join(lists, on=list(keys), how="left", nulls_equal=True, maintain_order="left")


def _prefixed(number: int) -> Of:
    return lambda name: pl.col(partial_column(number, name))


def _check_type(operator: str, name: str, aggregate: Aggregate, dtype: pl.DataType) -> None:
    needs_number = aggregate.function in (Function.SUM, Function.MEAN, Function.APPROX_QUANTILE)
    if needs_number and not dtype.is_numeric():
        raise InvalidError(
            f"{operator}: {name!r} is the {aggregate.function} of {aggregate.column!r}, "
            f"which is {dtype} and not a number"
        )
