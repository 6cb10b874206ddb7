"""Aggregates as columns: a partial result is a few columns, computed from rows, merged with others, then finished.

There are two kinds. A `Fold` is expressions for one `group_by`; users can write their own (`CustomAggregate`). A
`Bag` keeps the values themselves with their weights, see `bags`.

Values are compared as Spark compares them: NaN equals NaN and is greater than every number, -0.0 equals 0.0, a
struct or array is compared field by field, and null is less than every value. Aggregates ignore nulls.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import polars as pl

from headwater.errors import InvalidError
from headwater.process.aggregates.aggregates import Aggregate, FoldInput, Function, Of, check_what
from headwater.process.aggregates.bags import Bag, bag_of
from headwater.process.aggregates.sums import SUM, DecimalSum, IntegerSum, could_overflow, sum_of

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
class _Extreme:
    """Min and max of values that are never retracted."""

    dtype: pl.DataType
    greatest: bool

    def partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        return {"v": self._of(row.value)}

    def merge(self, of: Of) -> Mapping[str, pl.Expr]:
        return {"v": self._of(of("v"))}

    def result(self, of: Of) -> pl.Expr:
        return of("v")

    def _of(self, values: pl.Expr) -> pl.Expr:
        if self.dtype.is_nested():
            ordered = values.drop_nulls().sort()
            return ordered.last() if self.greatest else ordered.first()
        if self.dtype.is_float() and self.greatest:
            return values.nan_max()  # `max` ignores NaN.
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


def fold_of(aggregate: Aggregate, dtype: pl.DataType, changes: bool) -> Fold | Bag:
    """Return the fold or bag that computes an aggregate over a column of this type."""
    function = aggregate.function
    match function:
        case Function.COUNT:
            return _Count(aggregate.column)
        case Function.SUM | Function.MEAN:
            return sum_of(dtype, is_mean=function is Function.MEAN, changes=changes)
        case Function.MIN | Function.MAX if not changes:
            return _Extreme(dtype, function is Function.MAX)
        case Function.FIRST | Function.LAST if not changes:
            return _FirstOrLast(function is Function.LAST)
        case _:
            return bag_of(aggregate, changes)


@dataclass(frozen=True, slots=True)
class Folds:
    """All aggregates of a computation; their partial results are columns of one frame."""

    names: tuple[str, ...]
    columns: tuple[str | None, ...]
    folds: tuple[Fold | Bag, ...]
    time: str
    change: str | None
    operator: str
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
        check_aggregates(operator, what, schema)
        folds: list[Fold | Bag] = []
        separate = []
        for aggregate in what.values():
            dtype = pl.Null() if aggregate.column is None else schema[aggregate.column]
            fold = aggregate
            if isinstance(aggregate, Aggregate):
                fold = fold_of(aggregate, dtype, change is not None)
            # Nested values cannot be part of a table's key.
            if isinstance(fold, Bag) and is_separate(fold) and not dtype.is_nested():
                separate.append(len(folds))
            folds.append(fold)
        columns = tuple(aggregate.column for aggregate in what.values())
        return cls(tuple(what), columns, tuple(folds), time, change, operator, tuple(separate))

    def partials(self, rows: pl.DataFrame, keys: Sequence[str], others: Sequence[pl.Expr]) -> pl.DataFrame:
        """Return one row for each key: the `others`, aggregated, and the partial results of its rows."""
        # -0.0 and 0.0 are one group, which is shown as 0.0.
        if zeros := {name: _with_one_zero(name) for name in keys if rows.schema[name].is_float()}:
            rows = rows.with_columns(**zeros)
        wide = self._wide_partials(rows)
        expressions = list(others)
        for number, fold in enumerate(self.folds):
            if not isinstance(fold, Bag):
                row = self._row(number)
                columns = wide[number].wide_partial(row) if number in wide else fold.partial(row)
                expressions += [e.alias(partial_column(number, name)) for name, e in columns.items()]
        groups = rows.group_by(*keys, maintain_order=True).agg(expressions)
        groups = self._narrow(groups, wide)
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
        wide = self._wide_merges(partials)
        expressions = list(others)
        for number, fold in enumerate(self.folds):
            if number in self.counted:
                expressions.append(pl.col(count_column(number)).sum())
            elif not isinstance(fold, Bag):
                of = _prefixed(number)
                merged = wide[number].wide_merge(of) if number in wide else fold.merge(of)
                expressions += [e.alias(partial_column(number, name)) for name, e in merged.items()]
        groups = partials.group_by(*keys, maintain_order=in_order).agg(expressions)
        groups = self._narrow(groups, wide)
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
        return tuple(n for n in self.separate if getattr(self.folds[n], "has_counter", False))

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
        if not isinstance(fold, Bag):
            return fold.result(_prefixed(number))
        if fold.is_count and number in self.separate:
            return pl.col(count_column(number)).fill_null(0)
        return fold.read(pl.col(bag_column(number)))

    def _row(self, number: int) -> FoldInput:
        column = self.columns[number]
        # The sum of a literal would not depend on the group's length, so this is a column of ones.
        weight = pl.col(self.change) if self.change is not None else pl.col(self.time).is_not_null()
        weight = weight.cast(pl.Int64)
        value = pl.col(self.time) if column is None else pl.col(column)
        return FoldInput(value, pl.col(self.time), weight, self.change is not None)

    def _wide_partials(self, rows: pl.DataFrame) -> dict[int, IntegerSum | DecimalSum]:
        """Return the sums by number that could overflow in these rows."""
        weights = None if self.change is None else rows.get_column(self.change)
        return {
            number: fold
            for number, fold in enumerate(self.folds)
            if isinstance(fold, IntegerSum | DecimalSum)
            and not fold.is_safe
            and could_overflow(fold, rows.get_column(self.columns[number] or self.time), weights)
        }

    def _wide_merges(self, partials: pl.DataFrame) -> dict[int, IntegerSum | DecimalSum]:
        """Return the sums by number that could overflow when these partial results are merged."""
        return {
            number: fold
            for number, fold in enumerate(self.folds)
            if isinstance(fold, IntegerSum | DecimalSum)
            and could_overflow(fold, partials.get_column(partial_column(number, SUM)))
        }

    def _narrow(self, groups: pl.DataFrame, wide: Mapping[int, IntegerSum | DecimalSum]) -> pl.DataFrame:
        for number, fold in wide.items():
            what = f"{self.operator}: {self.names[number]!r}, the sum of {self.columns[number]!r},"
            groups = fold.narrow(groups, partial(partial_column, number), what)
        return groups

    @staticmethod
    def _with_bag(
        groups: pl.DataFrame, number: int, bag: Bag, long: pl.DataFrame, keys: Sequence[str]
    ) -> pl.DataFrame:
        lists = bag.collect(long, keys).rename({"bag": bag_column(number)})
        return groups.join(lists, on=list(keys), how="left", nulls_equal=True, maintain_order="left")


def _with_one_zero(name: str) -> pl.Expr:
    return pl.when(pl.col(name) == 0).then(0.0).otherwise(pl.col(name))


def _prefixed(number: int) -> Of:
    return lambda name: pl.col(partial_column(number, name))


def check_aggregates(operator: str, what: Mapping[str, Any], schema: pl.Schema) -> None:
    """Raise an InvalidError if an aggregate cannot be computed over columns of this schema."""
    check_what(operator, what)
    for name, aggregate in what.items():
        column = aggregate.column
        if column is not None and column not in schema:
            raise InvalidError(
                f"{operator}: {name!r} needs the column {column!r}, which does not exist; "
                f"the columns are {', '.join(schema)}"
            )
        if column is not None and isinstance(aggregate, Aggregate):
            _check_type(operator, name, aggregate, schema[column])


def has_map(dtype: pl.DataType) -> bool:
    """Return True if a type is a map or contains one: maps have no order, and are not equal or different."""
    if isinstance(dtype, pl.Struct):
        return any(has_map(field.dtype) for field in dtype.fields)  # type: ignore[arg-type]
    if isinstance(dtype, pl.List | pl.Array):
        return has_map(dtype.inner)  # type: ignore[arg-type]
    return isinstance(dtype, pl.Map)


_NUMBERS = (Function.SUM, Function.MEAN, Function.APPROX_QUANTILE)


def _check_type(operator: str, name: str, aggregate: Aggregate, dtype: pl.DataType) -> None:
    what = f"{operator}: {name!r} is the {aggregate.function} of {aggregate.column!r}"
    if aggregate.function in _NUMBERS and not dtype.is_numeric():
        raise InvalidError(f"{what}, which is {dtype} and not a number")
    if aggregate.function is not Function.COUNT and has_map(dtype):
        raise InvalidError(
            f"{what}, which is {dtype}: maps cannot be compared; convert the column with F.map_entries first"
        )
