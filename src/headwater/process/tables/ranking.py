"""What depends on the order of a group's rows: the first n, the first or last of a key, a window over the last n.

The kernel remembers the rows of each group. Of a group that is touched it computes what it says before and
after, and what comes out is the difference. So rows can come in any order, and be taken back: whoever was
pushed out comes back. Rows that are equal in what they are ordered by stand in the order of their arrival.

Where nothing is ever taken back, the first n of a group are all that it needs to remember. Where rows are ordered
by their time and cannot be later than some lateness, a window over the last n needs those that are not older, and
n - 1 before them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.aggregates.folds import Folds
from headwater.process.changes import CHANGE_TYPE, ROW, as_changes, difference, ledger, listed, net, weighed
from headwater.process.kernel import BEGINNING, KernelStep, Now, State, behind
from headwater.process.table import Table
from headwater.process.tables.aggregate import check_columns
from headwater.process.tables.interval_join import EXPIRED, NO_TIME

_ROWS, _SEEN, _ALL, _TIME, _AT = "rows", "_seen", "_all", "_time", "_at"
_SETTLED = 2**62
"""The time of rows that are kept although they are old, for the windows of others."""


@dataclass(frozen=True, slots=True)
class RankOrder:
    """By which columns rows are ordered, and which of these from the greatest down; nulls come last.

    Of equal rows the one that came first is first; with `newest_first` the one that came last.
    """

    columns: tuple[str, ...] = ()
    descending: tuple[bool, ...] = ()
    newest_first: bool = False

    @classmethod
    def read(cls, text: str | Sequence[str]) -> "RankOrder":
        """Read `"price desc"`, or several of these."""
        columns, descending = [], []
        for part in [text] if isinstance(text, str) else text:
            name, _, direction = part.strip().rpartition(" ")
            if direction.lower() not in ("asc", "desc") or not name:
                name, direction = part.strip(), "asc"
            columns.append(name.strip())
            descending.append(direction.lower() == "desc")
        return cls(tuple(columns), tuple(descending))

    def sort(self, rows: pl.DataFrame, columns: Sequence[str], seen: str) -> pl.DataFrame:
        """Rows in this order, whose columns may have other names; `seen` says when each came."""
        down = [*self.descending, self.newest_first]
        return rows.sort(*columns, seen, descending=down, nulls_last=True)

    @property
    def reversed(self) -> "RankOrder":
        return RankOrder(self.columns, tuple(not down for down in self.descending), not self.newest_first)


@dataclass(frozen=True, slots=True)
class RankLateness:
    """How far behind the watermark the column `time` of a row may be, in microseconds."""

    time: str
    duration: int


class Selection(Protocol):
    """What is made of the rows of groups, which come in their order, each row as often as it is there."""

    def schema(self, columns: pl.Schema) -> pl.Schema: ...

    def of(self, rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame: ...

    @property
    def first(self) -> int | None:
        """How many rows of a group it looks at; None if at all."""
        ...


@dataclass(frozen=True, slots=True)
class Top:
    """The first n rows of each group; `rank` names a column for their number, from 1 on."""

    n: int
    rank: str | None = None

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidError(f"top: the number of rows is at least 1, not {self.n}")

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
    """Each row with what is computed of it and those before it in its group, `last` in all."""

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
        rows = rows.sort(*keys, maintain_order=True)  # A group's rows side by side.
        starts = rows.select(pl.int_range(pl.len()).over(keys))
        place = starts.to_series().to_numpy() if rows.height else np.zeros(0, dtype=np.int64)
        lengths = np.minimum(place + 1, self.last)
        windows = np.repeat(np.arange(rows.height), lengths)
        back = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        long = rows.select(pl.col(ROW).struct.unnest())[windows - back]
        long = long.with_columns(pl.Series("_window", windows), pl.Series(_TIME, windows - back, pl.Int64))
        results = self.folds.partials(long, ["_window"], []).sort("_window").select(self.folds.results())
        return pl.concat([rows.select(pl.col(ROW).struct.unnest()), results], how="horizontal")


@dataclass(frozen=True, slots=True)
class RankingKernel:
    """Applies a pick to the rows of each group; of all rows where `by` names nothing. Made by `of`."""

    by: tuple[str, ...]
    order: RankOrder
    pick: Selection
    schema: pl.Schema
    lateness: RankLateness | None = None

    @classmethod
    def top(
        cls, n: int, by: Sequence[str], order: RankOrder, schema: pl.Schema, rank: str | None = None
    ) -> "RankingKernel":
        """The first n rows of each group."""
        schema = pl.Schema(schema)
        if rank is not None and rank in schema:
            raise InvalidError(f"top: {rank} would be there twice; give the rank another name")
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
        """Each row with aggregates of the last rows of its group.

        With `lateness` the order begins with its time, and rows that are later are in the late ledger.
        """
        schema = pl.Schema(schema)
        if not 1 <= last <= 1000:
            raise InvalidError(f"rolling: `last` is from 1 to 1000 rows, not {last}")
        if clash := [name for name in what if name in schema]:
            raise InvalidError(f"rolling: {listed(clash)} would be there twice; rename it in `what`")
        pick = Rolling(last, what, Folds.of(what, schema, _TIME, None, operator="rolling"))
        return cls._of("rolling", by, order, pick, schema, lateness)

    @classmethod
    def _of(
        cls,
        what: str,
        by: Sequence[str],
        order: RankOrder,
        pick: Selection,
        schema: pl.Schema,
        lateness: RankLateness | None = None,
    ) -> "RankingKernel":
        check_columns(what, (*by, *order.columns), schema)
        return cls(tuple(by), order, pick, schema, lateness)

    @property
    def output_schema(self) -> pl.Schema:
        return pl.Schema({**self.pick.schema(self._columns), CHANGE: CHANGE_TYPE})

    def initial(self) -> State:
        keys = {name: self.schema.get(name, pl.Boolean()) for name in self._keys}
        columns = {**keys, ROW: pl.Struct(self._columns), _SEEN: pl.Int64(), CHANGE: pl.Int64()}
        columns |= {} if self.lateness is None else {_AT: pl.Int64()}
        return {_ROWS: Table.empty(pl.Schema(columns), (*keys, ROW), tuple(keys))}

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        """Without the rows that others of their group, which came with them, keep from ever counting."""
        if CHANGE in self.schema or self.pick.first is None:
            return rows
        numbered = rows.select({*self.by, *self.order.columns}).with_row_index(_SEEN)
        ordered = self.order.sort(numbered, self.order.columns, _SEEN)
        place = pl.int_range(pl.len())
        first = ordered.filter((place.over(self.by) if self.by else place) < self.pick.first)
        return rows[first.get_column(_SEEN).sort()]

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        table, late = state[_ROWS], None
        came = weighed(rows).with_columns(pl.struct(list(self._columns)).alias(ROW))
        if self.lateness is not None:
            came, late = self._on_time(came, now.watermark)
        came = came if self.by else came.with_columns(pl.lit(True).alias(_ALL))
        before = table.get(came.select(self._keys).unique())
        last = before.get_column(_SEEN).max()
        start = last + 1 if isinstance(last, int) else 0
        came = came.with_columns(pl.int_range(start, start + pl.len()).alias(_SEEN))
        seen = pl.col(_SEEN).max() if self.order.newest_first else pl.col(_SEEN).min()
        both = pl.concat([before, came.select(before.columns)])
        times = [] if self.lateness is None else [pl.col(_AT).max()]
        after = both.group_by(table.key, maintain_order=True).agg(seen, pl.col(CHANGE).sum(), *times)
        stays = after.filter(pl.col(CHANGE) != 0).select(before.columns)
        if CHANGE not in self.schema and self.pick.first is not None:
            stays = self._first(stays, self.pick.first)
        gone = before.join(stays, on=table.key, how="anti", nulls_equal=True).select(table.key)
        table = table.put(stays.join(before, on=before.columns, how="anti", nulls_equal=True))
        table = table.drop(gone) if gone.height else table
        changes = as_changes(difference(self._picked(stays), self._picked(before)))
        evicted = 0
        if self.lateness is not None:
            table, evicted = self._forget(table, now.watermark)
        counters = {"late": 0 if late is None else late.height, "evicted": evicted}
        return KernelStep({_ROWS: table}, changes.select(self.output_schema.names()), late=late, counters=counters)

    def _on_time(self, came: pl.DataFrame, watermark: int) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """Rows with their time in `_at`; and those that are too late, or have none, as the ledger has them."""
        assert self.lateness is not None
        came = came.with_columns(pl.col(self.lateness.time).cast(pl.Int64).alias(_AT))
        known, is_late = pl.col(_AT).is_not_null(), pl.col(_AT) < behind(watermark, self.lateness.duration)
        timeless, expired = came.filter(~known), came.filter(known & is_late)
        if not timeless.height and not expired.height:
            return came, None
        row = pl.col(ROW)
        told = [ledger(timeless, row, NO_TIME), ledger(expired, row, EXPIRED, pl.col(_AT), watermark)]
        return came.filter(known & ~is_late), pl.concat(told)

    def _forget(self, table: Table, watermark: int) -> tuple[Table, int]:
        """Let go of rows that are too old to change and too far back for a window of those that are not."""
        assert self.lateness is not None and isinstance(self.pick, Rolling)
        horizon = behind(watermark, self.lateness.duration)
        due = table.up_to(_AT, horizon - 1) if horizon > BEGINNING else table.fresh.clear()
        if not due.height:
            return table, 0
        time = pl.col(ROW).struct.field(self.lateness.time).cast(pl.Int64)
        old = self._ordered(table.get(due.select(self._keys).unique()).filter(time < horizon))
        # What was to be taken back and never came does not count.
        there = pl.col(CHANGE).clip(0)
        behind_it = (there.sum() - there.cum_sum()).over(self._keys)
        is_needed = (there > 0) & (behind_it < self.pick.last - 1)
        gone = old.filter(~is_needed)
        table = table.put(old.filter(is_needed).with_columns(pl.lit(_SETTLED).alias(_AT)))
        return (table.drop(gone.select(table.key)) if gone.height else table), gone.height

    @property
    def _columns(self) -> pl.Schema:
        return pl.Schema({name: kind for name, kind in self.schema.items() if name != CHANGE})

    @property
    def _keys(self) -> list[str]:
        return list(self.by) or [_ALL]

    def _ordered(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows of each group in their order."""
        columns = [pl.col(ROW).struct.field(name).alias(f"_o{n}") for n, name in enumerate(self.order.columns)]
        named = rows.with_columns(columns)
        by = [f"_o{n}" for n in range(len(columns))]
        return self.order.sort(named, by, _SEEN).drop(by)

    def _first(self, rows: pl.DataFrame, n: int) -> pl.DataFrame:
        before = (pl.col(CHANGE).cum_sum() - pl.col(CHANGE)).over(self._keys)
        return self._ordered(rows).filter(before < n)

    def _picked(self, rows: pl.DataFrame) -> pl.DataFrame:
        ordered = self._ordered(rows.filter(pl.col(CHANGE) > 0))
        weights = ordered.get_column(CHANGE).to_numpy()
        if len(weights) and weights.max() > 1:
            ordered = ordered[np.repeat(np.arange(len(weights)), weights)]
        return net(weighed(self.pick.of(ordered, self._keys)))
