"""Intake: combine rows by window, and merge them into the table of windows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from headwater.change import CHANGE
from headwater.process.aggregates.folds import Folds
from headwater.process.kernel import BEGINNING, Now
from headwater.process.table import HASH, Table
from headwater.process.windows.columns import (
    AT,
    COUNT,
    DUE,
    EMITTED,
    END,
    FINISHED,
    GAP,
    HOLD,
    LAST,
    NET,
    NEVER,
    NEW,
    NEW_END,
    NEW_START,
    NONSPECULATIVE,
    PANE,
    PENDING,
    POINT,
    ROWS,
    SESSION,
    START,
    TIME,
    UNTIL,
    WAKE,
    new_window,
)
from headwater.process.windows.lateness import Lateness, rows_of_groups
from headwater.process.windows.panes import PaneBuilder
from headwater.process.windows.placement import has_place, is_in_gap, with_sessions, with_windows
from headwater.process.windows.trigger_columns import CompiledTrigger
from headwater.process.windows.windowing import Mode, Stamp, Windowing

WINDOWS, POINTS = "windows", "points"


@dataclass(frozen=True, slots=True)
class IntakeResult:
    """The windows that a step's rows touch, after merging, with the number of rows that are new to them.

    `gone` are the keys of windows that became part of others, or exist no more. `rejected` are the rows that no
    window accepts, with the reason. `retracted` are windows that exist no more, whose output must be retracted.
    """

    windows: pl.DataFrame
    gone: pl.DataFrame | None
    rejected: pl.DataFrame | None
    retracted: pl.DataFrame | None = None


@dataclass(frozen=True, slots=True)
class Intake:
    """Merges rows of one schema into the windows of a computation."""

    windowing: Windowing
    schema: pl.Schema
    folds: Folds
    trigger: CompiledTrigger
    panes: PaneBuilder

    @property
    def keys(self) -> list[str]:
        return [*self.windowing.by, START, END]

    @property
    def table_key(self) -> list[str]:
        """The key of the table of windows."""
        by = list(self.windowing.by)
        if not self.windowing.where.is_fixed:
            return self.keys
        return by if by and self.windowing.where.is_single else [*by, START]

    @property
    def lateness(self) -> Lateness:
        """Decides which rows these windows reject."""
        return Lateness(self.windowing, self.schema)

    @property
    def has_points(self) -> bool:
        """True if the partial results at each time are kept, because windows may have to be made of them."""
        return self.windowing.where.ends_at_events or self.recomputes

    @property
    def recomputes(self) -> bool:
        """True if a retracted row may change the bounds of windows, see `recomputation`."""
        return self.folds.change is not None and not self.windowing.where.is_fixed

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        """Compute the partial results of each group and window, with the columns that triggers and stamps need."""
        by_clock, watermark = self.windowing.where.by_clock, now.watermark
        if by_clock:
            watermark = now.processing_time
        at = pl.lit(now.processing_time, pl.Int64) if by_clock else pl.col(self.windowing.time)
        # `first` and `last` use the event time if rows have one, even in windows of processing time.
        time = pl.coalesce(self.windowing.time, at) if self.windowing.time in self.schema else at
        if self.windowing.where.is_single:
            time = time.fill_null(BEGINNING)  # rows without a time are the earliest
        placed = rows.with_columns(at.alias(AT), time.alias(TIME))
        placed = self._with_windows(placed)
        may_be_rejected = self.lateness.may_be_rejected(watermark)
        others = [pl.len().cast(pl.Int64).alias(COUNT)]
        if self.folds.change is not None:
            others.append(pl.col(CHANGE).cast(pl.Int64).sum().alias(NET))
        if self.windowing.stamp is not Stamp.END:
            stamps = pl.col(AT).filter(pl.col(AT) >= watermark)
            stamp = stamps.min() if self.windowing.stamp is Stamp.EARLIEST else stamps.max()
            others.append(stamp.alias(HOLD))
        has_rejectable = bool(placed.select(may_be_rejected.any()).item())
        if not self.windowing.where.is_fixed or has_rejectable:
            whole = pl.lit(None, self.lateness.rows_type)
            if has_rejectable:
                whole = pl.struct(self.schema.names()).filter(may_be_rejected)
            others += [pl.col(AT).max().alias(LAST), whole.alias(ROWS)]
        return self._partials(placed, others)

    def _partials(self, placed: pl.DataFrame, others: list[pl.Expr]) -> pl.DataFrame:
        """Compute the partial results by group and window.

        The start of a fixed window determines its end, and often all rows are in one window: grouping by fewer
        columns is much faster.
        """
        by = list(self.windowing.by)
        if not self.windowing.where.is_fixed or not by or not placed.height:
            return self.folds.partials(placed, self.keys, others)
        earliest, latest, has_nulls = placed.select(
            pl.col(START).min().alias("earliest"),
            pl.col(START).max().alias("latest"),
            pl.col(START).has_nulls().alias("has_nulls"),
        ).row(0)
        groups = by if earliest == latest and not has_nulls else [*by, START]
        firsts = [pl.col(name).first() for name in (START, END) if name not in groups]
        combined = self.folds.partials(placed, groups, [*firsts, *others])
        return combined.select(*self.keys, pl.exclude(self.keys))

    def _with_windows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add the bounds of their windows to rows. Rows that are in no window appear once, without an end."""
        where, at = self.windowing.where, pl.col(AT)
        null = pl.lit(None, pl.Int64).alias(END)
        others = [rows.filter(~has_place(where, at)).with_columns(pl.lit(None, pl.Int64).alias(START), null)]
        if others[0].height:
            rows = rows.filter(has_place(where, at))
        in_gap = is_in_gap(where, at)
        if in_gap is not None:
            others.append(rows.filter(in_gap).with_columns(pl.lit(GAP, pl.Int64).alias(START), null))
        placed = with_windows(rows, where, at)
        some = [frame.select(placed.columns) for frame in others if frame.height]
        return pl.concat([placed, *some]) if some else placed

    def combine_sessions(self, combined: pl.DataFrame) -> pl.DataFrame:
        """Merge the partial results of rows that are in one session, whatever other rows arrive."""
        spans = with_sessions(combined.filter(pl.col(END).is_not_null()), self.windowing.by)
        merged = self.folds.merge(spans, [*self.windowing.by, NEW_START, NEW_END], self._combined_columns)
        merged = merged.rename({NEW_START: START, NEW_END: END}).select(combined.columns)
        return pl.concat([merged, combined.filter(pl.col(END).is_null())])

    @property
    def _combined_columns(self) -> list[pl.Expr]:
        """The merged columns of combined rows, apart from the partial results."""
        rows = pl.col(ROWS).explode().drop_nulls()
        return [pl.col(COUNT).sum(), *self._optional_columns, pl.col(LAST).max(), rows]

    @property
    def _optional_columns(self) -> list[pl.Expr]:
        """The merged columns that exist only if the input has changes, or if panes are stamped by their events."""
        optional = [] if self.folds.change is None else [pl.col(NET).sum()]
        match self.windowing.stamp:
            case Stamp.EARLIEST:
                optional.append(pl.col(HOLD).min())
            case Stamp.LATEST:
                optional.append(pl.col(HOLD).max())
        return optional

    def table_rows(self, combined: pl.DataFrame) -> pl.DataFrame:
        """Return combined rows as new rows of the table of windows."""
        return self.whole_rows(combined).drop(self.folds.separate_lists)

    def whole_rows(self, combined: pl.DataFrame) -> pl.DataFrame:
        """Return combined rows as new rows of the table of windows, with all their values, to be fired."""
        columns = [pl.lit(f.default, pl.Series([], dtype=_polars(f.dtype)).dtype).alias(name)
                   for name, f in self.trigger.fields.items()]  # fmt: skip
        fresh = combined.with_columns(
            *new_window(has_deadlines=self.trigger.has_deadlines),
            *columns,
            *self.folds.zero_counts,
        ).drop(COUNT, LAST, ROWS, strict=False)
        if self.windowing.how is not Mode.RETRACTING:
            return fresh
        pane = pl.Struct(self.panes.no_changes(fresh).drop(CHANGE).schema)
        emitted = pl.List(pane) if self.windowing.where.merges else pane
        return fresh.with_columns(pl.lit(None, emitted).alias(EMITTED))

    def collect(self, tables: dict[str, Table], combined: pl.DataFrame, now: Now) -> IntakeResult:
        """Merge combined rows into the windows they touch, and separate the rows that no window accepts."""
        where = self.windowing.where
        if where.ends_at_events:
            combined = self._slide(tables, combined, now)
        if where.merges:
            old = rows_of_groups(tables[WINDOWS], self.windowing.by, combined)
        else:
            old = tables[WINDOWS].get(combined.select(self.table_key))
        union = self.union(old, combined)
        if where.merges:
            union = with_sessions(union, self.windowing.by)
            union = union.filter(pl.col(NEW).any().over(SESSION)).drop(SESSION)
            # What arrived first is first again: `first`, `last` and `collect` need it for equal times.
            union = union.sort(NEW, maintain_order=True)
        else:
            union = union.with_columns(pl.col(START).alias(NEW_START), pl.col(END).alias(NEW_END))
        union, rejected = self.lateness.split(union, now)
        gone = None
        if where.merges:
            has_moved = (pl.col(START) != pl.col(NEW_START)) | (pl.col(END) != pl.col(NEW_END))
            gone = union.filter(~pl.col(NEW) & has_moved).select(self.keys)
        return IntakeResult(self.merge(union), gone, rejected)

    def union(self, old: pl.DataFrame, combined: pl.DataFrame) -> pl.DataFrame:
        """Concatenate windows of the table and combined rows; the latter are marked as new."""
        combined = self.lateness.with_rows(combined)
        fresh = self.table_rows(combined).with_columns(
            combined[COUNT], combined[LAST], combined[ROWS], pl.lit(True).alias(NEW)
        )
        nulls = [pl.lit(None, fresh.schema[name]).alias(name) for name in (LAST, ROWS)]
        old = old.with_columns(pl.lit(0, pl.Int64).alias(COUNT), *nulls, pl.lit(False).alias(NEW))
        return pl.concat([old, fresh.select(old.columns)])

    def merge_fixed(self, tables: dict[str, Table], combined: pl.DataFrame, now: Now) -> pl.DataFrame | None:
        """Return one row for each window that combined rows touch, with its `_hash`, sorted by it.

        This is a fast alternative to `collect` and `merge`, for fixed windows that reject nothing. Returns None if
        these conditions do not hold, or the table cannot be matched by hash alone.
        """
        if (
            not self.windowing.where.is_fixed
            or ROWS in combined.columns
            or self.lateness.may_reject(combined[END].min(), now)
        ):
            return None
        matches = tables[WINDOWS].match(combined)
        if matches is None:
            return None
        fresh = self.table_rows(combined).with_columns(combined[COUNT], pl.Series(HASH, matches.hashes))
        if matches.rows.height:
            old = matches.rows.with_columns(pl.lit(0, pl.Int64).alias(COUNT))
            fresh = pl.concat([old, fresh.select(old.columns)])
        elif len(np.unique(matches.hashes)) == fresh.height:
            return fresh.sort(HASH)
        others = [pl.col(*self.keys).first(), *self._merged_columns(merges=False)]
        merged = self.folds.merge(fresh, [HASH], others, in_order=False)
        return merged.select(fresh.columns).sort(HASH)

    def merge(self, union: pl.DataFrame) -> pl.DataFrame:
        """Merge windows of the table and new rows into one row for each window."""
        has_emitted = EMITTED in union.columns and union[EMITTED].null_count() < union.height
        others = self._merged_columns(merges=self.windowing.where.merges, has_emitted=has_emitted)
        merged = self.folds.merge(union, [*self.windowing.by, NEW_START, NEW_END], others)
        merged = merged.rename({NEW_START: START, NEW_END: END})
        return merged.select(name for name in union.columns if name not in (LAST, ROWS, NEW, NEW_START, NEW_END))

    def _merged_columns(self, *, merges: bool, has_emitted: bool = True) -> list[pl.Expr]:
        """The merged columns of a window's parts, apart from the partial results.

        `has_emitted` is False if none of them has output that is still valid; lists of it are slow to merge.
        """
        same = (pl.col(START) == pl.col(NEW_START)) & (pl.col(END) == pl.col(NEW_END))
        others: list[pl.Expr] = [
            *(getattr(pl.col(name), f.merge)() for name, f in self.trigger.fields.items()),
            pl.col(COUNT, PENDING).sum(),
            *self._optional_columns,
            # A window with new bounds has emitted no pane yet.
            *(
                (pl.col(n) * same if merges else pl.col(n)).max().cast(pl.Int32).alias(n)
                for n in (PANE, NONSPECULATIVE)
            ),
            pl.lit(False).alias(FINISHED),
            pl.lit(0, pl.Int64).alias(DUE),
        ]
        if self.trigger.has_deadlines:
            others.append(pl.lit(NEVER, pl.Int64).alias(WAKE))
        if self.windowing.how is Mode.RETRACTING:
            # Without merging, only the window itself, which is the first row, can have emitted a pane.
            emitted = pl.col(EMITTED).explode().drop_nulls() if merges and has_emitted else pl.col(EMITTED).first()
            others.append(emitted.alias(EMITTED))
        return others

    # -- sliding windows --------------------------------------------------------------------------------------

    def _slide(self, tables: dict[str, Table], combined: pl.DataFrame, now: Now) -> pl.DataFrame:
        """Return what combined rows contribute to their own windows and to those of later events."""
        by = list(self.windowing.by)
        new_points = self.with_points(combined)
        table = tables[POINTS]
        no_rows = [pl.lit(None, new_points.schema[name]).alias(name) for name in (HOLD, LAST, ROWS)
                   if name in new_points.columns]  # fmt: skip
        known = rows_of_groups(table, by, combined).with_columns(no_rows).select(new_points.columns)
        points = self.folds.merge(
            pl.concat([known, new_points]), [*by, POINT], [*self._combined_columns, pl.col(UNTIL).max()]
        )
        points = points.select(new_points.columns)
        tables[POINTS] = table.put(points.filter(pl.col(UNTIL) > now.watermark))
        windows = rows_of_groups(tables[WINDOWS], self.windowing.by, combined).select(self.keys)
        new_windows = (
            combined.select(self.keys)
            .unique(maintain_order=True)
            .join(windows, on=self.keys, how="anti", nulls_equal=True)
        )
        is_open = pl.col(END) + self.windowing.lateness_micros > now.watermark
        rejected = combined.join(new_windows.filter(~is_open), on=self.keys, how="semi", nulls_equal=True)
        parts = [rows_within(new_windows.filter(is_open), points, by), rows_within(windows, new_points, by)]
        accepted = pl.concat(
            [part.with_columns(pl.col(POINT).alias(LAST)).select(combined.columns) for part in parts]
        )
        if self.windowing.stamp is not Stamp.END:
            stamp = pl.col(LAST)
            accepted = accepted.with_columns(pl.when(stamp >= now.watermark).then(stamp).alias(HOLD))
        return pl.concat([rejected, accepted])

    def with_points(self, combined: pl.DataFrame) -> pl.DataFrame:
        """Add the time of combined rows, and the watermark until which new sliding windows may contain it."""
        at, span = pl.col(END) - 1, pl.col(END) - 1 - pl.col(START)
        until = at + span + self.windowing.lateness_micros + 1
        return combined.with_columns(at.alias(POINT), until.alias(UNTIL)).drop(START, END)

    def points(self, combined: pl.DataFrame) -> pl.DataFrame:
        """Return the columns of the table of points: the partial results at each time, without rows."""
        points = self.with_points(combined).drop(HOLD, LAST, ROWS, strict=False)
        return points.drop(COUNT) if self.recomputes else points


def rows_within(windows: pl.DataFrame, points: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Pair each window with the points in it."""
    if by:
        pairs = windows.join(points, on=list(by), how="inner", nulls_equal=True)
    else:
        pairs = windows.join(points, how="cross")
    return pairs.filter((pl.col(POINT) >= pl.col(START)) & (pl.col(POINT) < pl.col(END)))


def _polars(dtype: type) -> type[pl.DataType]:
    return pl.Boolean if dtype is np.bool_ else pl.Int64
