"""Panes: the rows that windows emit when they fire."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from headwater.change import CHANGE
from headwater.process.aggregates.folds import Folds, is_partial
from headwater.process.kernel import Now
from headwater.process.windows.columns import (
    DUE,
    EMITTED,
    END,
    FINISHED,
    FIRES,
    HOLD,
    NET,
    NEVER,
    NONSPECULATIVE,
    NOT_EMPTY,
    PANE,
    PANE_IS_FINAL,
    PANE_NONSPECULATIVE,
    PANE_TIMING,
    PANE_TRIGGER,
    PENDING,
    START,
    WAKE,
)
from headwater.process.windows.trigger_columns import Array, CompiledTrigger, TriggerRows
from headwater.process.windows.windowing import EVENT_TIME_COLUMN, PANE_COLUMNS, Mode, Stamp, Windowing

_TIMINGS = pl.Series(["early", "on_time", "late"])


@dataclass(frozen=True, slots=True)
class PaneBuilder:
    """Builds panes from rows of the table of windows."""

    windowing: Windowing
    folds: Folds
    trigger: CompiledTrigger

    @property
    def has_hold(self) -> bool:
        """True if windows have a column `HOLD`; else panes get the last microsecond of their window."""
        return self.windowing.stamp is not Stamp.END

    @property
    def _pane_names(self) -> list[str]:
        return [*self.windowing.by, START, END, *self.folds.names, EVENT_TIME_COLUMN, *PANE_COLUMNS]

    def trigger_rows(self, frame: pl.DataFrame) -> TriggerRows:
        """Copy the trigger's columns of these windows to arrays that may be changed."""
        columns = {name: frame[name].to_numpy().astype(f.dtype) for name, f in self.trigger.fields.items()}
        return TriggerRows(frame[END].to_numpy(), columns)

    def with_times(self, frame: pl.DataFrame, rows: TriggerRows, now: Now) -> pl.DataFrame:
        """Write the trigger's columns back, and the times at which each window must be examined next."""
        finished = frame[FINISHED].to_numpy()
        gone_at = rows.end + self.windowing.lateness_micros
        due = np.where(rows.ended(now) | finished, gone_at, rows.end)
        columns = [pl.Series(name, values) for name, values in rows.columns.items()]
        if self.trigger.has_deadlines:
            columns.append(pl.Series(WAKE, np.where(finished, NEVER, self.trigger.root.wake(rows, now))))
        return frame.with_columns(pl.Series(DUE, due), *columns)

    def fire(
        self, frame: pl.DataFrame, labels: Array, finished: Array, may_be_on_time: Array, now: Now
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Emit a pane for each window whose label is not 0: return the updated windows, and the changes."""
        mask = labels > 0
        end, nonspeculative = frame[END].to_numpy(), frame[NONSPECULATIVE].to_numpy()
        early = end > now.watermark
        on_time = may_be_on_time & (nonspeculative == 0)
        expired = end + self.windowing.lateness_micros <= now.watermark
        timing = np.where(early, 0, np.where(on_time, 1, 2))
        marked = frame.with_columns(
            _TIMINGS[timing].alias(PANE_TIMING),
            pl.Series(PANE_NONSPECULATIVE, np.where(early, -1, nonspeculative), pl.Int32),
            pl.Series(PANE_IS_FINAL, finished | expired),
            pl.Series(self.trigger.names)[labels].alias(PANE_TRIGGER),
            pl.Series(FIRES, mask),
            pl.Series(FINISHED, frame[FINISHED].to_numpy() | finished),
        )
        fired = marked.filter(pl.col(FIRES))
        panes = self._panes(fired)
        after = self._after(fired, panes, now)
        rest = marked.filter(~pl.col(FIRES)).select(frame.columns)
        return pl.concat([rest, after.select(frame.columns)]), self._changes(fired, panes)

    def no_changes(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return an empty frame with the schema of changes."""
        empty = frame.clear().with_columns(
            pl.lit(None, pl.String).alias(PANE_TIMING),
            pl.lit(None, pl.Int32).alias(PANE_NONSPECULATIVE),
            pl.lit(None, pl.Boolean).alias(PANE_IS_FINAL),
            pl.lit(None, pl.String).alias(PANE_TRIGGER),
        )
        return self._panes(empty).with_columns(pl.lit(1, pl.Int8).alias(CHANGE)).drop(NOT_EMPTY)

    def _panes(self, fired: pl.DataFrame) -> pl.DataFrame:
        not_empty = pl.lit(True) if self.folds.change is None else pl.col(NET) != 0
        if self.windowing.how is not Mode.RETRACTING:
            # The result of an empty window replaces the previous result, if there is one.
            not_empty = not_empty | (pl.col(PANE) > 0)
        end = pl.col(END) - 1
        return fired.select(
            *self.windowing.by,
            START,
            END,
            *self.folds.results(),
            (pl.coalesce(HOLD, end) if self.has_hold else end).alias(EVENT_TIME_COLUMN),
            pl.col(PANE_TIMING).alias("timing"),
            pl.col(PANE).alias("pane"),
            pl.col(PANE_NONSPECULATIVE).alias("nonspeculative_pane"),
            pl.col(PANE_IS_FINAL).alias("is_final"),
            pl.col(PANE_TRIGGER).alias("trigger"),
            not_empty.alias(NOT_EMPTY),
        )

    def _changes(self, fired: pl.DataFrame, panes: pl.DataFrame) -> pl.DataFrame:
        inserts = panes.filter(pl.col(NOT_EMPTY)).drop(NOT_EMPTY).with_columns(pl.lit(1, pl.Int8).alias(CHANGE))
        if self.windowing.how is not Mode.RETRACTING:
            return inserts
        return pl.concat([self.retractions(fired).select(inserts.columns), inserts])

    def retractions(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the retractions of the output of windows that is still valid."""
        emitted = frame.select(EMITTED)
        emitted = emitted.explode(EMITTED) if self.windowing.where.merges else emitted
        return emitted.drop_nulls(EMITTED).unnest(EMITTED).with_columns(pl.lit(-1, pl.Int8).alias(CHANGE))

    def _after(self, fired: pl.DataFrame, panes: pl.DataFrame, now: Now) -> pl.DataFrame:
        """Return the windows as they are after their panes have been emitted."""
        ended = pl.col(END) <= now.watermark
        # A pane that was left out, because its window is empty and has no earlier one, does not count.
        counts = pl.lit(self.windowing.how is Mode.RETRACTING) | panes[NOT_EMPTY]
        # A finished window is examined once more, to be discarded.
        gone_at = pl.col(END) + self.windowing.lateness_micros
        columns = {
            PANE: pl.col(PANE) + counts.cast(pl.Int32),
            NONSPECULATIVE: pl.col(NONSPECULATIVE) + (ended & counts).cast(pl.Int32),
            PENDING: pl.lit(0, pl.Int64),
            DUE: pl.when(FINISHED).then(gone_at).otherwise(DUE),
        }
        if self.trigger.has_deadlines:
            columns[WAKE] = pl.when(FINISHED).then(NEVER).otherwise(WAKE)
        if self.has_hold:
            # Kept until the on-time pane, which needs its stamp even if it is empty.
            columns[HOLD] = pl.when(~ended if self.trigger.has_on_time_pane else pl.lit(False)).then(HOLD)
        after = fired.with_columns(**columns)
        if self.windowing.how is Mode.DISCARDING:
            partials = [name for name in fired.columns if is_partial(name)]
            empty = [pl.lit(None, fired.schema[name]).alias(name) for name in partials]
            if self.folds.change is not None:
                empty.append(pl.lit(0, pl.Int64).alias(NET))
            return after.with_columns(*empty)
        if self.windowing.how is Mode.RETRACTING:
            row = pl.struct(self._pane_names)
            row = pl.concat_list(row) if self.windowing.where.merges else row
            emitted = panes.select(pl.when(pl.col(NOT_EMPTY)).then(row).alias(EMITTED))
            return after.with_columns(emitted[EMITTED])
        return after
