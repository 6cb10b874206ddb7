"""Recomputation: sessions and sliding windows over changes, computed again from the rows that remain.

A retracted row may split a session, shorten it or end a window, so partial results of whole windows are not
enough. The table of points keeps the partial results at each time of a group. When rows of a group arrive, the
windows at their times are made from points, and compared with those in the table of windows. A point counts if
more rows were inserted than retracted there.

A window that exists before and after keeps its trigger and its pane numbers. Sessions that only grow or merge pass
on their triggers and their output, as they do without changes. If a session splits, shrinks or vanishes, its
output is retracted at once, and the sessions that remain of it start with a new trigger, for which all their rows
are new.
"""

from dataclasses import dataclass

import polars as pl

from headwater.process.aggregates.folds import is_partial
from headwater.process.kernel import Now
from headwater.process.table import Table
from headwater.process.windows.columns import (
    COUNT,
    END,
    FINISHED,
    LAST,
    NET,
    NEVER,
    NEW,
    NEW_END,
    NEW_START,
    PANE,
    POINT,
    ROWS,
    SESSION,
    START,
    UNTIL,
)
from headwater.process.windows.intake import POINTS, WINDOWS, Intake, IntakeResult, rows_within
from headwater.process.windows.lateness import rows_of_groups
from headwater.process.windows.placement import with_sessions, with_windows

_BEFORE = "_before"
"""Number of rows at a point before the step."""

_KIND, _OLD, _ARRIVED, _KNOWN = "_kind", 0, 1, 2
"""A column that says where a span comes from: the table of windows, the rows of the step, the table of points."""

_ROW, _NARROW, _WHOLE = "_row", "_narrow", "_whole"
"""Columns of spans: index of the row; True if the span extends no session; its end if it did."""

_TOUCHED, _EXISTS, _INSIDE, _IS_OLD = "_touched", "_exists", "_inside", "_is_old"
"""Number of the session before retractions; True if a session has rows, is in one that has, was there before."""

