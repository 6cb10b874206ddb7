"""Rankings: results that depend on the order of a group's rows.

These are the first n rows, the first or last row of a key, and aggregates over the last n rows. The kernel keeps
the rows of each group. For a group with changes, it computes the result before and after, and emits the
difference. So rows can arrive in any order and be retracted: a row that had been displaced is emitted again. Rows
that are equal in the columns of the order are in the order of their arrival; a row that is inserted several times
is where it was inserted first. A row that is retracted and inserted again arrives again, in one batch or in two.

If rows are never retracted, only the first n rows of a group are kept. If rows are ordered by their time and have
a limited lateness, an aggregate over the last n rows needs the rows within the lateness, and the n - 1 before
them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.aggregates.aggregates import check_what
from headwater.process.aggregates.folds import Folds
from headwater.process.changes import (
    CHANGE_TYPE,
    ROW,
    as_changes,
    difference,
    join_names,
    split_late,
    with_weights,
)
from headwater.process.kernel import BEGINNING, KernelStep, Now, State, time_before
from headwater.process.table import Table
from headwater.process.tables.aggregate import check_columns

_ROWS, _SEEN, _ALL, _TIME, _AT = "rows", "_seen", "_all", "_time", "_at"
_SETTLED = 2**62
"""The time of rows that are kept although they are old, because later rows are aggregated with them."""


_PART = re.compile(
    r"(?P<name>.+?)(\s+(?P<way>asc|desc))?(\s+nulls\s+(?P<nulls>first|last))?", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class RankOrder:
    """The columns that rows are ordered by, each ascending or descending, with nulls first or last.

    As in Spark, nulls are first if ascending and last if descending, unless the order says otherwise; NaN is
    greater than every number. Of rows that are equal in these columns, the one that arrived first is first; with
    `newest_first`, the one that arrived last. Rows that are equal in all columns are next to each other.
    """

    columns: tuple[str, ...] = ()
    descending: tuple[bool, ...] = ()
    newest_first: bool = False
    nulls_last: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if len(self.nulls_last) < len(self.columns):
            object.__setattr__(self, "nulls_last", self.descending)

    @classmethod
    def read(cls, text: str | Sequence[str]) -> "RankOrder":
        """Parse an order, such as `"price desc"` or `"price desc nulls first"`, or a list of these."""
        columns, descending, nulls_last = [], [], []
        for part in [text] if isinstance(text, str) else text:
            found = _PART.fullmatch(part.strip()) if isinstance(part, str) else None
            if found is None:
                raise InvalidError(f"an order names columns, such as 'price desc nulls last', not {part!r}")
            columns.append(found["name"])
            descending.append((found["way"] or "").lower() == "desc")
            nulls_last.append(found["nulls"].lower() == "last" if found["nulls"] else descending[-1])
        return cls(tuple(columns), tuple(descending), nulls_last=tuple(nulls_last))

    @property
    def texts(self) -> list[str]:
        """The order of each column, as it is kept with a checkpoint.

        Null order is left out where it is last, because that was the order of checkpoints without it.
        """
        parts = zip(self.columns, self.descending, self.nulls_last, strict=True)
        return [f"{name}{' desc' if down else ''}{'' if last else ' nulls first'}" for name, down, last in parts]

    def sort(self, rows: pl.DataFrame, columns: Sequence[str], seen: str) -> pl.DataFrame:
        """Sort rows, whose columns may have other names; `seen` is the column with the order of arrival."""
        down, last = [*self.descending, self.newest_first], [*self.nulls_last, True]
        return rows.sort(*columns, seen, descending=down, nulls_last=last)

    @property
    def reversed(self) -> "RankOrder":
        """The exact reverse: the last row is the first."""
        return RankOrder(
            self.columns,
            tuple(not down for down in self.descending),
            not self.newest_first,
            tuple(not last for last in self.nulls_last),
        )


@dataclass(frozen=True, slots=True)
class RankLateness:
    """The time, in microseconds, by which the column `time` of a row may be older than the watermark."""

    time: str
    duration: int


class Selection(Protocol):
    """A function of the rows of each group, which are in their order, each as often as it was inserted."""

    def schema(self, columns: pl.Schema) -> pl.Schema:
        """Return the schema of the result for rows with these columns."""
        ...

    def of(self, rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        """Compute the result."""
        ...

    @property
    def first(self) -> int | None:
        """Number of rows of a group that it needs; None for all."""
        ...


@dataclass(frozen=True, slots=True)
class Top:
    """The first n rows of each group; `rank` names a column for their rank, which starts at 1."""

    n: int
    rank: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or self.n < 1:
            raise InvalidError(f"top: the number of rows must be 1 or more, not {self.n!r}")

    @property
    def first(self) -> int | None:
        return self.n

    def schema(self, columns: pl.Schema) -> pl.Schema:
        return pl.Schema({**columns, **({} if self.rank is None else {self.rank: pl.Int64()})})

    def of(self, rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        number = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(keys)
        ranked = rows.with_columns(number.alias("_number")).filter(pl.col("_number") <= self.n)
        rank = [] if self.rank is None else [pl.col("_number").alias(self.rank)]
        return ranked.select(pl.col(ROW).struct.unnest(), *rank)


@dataclass(frozen=True, slots=True)
class Rolling:
    """Each row with aggregates of it and the rows before it in its group, `last` rows in all."""

    last: int
    what: Mapping[str, Any]
    folds: Folds

    @property
    def first(self) -> int | None:
        return None

    def schema(self, columns: pl.Schema) -> pl.Schema:
        nothing = pl.DataFrame(schema={ROW: pl.Struct(columns), _ALL: pl.Boolean})
        return self.of(nothing, [_ALL]).schema

    def of(self, rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        rows = rows.sort(*keys, maintain_order=True)  # The rows of a group are now adjacent.
        positions = rows.select(pl.int_range(pl.len()).over(keys)).to_series()
        position = positions.to_numpy() if rows.height else np.zeros(0, dtype=np.int64)
        lengths = np.minimum(position + 1, self.last)
        windows = np.repeat(np.arange(rows.height), lengths)
        back = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        long = rows.select(pl.col(ROW).struct.unnest())[windows - back]
        long = long.with_columns(pl.Series("_window", windows), pl.Series(_TIME, windows - back, pl.Int64))
        results = self.folds.partials(long, ["_window"], []).sort("_window").select(self.folds.results())
        return pl.concat([rows.select(pl.col(ROW).struct.unnest()), results], how="horizontal")


@dataclass(frozen=True, slots=True)
class RankingKernel:
    """Applies a selection to the rows of each group, or to all rows if `by` is empty.

    Created by `top` or `rolling`.
    """

    by: tuple[str, ...]
    order: RankOrder
    selection: Selection
    schema: pl.Schema
    lateness: RankLateness | None = None

    @classmethod
    def top(
        cls, n: int, by: Sequence[str], order: RankOrder, schema: pl.Schema, rank: str | None = None
    ) -> "RankingKernel":
        """Build a kernel for the first n rows of each group."""
        schema = pl.Schema(schema)
        if rank is not None and rank in schema:
            raise InvalidError(f"top: the rows already have a column {rank!r}; give the rank another name")
        return cls._of("top", by, order, Top(n, rank), schema)

    @classmethod
    def rolling(
        cls,
        last: int,
        what: Mapping[str, Any],
        by: Sequence[str],
        order: RankOrder,
        schema: pl.Schema,
        lateness: RankLateness | None = None,
    ) -> "RankingKernel":
        """Build a kernel for aggregates over the last rows of each group.

        With `lateness`, the order must begin with its time, and later rows go to the late ledger.
        """
        schema = pl.Schema(schema)
        if not isinstance(last, int) or not 1 <= last <= 1000:
            raise InvalidError(f"rolling: `last` must be from 1 to 1000 rows, not {last!r}")
        check_what("rolling", what)
        if clash := [name for name in what if name in schema]:
            raise InvalidError(
                f"rolling: the result would have two columns {join_names(clash)}; rename one in `what`"
            )
        selection = Rolling(last, what, Folds.of(what, schema, _TIME, None, operator="rolling"))
        return cls._of("rolling", by, order, selection, schema, lateness)

    @classmethod
    def _of(
        cls,
        what: str,
        by: Sequence[str],
        order: RankOrder,
        selection: Selection,
        schema: pl.Schema,
        lateness: RankLateness | None = None,
    ) -> "RankingKernel":
        check_columns(what, (*by, *order.columns), schema)
        return cls(tuple(by), order, selection, schema, lateness)

    @property
    def output_schema(self) -> pl.Schema:
        return pl.Schema({**self.selection.schema(self._columns), CHANGE: CHANGE_TYPE})

    def initial(self) -> State:
        keys = {name: self.schema.get(name, pl.Boolean()) for name in self._keys}
        columns = {**keys, ROW: pl.Struct(self._columns), _SEEN: pl.Int64(), CHANGE: pl.Int64()}
        columns |= {} if self.lateness is None else {_AT: pl.Int64()}
        return {_ROWS: Table.empty(pl.Schema(columns), (*keys, ROW), tuple(keys))}

    @property
    def is_timeless(self) -> bool:
        return self.lateness is None

    def retracts(self, changes: bool) -> bool:
        # In the order of arrival, no later row displaces one that was emitted.
        return changes or bool(self.order.columns) or self.order.newest_first

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        """Drop rows that can never be among the first, because enough rows of the same batch precede them."""
        if CHANGE in self.schema or self.selection.first is None:
            return rows
        columns = self.order.columns
        numbered = rows.select({*self.by, *columns}).with_row_index(_SEEN)
        ordered = self.order.sort(numbered, columns, _SEEN)
        place = self._position
        if self.selection.first > 1:
            # A row may be equal to one that is kept, and is then before others with the same order. So it counts
            # only how many rows precede it by the columns of the order.
            is_equal = pl.all_horizontal(pl.lit(True), *(_equals_previous(name) for name in columns))
            is_equal = is_equal.over(self.by) if self.by else is_equal
            start = pl.when(~is_equal | (place == 0)).then(place).forward_fill()
            place = start.over(self.by) if self.by else start
        first = ordered.filter(place < self.selection.first)
        return rows[first.get_column(_SEEN).sort()]

    @property
    def _position(self) -> pl.Expr:
        """The number of a row in its group, from 0."""
        return pl.int_range(pl.len()).over(self.by) if self.by else pl.int_range(pl.len())

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        table, late = state[_ROWS], None
        arrived = with_weights(rows).with_columns(pl.struct(list(self._columns)).alias(ROW))
        if self.lateness is not None:
            arrived, late = self._split_late(arrived, now.watermark)
        arrived = arrived if self.by else arrived.with_columns(pl.lit(True).alias(_ALL))
        before = table.get(arrived.select(self._keys).unique())
        last = before.get_column(_SEEN).max()
        start = last + 1 if isinstance(last, int) else 0
        arrived = arrived.with_columns(pl.int_range(start, start + pl.len()).alias(_SEEN))
        if self.order.newest_first:
            seen = pl.col(_SEEN).filter(pl.col(CHANGE) > 0).max().fill_null(start)
        else:
            seen = self._first_seen
        both = pl.concat([before, arrived.select(before.columns)])
        times = [] if self.lateness is None else [pl.col(_AT).max()]
        after = both.group_by(table.key, maintain_order=True).agg(seen, pl.col(CHANGE).sum(), *times)
        kept = after.filter(pl.col(CHANGE) != 0).select(before.columns)
        if CHANGE not in self.schema and self.selection.first is not None:
            kept = self._first(kept, self.selection.first)
        gone = before.join(kept, on=table.key, how="anti", nulls_equal=True)
        table = table.put(kept.join(before, on=before.columns, how="anti", nulls_equal=True))
        table = table.remove(gone)
        changes = as_changes(difference(self._result(kept), self._result(before)))
        evicted = 0
        if self.lateness is not None:
            table, evicted = self._forget(table, now.watermark)
        counters = {"late": 0 if late is None else late.height, "evicted": evicted}
        return KernelStep({_ROWS: table}, changes.select(self.output_schema.names()), late=late, counters=counters)

    @property
    def _first_seen(self) -> pl.Expr:
        """The arrival of a row's first change since it was last absent, whatever the cut into batches."""
        if CHANGE not in self.schema:
            return pl.col(_SEEN).min()
        is_absent = pl.col(CHANGE).cum_sum() == 0
        return pl.col(_SEEN).filter(is_absent.cum_sum(reverse=True) == 0).min()

    def _split_late(self, rows: pl.DataFrame, watermark: int) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """Return the rows on time with their time in `_at`, and the others as entries of the late ledger."""
        assert self.lateness is not None
        rows = rows.with_columns(pl.col(self.lateness.time).cast(pl.Int64).alias(_AT))
        is_late = pl.col(_AT) < time_before(watermark, self.lateness.duration)
        return split_late(rows, pl.col(ROW), _AT, is_late, watermark)

    def _forget(self, table: Table, watermark: int) -> tuple[Table, int]:
        """Delete rows that are too old to change, and not among the last rows of one that is not."""
        assert self.lateness is not None and isinstance(self.selection, Rolling)
        horizon = time_before(watermark, self.lateness.duration)
        due = table.up_to(_AT, horizon - 1) if horizon > BEGINNING else table.fresh.clear()
        if not due.height:
            return table, 0
        time = pl.col(ROW).struct.field(self.lateness.time).cast(pl.Int64)
        old = self._sort(table.get(due.select(self._keys).unique()).filter(time < horizon))
        # Rows that were retracted and never inserted do not count.
        weight = pl.col(CHANGE).clip(0)
        later_rows = (weight.sum() - weight.cum_sum()).over(self._keys)
        is_needed = (weight > 0) & (later_rows < self.selection.last - 1)
        gone = old.filter(~is_needed)
        table = table.put(old.filter(is_needed).with_columns(pl.lit(_SETTLED).alias(_AT)))
        return table.remove(gone), gone.height

    @property
    def _columns(self) -> pl.Schema:
        return pl.Schema({name: kind for name, kind in self.schema.items() if name != CHANGE})

    @property
    def _keys(self) -> list[str]:
        return list(self.by) or [_ALL]

    def _sort(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Sort rows by the order."""
        columns = [pl.col(ROW).struct.field(name).alias(f"_o{n}") for n, name in enumerate(self.order.columns)]
        named = rows.with_columns(columns)
        by = [f"_o{n}" for n in range(len(columns))]
        return self.order.sort(named, by, _SEEN).drop(by)

    def _first(self, rows: pl.DataFrame, n: int) -> pl.DataFrame:
        before = (pl.col(CHANGE).cum_sum() - pl.col(CHANGE)).over(self._keys)
        return self._sort(rows).filter(before < n)

    def _result(self, rows: pl.DataFrame) -> pl.DataFrame:
        ordered = self._sort(rows.filter(pl.col(CHANGE) > 0))
        weights = ordered.get_column(CHANGE).to_numpy()
        if len(weights) and weights.max() > 1:
            ordered = ordered[np.repeat(np.arange(len(weights)), weights)]
        return with_weights(self.selection.of(ordered, self._keys))


def _equals_previous(name: str) -> pl.Expr:
    return pl.col(name).eq_missing(pl.col(name).shift())
