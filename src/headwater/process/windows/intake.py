"""Taking rows in: which windows they touch, what these were before, and what no window takes any more."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from headwater.change import CHANGE
from headwater.process.aggregates.folds import Folds
from headwater.process.durations import micros
from headwater.process.kernel import Now
from headwater.process.table import HASH, Table
from headwater.process.windows.lateness import Lateness, of_keys
from headwater.process.windows.panes import EMITTED, PaneBuilder
from headwater.process.windows.placement import END, START, with_sessions, with_windows
from headwater.process.windows.trigger_columns import NEVER, CompiledTrigger, Moment
from headwater.process.windows.windowing import Mode, Stamp, Windowing
from headwater.process.windows.windows import Global, Session, Sliding, Time

WINDOWS, POINTS = "windows", "points"


@dataclass(frozen=True, slots=True)
class IntakeResult:
    """What a step's rows touch: windows that were there and what comes, by `_start` and `_end`.

    `gone` are the keys of windows that were merged into others; `rejected` is what no window
    takes, with the reason.
    """

    union: pl.DataFrame
    gone: pl.DataFrame | None
    rejected: pl.DataFrame | None


@dataclass(frozen=True, slots=True)
class Intake:
    """How rows of one schema meet the windows of a computation."""

    windowing: Windowing
    schema: pl.Schema
    folds: Folds
    firing: CompiledTrigger
    painter: PaneBuilder

    @property
    def keys(self) -> list[str]:
        return [*self.windowing.by, START, END]

    @property
    def is_fixed(self) -> bool:
        """Whether a row's windows depend on nothing but its time; then a window's end goes with its start."""
        return not isinstance(self.windowing.where, Session | Sliding)

    @property
    def table_key(self) -> list[str]:
        """What tells the rows of the table of windows apart."""
        by = list(self.windowing.by)
        if not self.is_fixed:
            return self.keys
        return by if by and isinstance(self.windowing.where, Global) else [*by, START]

    @property
    def refusing(self) -> Lateness:
        """When these windows refuse rows."""
        return Lateness(self.windowing, self.schema)

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        """The partials of the rows of each key and window, with what triggers and stamps need to know of them."""
        by_clock, watermark = self.windowing.where.by is Time.PROCESSING, now.watermark
        if by_clock:
            watermark = now.processing_time
        at = pl.lit(now.processing_time, pl.Int64) if by_clock else pl.col(self.windowing.time)
        # First and last go by event time, also in windows by the clock, where rows have one.
        time = pl.coalesce(self.windowing.time, at) if self.windowing.time in self.schema else at
        placed = rows.with_columns(at.alias("_at"), time.alias("_time"))
        placed = self._placed(placed)
        rejectable = self.refusing.may_be_rejected(watermark)
        others = [pl.len().cast(pl.Int64).alias("_n")]
        if self.folds.change is not None:
            others.append(pl.col(CHANGE).cast(pl.Int64).sum().alias("net"))
        if self.windowing.stamp is not Stamp.END:
            stamped = pl.col("_at") + self.windowing.stamp_shift
            stamped = stamped.filter(stamped >= watermark)
            others.append(
                (stamped.min() if self.windowing.stamp is Stamp.EARLIEST else stamped.max()).alias("hold")
            )
        is_any = bool(placed.select(rejectable.any()).item())
        if not self.is_fixed or is_any:
            whole = pl.lit(None, self.refusing.whole)
            if is_any:
                whole = pl.struct(self.schema.names()).filter(rejectable)
            others += [pl.col("_at").max().alias("_last"), whole.alias("_rows")]
        return self._partials(placed, others)

    def _partials(self, placed: pl.DataFrame, others: list[pl.Expr]) -> pl.DataFrame:
        """The partials by key and window. A window's end goes with its start, and often there is one window only:
        to group by less is much of the speed."""
        by = list(self.windowing.by)
        if not self.is_fixed or not by or not placed.height:
            return self.folds.partials(placed, self.keys, others)
        bounds = placed.select(
            pl.col(START).min().alias("low"),
            pl.col(START).max().alias("high"),
            pl.col(START).has_nulls().alias("no"),
        ).row(0)
        groups = by if bounds[0] == bounds[1] and not bounds[2] else [*by, START]
        firsts = [pl.col(name).first() for name in (START, END) if name not in groups]
        combined = self.folds.partials(placed, groups, [*firsts, *others])
        return combined.select(*self.keys, pl.exclude(self.keys))

    def _placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with their windows; those without a time are in none, and are there once."""
        timeless = pl.lit(None, pl.Int64)
        lost = rows.filter(pl.col("_at").is_null()).with_columns(timeless.alias(START), timeless.alias(END))
        if lost.height:
            rows = rows.filter(pl.col("_at").is_not_null())
        placed = with_windows(rows, self.windowing.where, pl.col("_at"))
        return pl.concat([placed, lost.select(placed.columns)]) if lost.height else placed

    def combine_sessions(self, combined: pl.DataFrame) -> pl.DataFrame:
        """Partials of rows that are in one session whatever else comes, as one."""
        spans = with_sessions(combined.filter(pl.col(END).is_not_null()), self.windowing.by)
        merged = self.folds.merge(spans, [*self.windowing.by, "_start", "_end"], self._summed)
        merged = merged.rename({"_start": START, "_end": END}).select(combined.columns)
        return pl.concat([merged, combined.filter(pl.col(END).is_null())])

    @property
    def _summed(self) -> list[pl.Expr]:
        """What triggers and stamps need to know of partials together."""
        rows = pl.col("_rows").explode().drop_nulls()
        return [pl.col("_n").sum(), *self._added, pl.col("_last").max(), rows]

    @property
    def _added(self) -> list[pl.Expr]:
        """What is there only where it is needed: how many more were put than taken back, and the stamp."""
        added = [] if self.folds.change is None else [pl.col("net").sum()]
        match self.windowing.stamp:
            case Stamp.EARLIEST:
                added.append(pl.col("hold").min())
            case Stamp.LATEST:
                added.append(pl.col("hold").max())
        return added

    def fresh(self, combined: pl.DataFrame) -> pl.DataFrame:
        """What came, as new rows of the table of windows."""
        return self.whole(combined).drop(self.folds.lists_beside)

    def whole(self, combined: pl.DataFrame) -> pl.DataFrame:
        """What came, as new rows with all their values: as rows are when they fire."""
        columns = [pl.lit(f.default, pl.Series([], dtype=_polars(f.dtype)).dtype).alias(name)
                   for name, f in self.firing.fields.items()]  # fmt: skip
        fresh = combined.with_columns(
            pl.lit(0, pl.Int64).alias("due"),
            *([pl.lit(NEVER, pl.Int64).alias("wake")] if self.firing.has_deadlines else []),
            pl.col("_n").alias("pending"),
            pl.lit(0, pl.Int32).alias("pane"),
            pl.lit(0, pl.Int32).alias("nonspeculative"),
            pl.lit(False).alias("finished"),
            *columns,
            *self.folds.nothing_counted,
        ).drop("_n", "_last", "_rows", strict=False)
        if self.windowing.how is not Mode.RETRACTING:
            return fresh
        pane = pl.Struct(self.painter.none(fresh).drop(CHANGE).schema)
        standing = pl.List(pane) if self.painter.is_merging else pane
        return fresh.with_columns(pl.lit(None, standing).alias(EMITTED))

    def gather(self, tables: dict[str, Table], combined: pl.DataFrame, moment: Moment) -> IntakeResult:
        where = self.windowing.where
        if isinstance(where, Sliding):
            combined = self._slide(tables, combined, moment, micros(where.duration))
        if isinstance(where, Session):
            old = of_keys(tables[WINDOWS], self.windowing.by, combined)
        else:
            old = tables[WINDOWS].get(combined.select(self.table_key))
        union = self._union(old, combined)
        if isinstance(where, Session):
            union = with_sessions(union, self.windowing.by)
            union = union.filter(pl.col("_new").any().over("_session")).drop("_session")
        else:
            union = union.with_columns(pl.col(START).alias("_start"), pl.col(END).alias("_end"))
        union, rejected = self.refusing.part(union, moment)
        gone = None
        if isinstance(where, Session):
            moved = ~pl.col("_new") & ((pl.col(START) != pl.col("_start")) | (pl.col(END) != pl.col("_end")))
            gone = union.filter(moved).select(self.keys)
        return IntakeResult(union, gone, rejected)

    def _union(self, old: pl.DataFrame, combined: pl.DataFrame) -> pl.DataFrame:
        """What was there and what came, the latter marked as new."""
        combined = self.refusing.with_rows(combined)
        fresh = self.fresh(combined).with_columns(
            combined["_n"], combined["_last"], combined["_rows"], pl.lit(True).alias("_new")
        )
        nothing = [pl.lit(None, fresh.schema[name]).alias(name) for name in ("_last", "_rows")]
        old = old.with_columns(pl.lit(0, pl.Int64).alias("_n"), *nothing, pl.lit(False).alias("_new"))
        return pl.concat([old, fresh.select(old.columns)])

    def meet(self, tables: dict[str, Table], combined: pl.DataFrame, moment: Moment) -> pl.DataFrame | None:
        """One row for each window that the rows touch, with its `_hash` and in the order of it: the quick way of
        `gather` and `merge`, for fixed windows that refuse nothing. None where it has to be the long one."""
        if (
            not self.is_fixed
            or "_rows" in combined.columns
            or self.refusing.may_refuse(combined[END].min(), moment)
        ):
            return None
        met = tables[WINDOWS].meet(combined)
        if met is None:
            return None
        fresh = self.fresh(combined).with_columns(combined["_n"], pl.Series(HASH, met.hashes))
        if met.rows.height:
            old = met.rows.with_columns(pl.lit(0, pl.Int64).alias("_n"))
            fresh = pl.concat([old, fresh.select(old.columns)])
        elif len(np.unique(met.hashes)) == fresh.height:
            return fresh.sort(HASH)
        firsts = pl.col(*self.keys).first()
        merged = self.folds.merge(fresh, [HASH], [firsts, *self._merging(is_merging=False)], in_order=False)
        return merged.select(fresh.columns).sort(HASH)

    def merge(self, union: pl.DataFrame) -> pl.DataFrame:
        """One row for each window: what was there and what came."""
        others = self._merging(is_merging=isinstance(self.windowing.where, Session))
        merged = self.folds.merge(union, [*self.windowing.by, "_start", "_end"], others)
        merged = merged.rename({"_start": START, "_end": END})
        columns = [name for name in union.columns if name not in ("_last", "_rows", "_new")]
        return merged.select(name for name in columns if name not in ("_start", "_end"))

    def _merging(self, *, is_merging: bool) -> list[pl.Expr]:
        """How all but the partials of a window's parts become one."""
        same = (pl.col(START) == pl.col("_start")) & (pl.col(END) == pl.col("_end"))
        others: list[pl.Expr] = [
            *(getattr(pl.col(name), f.merge)() for name, f in self.firing.fields.items()),
            pl.col("_n", "pending").sum(),
            *self._added,
            # A window with new bounds has emitted nothing yet.
            *((pl.col(n) * same if is_merging else pl.col(n)).max().cast(pl.Int32).alias(n) for n in _INDEXES),
            pl.lit(False).alias("finished"),
            pl.lit(0, pl.Int64).alias("due"),
        ]
        if self.firing.has_deadlines:
            others.append(pl.lit(NEVER, pl.Int64).alias("wake"))
        if self.windowing.how is Mode.RETRACTING:
            # Without merging only the window itself, which comes first, can have emitted something.
            standing = pl.col(EMITTED).explode().drop_nulls() if is_merging else pl.col(EMITTED).first()
            others.append(standing.alias(EMITTED))
        return others

    def _slide(
        self, tables: dict[str, Table], combined: pl.DataFrame, moment: Moment, duration: int
    ) -> pl.DataFrame:
        """What came, as contributions to its own windows and to those of later events."""
        by = list(self.windowing.by)
        came = self.points(combined)
        points = tables[POINTS]
        known = pl.concat([of_keys(points, by, combined), came])
        known = self.folds.merge(known, [*by, "at"], [*self._summed, pl.col("until").max()])
        known = known.select(came.columns)
        until = pl.col("until") > moment.watermark
        tables[POINTS] = points.put(
            known.filter(until).with_columns(pl.lit(None, known.schema["_rows"]).alias("_rows"))
        )
        windows = of_keys(tables[WINDOWS], self.windowing.by, combined).select(self.keys)
        fresh = (
            combined.select(self.keys)
            .unique(maintain_order=True)
            .join(windows, on=self.keys, how="anti", nulls_equal=True)
        )
        is_open = pl.col(END) + self.windowing.lateness_micros >= moment.watermark
        refused = combined.join(fresh.filter(~is_open), on=self.keys, how="semi", nulls_equal=True)
        parts = [self._within(fresh.filter(is_open), known), self._within(windows, came)]
        taken = pl.concat([part.select(combined.columns) for part in parts])
        if self.windowing.stamp is not Stamp.END:
            stamp = pl.col("_last") + self.windowing.stamp_shift
            taken = taken.with_columns(hold=pl.when(stamp >= moment.watermark).then(stamp))
        return pl.concat([refused, taken])

    def _within(self, windows: pl.DataFrame, points: pl.DataFrame) -> pl.DataFrame:
        by = list(self.windowing.by)
        if by:
            pairs = windows.join(points, on=by, how="inner", nulls_equal=True)
        else:
            pairs = windows.join(points, how="cross")
        return pairs.filter((pl.col("at") >= pl.col(START)) & (pl.col("at") < pl.col(END)))

    def points(self, combined: pl.DataFrame) -> pl.DataFrame:
        """The partials of each moment, and how long windows may still be made of them."""
        at, span = pl.col(END) - 1, pl.col(END) - 1 - pl.col(START)
        until = at + span + self.windowing.lateness_micros + 2
        return combined.with_columns(at=at, until=until).drop(START, END)


_INDEXES: Sequence[str] = ("pane", "nonspeculative")


def _polars(dtype: type) -> type[pl.DataType]:
    return pl.Boolean if dtype is np.bool_ else pl.Int64