_SAME, _RESTARTS = "_same", "_restarts"
"""True if a window of the table still exists; True if a session starts with a new trigger."""


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows that a step changes.

    `known` are those of the table, with the columns `_SAME` (the window still exists), `NEW_START` and `NEW_END`
    (the window that takes over its trigger and output; null if none does). `pairs` are the windows that exist now,
    each with its points: `START`, `END`, the number of rows that are new to the window in `COUNT`, `NET` and the
    partial results.
    """

    known: pl.DataFrame
    pairs: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Applies changes to the windows of a computation that are not fixed."""

    intake: Intake

    @property
    def by(self) -> list[str]:
        return list(self.intake.windowing.by)

    def apply(self, tables: dict[str, Table], combined: pl.DataFrame, now: Now) -> IntakeResult:
        """Add combined rows to the points, and return the windows that change."""
        delta = self._by_time(combined)
        old = rows_of_groups(tables[WINDOWS], self.by, delta)
        find = self._sessions if self.intake.windowing.where.merges else self._slides
        windows, rejected = find(tables, old, delta, now)
        known = windows.known
        touched = self._merge(known.filter(pl.col(NEW_START).is_not_null()), windows.pairs, old.columns)
        gone = known.filter(~pl.col(_SAME)).select(self.intake.keys)
        retracted = known.filter(pl.col(NEW_START).is_null()).select(old.columns)
        return IntakeResult(touched, gone, rejected, retracted)

    def forget(self, tables: dict[str, Table], evicted: pl.DataFrame) -> None:
        """Delete the points of discarded sessions. Those of sliding windows are discarded by their `UNTIL`."""
        if not self.intake.windowing.where.merges:
            return
        points = rows_of_groups(tables[POINTS], self.by, evicted).select(*self.by, POINT)
        at = points.select(*self.by, pl.col(POINT).alias(START), (pl.col(POINT) + 1).alias(END))
        spans = [_numbered(evicted.select(self.intake.keys), _OLD), _numbered(at, _KNOWN)]
        joined = with_sessions(pl.concat(spans), self.by)
        is_inside = (pl.col(_KIND) == _OLD).any().over(SESSION) & (pl.col(_KIND) == _KNOWN)
        inside = joined.filter(is_inside).select(*self.by, pl.col(START).alias(POINT))
        tables[POINTS] = tables[POINTS].drop(inside)

    def _by_time(self, combined: pl.DataFrame) -> pl.DataFrame:
        """Merge combined rows of the same group and time, which may come from several processes."""
        others = [pl.col(COUNT, NET).sum(), pl.col(LAST).max(), pl.col(ROWS).explode().drop_nulls()]
        return self.intake.folds.merge(combined, self.intake.keys, others).select(combined.columns)

    def _merge(self, absorbed: pl.DataFrame, pairs: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
        """Return the windows that exist now, with the progress of the windows whose place they take."""
        keys = self.intake.keys
        counts = pairs.group_by(keys, maintain_order=True).agg(pl.col(COUNT).sum())
        fresh = self.intake.folds.merge(pairs.filter(pl.col(NET) > 0), keys, [pl.col(NET).sum()])
        fresh = fresh.join(counts, on=keys, how="left", nulls_equal=True, maintain_order="left")
        # The results are those of the points alone.
        empty = [pl.lit(None, absorbed.schema[name]).alias(name) for name in columns if is_partial(name)]
        old = absorbed.select(columns).with_columns(*empty, pl.lit(0, pl.Int64).alias(NET))
        union = self.intake.union(old, fresh).with_columns(
            pl.concat([absorbed[NEW_START], fresh[START]]).alias(NEW_START),
            pl.concat([absorbed[NEW_END], fresh[END]]).alias(NEW_END),
        )
        return self.intake.merge(union)

    # -- points -----------------------------------------------------------------------------------------------

    def _with_arrived(self, known: pl.DataFrame, arrived: pl.DataFrame) -> pl.DataFrame:
        """Merge points with rows that arrive, and add how many rows were there before, and how many are new."""
        partials = [name for name in arrived.columns if is_partial(name)]
        null, zero = pl.lit(None, pl.Int64), pl.lit(0, pl.Int64)
        frames = [
            known.with_columns(pl.col(NET).alias(_BEFORE), zero.alias(COUNT), null.alias(UNTIL)),
            arrived.with_columns(zero.alias(_BEFORE)),
        ]
        columns = [*self.by, POINT, _TOUCHED, NET, _BEFORE, COUNT, UNTIL, *partials]
        others = [pl.col(_TOUCHED).first(), pl.col(NET, _BEFORE, COUNT).sum(), pl.col(UNTIL).max()]
        points = pl.concat([frame.select(columns) for frame in frames])
        return self.intake.folds.merge(points, [*self.by, POINT], others)

    def _put(self, tables: dict[str, Table], points: pl.DataFrame, now: Now) -> None:
        """Write the points that a step changes."""
        changed = pl.col(COUNT) > 0
        tables[POINTS] = tables[POINTS].put(points.filter(changed & (pl.col(UNTIL) > now.watermark)))

    # -- sessions ---------------------------------------------------------------------------------------------

    def _sessions(
        self, tables: dict[str, Table], old: pl.DataFrame, delta: pl.DataFrame, now: Now
    ) -> tuple[_Windows, pl.DataFrame | None]:
        """Return the sessions that a step changes, and the rows that no session accepts."""
        points = rows_of_groups(tables[POINTS], self.by, delta)
        spans = self._touched(old, delta, points)
        accepted, rejected = self.intake.lateness.split(spans.filter(pl.col(_KIND) != _KNOWN), now)
        spans = spans.join(accepted.select(SESSION).unique(), on=SESSION, how="semi")
        until = (pl.col(NEW_END) + self.intake.windowing.lateness_micros).alias(UNTIL)
        arrived = _rows_of(delta, spans.with_columns(until), _ARRIVED, SESSION, UNTIL)
        after = self._with_arrived(
            _rows_of(points, spans, _KNOWN, SESSION).rename({SESSION: _TOUCHED}),
            arrived.rename({SESSION: _TOUCHED, START: POINT}),
        )
        # A point without rows stays for a while, in case that an insert arrives after its retraction.
        until = pl.when(pl.col(NET) > 0).then(NEVER).otherwise(UNTIL).alias(UNTIL)
        self._put(tables, after.with_columns(until), now)
        return self._compare(_rows_of(old, spans, _OLD, SESSION).rename({SESSION: _TOUCHED}), after), rejected

    def _touched(self, old: pl.DataFrame, delta: pl.DataFrame, points: pl.DataFrame) -> pl.DataFrame:
        """Return old windows, rows of the step and points with the sessions they are in before any retraction.

        Returns only sessions with rows of the step. A retracted row is in the session at its time, and does not
        join it with others.
        """
        no_rows = [pl.lit(None, delta.schema[name]).alias(name) for name in (LAST, ROWS)]
        no_progress = [pl.lit(False).alias(FINISHED), pl.lit(0, pl.Int32).alias(PANE)]
        at = with_windows(points.select(*self.by, POINT), self.intake.windowing.where, pl.col(POINT))
        frames = [
            old.select(*self.by, START, END, FINISHED, PANE, *no_rows, pl.lit(False).alias(_NARROW)),
            delta.select(*self.by, START, END, *no_progress, LAST, ROWS, (pl.col(NET) <= 0).alias(_NARROW)),
            at.select(*self.by, START, END, *no_progress, *no_rows, pl.lit(True).alias(_NARROW)),
        ]
        spans = pl.concat([_numbered(frame, kind) for kind, frame in enumerate(frames)])
        spans = spans.with_columns(pl.col(END).alias(_WHOLE), (pl.col(_KIND) == _ARRIVED).alias(NEW))
        spans = with_sessions(_narrowed(spans), self.by).filter(pl.col(NEW).any().over(SESSION))
        # A retraction at a time without a session is judged as the session of its row alone.
        is_alone, alone = pl.col(_NARROW).all().over(SESSION), pl.col(_WHOLE).max().over(SESSION)
        end = pl.when(is_alone).then(alone).otherwise(NEW_END)
        return spans.with_columns(end.alias(NEW_END), pl.col(_WHOLE).alias(END))

    def _compare(self, old: pl.DataFrame, points: pl.DataFrame) -> _Windows:
        """Make sessions of points, and find out what becomes of the old ones."""
        at = with_windows(points, self.intake.windowing.where, pl.col(POINT))
        frames = [
            old.select(*self.by, START, END, _TOUCHED, pl.lit(True).alias(_NARROW)),
            at.select(*self.by, START, END, _TOUCHED, (pl.col(NET) <= 0).alias(_NARROW)),
        ]
        spans = pl.concat([_numbered(frame, kind) for kind, frame in zip((_OLD, _KNOWN), frames, strict=True)])
        spans = with_sessions(_narrowed(spans.with_columns(pl.col(END).alias(_WHOLE))), self.by)
        exists, end = (~pl.col(_NARROW)).any().over(SESSION), pl.col(_WHOLE)
        is_inside = exists & (pl.col(NEW_START) <= pl.col(START)) & (end <= pl.col(NEW_END))
        is_same = exists & (pl.col(NEW_START) == pl.col(START)) & (end == pl.col(NEW_END))
        is_old = pl.col(_KIND) == _OLD
        spans = spans.with_columns(
            exists.alias(_EXISTS),
            is_inside.alias(_INSIDE),
            is_same.alias(_SAME),
            (is_old & ~is_inside).any().over(_TOUCHED).alias(_RESTARTS),
            (is_old & is_same).any().over(SESSION).alias(_IS_OLD),
        )
        known = _rows_of(old.drop(_TOUCHED), spans, _OLD, SESSION, NEW_START, NEW_END, _INSIDE, _SAME, _RESTARTS)
        pairs = _rows_of(points, spans, _KNOWN, SESSION, NEW_START, NEW_END, _EXISTS, _RESTARTS, _IS_OLD)
        pairs = pairs.filter(_EXISTS).rename({NEW_START: START, NEW_END: END})
        # A session that is as it was, and has no rows of the step, is left alone.
        pairs = pairs.filter(~pl.col(_IS_OLD) | (pl.col(COUNT).sum().over(SESSION) > 0))
        known = known.filter(~pl.col(_SAME) | pl.col(SESSION).is_in(pairs[SESSION].unique().implode()))
        absorbed = pl.col(_SAME) | (pl.col(_INSIDE) & ~pl.col(_RESTARTS))
        takers = [pl.when(absorbed).then(name).alias(name) for name in (NEW_START, NEW_END)]
        is_new = pl.col(_RESTARTS) & ~pl.col(_IS_OLD)
        return _Windows(known.with_columns(takers), _with_counts(pairs, is_new))

    # -- sliding windows --------------------------------------------------------------------------------------

    def _slides(
        self, tables: dict[str, Table], old: pl.DataFrame, delta: pl.DataFrame, now: Now
    ) -> tuple[_Windows, pl.DataFrame | None]:
        """Return the sliding windows that a step changes, and the rows that windows do not accept."""
        keys, nothing = self.intake.keys, pl.lit(0).alias(_TOUCHED)
        arrived = self.intake.with_points(delta)
        known = rows_of_groups(tables[POINTS], self.by, delta)
        after = self._with_arrived(known.with_columns(nothing), arrived.with_columns(nothing))
        self._put(tables, after, now)
        touched, rejected = self._accepted(old, delta, arrived, now)
        ends = after.filter(pl.col(NET) > 0).select(*self.by, (pl.col(POINT) + 1).alias(END))
        exists = touched.join(ends, on=[*self.by, END], how="semi", nulls_equal=True, maintain_order="left")
        marked = exists.with_columns(pl.lit(True).alias(_SAME))
        changed = old.join(touched, on=keys, how="semi", nulls_equal=True)
        changed = changed.join(marked, on=keys, how="left", nulls_equal=True, maintain_order="left")
        changed = changed.with_columns(pl.col(_SAME).fill_null(False))
        takers = [pl.when(_SAME).then(name).alias(new) for name, new in ((START, NEW_START), (END, NEW_END))]
        is_new = old.select(*keys, pl.lit(False).alias(_RESTARTS))
        exists = exists.join(is_new, on=keys, how="left", nulls_equal=True, maintain_order="left")
        pairs = rows_within(exists, after, self.by)
        return _Windows(changed.with_columns(takers), _with_counts(pairs, pl.col(_RESTARTS).is_null())), rejected

    def _accepted(
        self, old: pl.DataFrame, delta: pl.DataFrame, arrived: pl.DataFrame, now: Now
    ) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """Return the keys of the windows that accept rows of the step, and the rows that others reject."""
        keys = self.intake.keys
        own = delta.join(old, on=keys, how="anti", nulls_equal=True)
        pairs = rows_within(old.select(keys), arrived.select(*self.by, POINT, LAST, ROWS), self.by)
        no_rows = [pl.lit(None, delta.schema[name]).alias(name) for name in (LAST, ROWS)]
        no_progress = [pl.lit(False).alias(FINISHED), pl.lit(0, pl.Int32).alias(PANE)]
        columns = [*keys, FINISHED, PANE, LAST, ROWS]
        frames = [
            old.with_columns(no_rows).select(columns).with_columns(pl.lit(False).alias(NEW)),
            *(
                part.with_columns(no_progress).select(columns).with_columns(pl.lit(True).alias(NEW))
                for part in (own, pairs)
            ),
        ]
        bounds = [pl.col(START).alias(NEW_START), pl.col(END).alias(NEW_END)]
        accepted, rejected = self.intake.lateness.split(pl.concat(frames).with_columns(bounds), now)
        return accepted.filter(NEW).select(keys).unique(maintain_order=True), rejected


def _numbered(frame: pl.DataFrame, kind: int) -> pl.DataFrame:
    """Add the index of each row and where it comes from."""
    return frame.with_row_index(_ROW).with_columns(pl.lit(kind).alias(_KIND))


def _narrowed(spans: pl.DataFrame) -> pl.DataFrame:
    """Shorten the spans that must not extend a session or join others to their first microsecond."""
    return spans.with_columns(pl.when(_NARROW).then(pl.col(START) + 1).otherwise(END).alias(END))


def _rows_of(frame: pl.DataFrame, spans: pl.DataFrame, kind: int, *columns: str) -> pl.DataFrame:
    """Return the rows of a frame that are among spans of a kind, with some columns of the spans."""
    chosen = spans.filter(pl.col(_KIND) == kind)
    return frame[chosen[_ROW]].with_columns(chosen.select(columns))


def _with_counts(pairs: pl.DataFrame, is_new: pl.Expr) -> pl.DataFrame:
    """Count the rows that are new to each window: those that arrive, and in a new window also the earlier ones."""
    is_live = (pl.col(NET) > 0) & (pl.col(_BEFORE) > 0)
    earlier = pl.when(is_new & is_live).then(_BEFORE).otherwise(0)
    return pairs.with_columns(pl.col(COUNT) + earlier)
