"""Panes: what windows emit when they fire, and what they remember of it."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from headwater.change import CHANGE
from headwater.process.aggregates.folds import Folds
from headwater.process.windows.placement import END, START
from headwater.process.windows.trigger_columns import NEVER, Array, CompiledTrigger, Moment, TriggerRows
from headwater.process.windows.windowing import Mode, Stamp, Windowing
from headwater.process.windows.windows import Session

EMITTED = "emitted"
"""What stands of a window's output, for the next pane to retract: a row, or a list of them where windows merge."""

_TIMINGS = pl.Series(["early", "on_time", "late"])


@dataclass(frozen=True, slots=True)
class PaneBuilder:
    """Turns rows of the table of windows into panes."""

    windowing: Windowing
    folds: Folds
    firing: CompiledTrigger

    @property
    def is_merging(self) -> bool:
        return isinstance(self.windowing.where, Session)

    @property
    def has_hold(self) -> bool:
        """Whether windows remember the stamp of their next pane; else it is their last moment."""
        return self.windowing.stamp is not Stamp.END

    @property
    def _pane_names(self) -> list[str]:
        names = [*self.windowing.by, START, END, *self.folds.names, "event_time"]
        return [*names, "timing", "pane", "nonspeculative_pane", "is_final", "trigger"]

    def rows_of(self, frame: pl.DataFrame) -> TriggerRows:
        """The triggers' columns of these windows, as arrays that may be changed."""
        columns = {name: frame[name].to_numpy().astype(f.dtype) for name, f in self.firing.fields.items()}
        return TriggerRows(frame[END].to_numpy(), columns)

    def with_times(self, frame: pl.DataFrame, rows: TriggerRows, moment: Moment) -> pl.DataFrame:
        """Write the triggers' columns back, and when each window is to be looked at next."""
        finished = frame["finished"].to_numpy()
        gone_at = rows.end + self.windowing.lateness_micros + 1
        due = np.where(rows.ended(moment) | finished, gone_at, rows.end)
        columns = [pl.Series(name, values) for name, values in rows.columns.items()]
        if self.firing.has_deadlines:
            columns.append(pl.Series("wake", np.where(finished, NEVER, self.firing.root.wake(rows, moment))))
        return frame.with_columns(pl.Series("due", due), *columns)

    def fire(
        self, frame: pl.DataFrame, labels: Array, finished: Array, may_be_on_time: Array, moment: Moment
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Emit a pane for each window with a label: gives the windows afterwards, and the changes."""
        mask = labels > 0
        end, nonspeculative = frame[END].to_numpy(), frame["nonspeculative"].to_numpy()
        early = end > moment.watermark
        on_time = may_be_on_time & (nonspeculative == 0)
        expired = end + self.windowing.lateness_micros < moment.watermark
        timing = np.where(early, 0, np.where(on_time, 1, 2))
        marked = frame.with_columns(
            _TIMINGS[timing].alias("_timing"),
            pl.Series("_nonspeculative", np.where(early, -1, nonspeculative), pl.Int32),
            pl.Series("_final", finished | expired),
            pl.Series(self.firing.names)[labels].alias("_trigger"),
            pl.Series("_fires", mask),
            pl.Series("finished", frame["finished"].to_numpy() | finished),
        )
        fired = marked.filter(pl.col("_fires"))
        panes = self._panes(fired)
        after = self._after(fired, panes, moment)
        rest = marked.filter(~pl.col("_fires")).select(frame.columns)
        return pl.concat([rest, after.select(frame.columns)]), self._changes(fired, panes)

    def none(self, frame: pl.DataFrame) -> pl.DataFrame:
        """No changes, in the shape that changes have."""
        empty = frame.clear().with_columns(
            pl.lit(None, pl.String).alias("_timing"),
            pl.lit(None, pl.Int32).alias("_nonspeculative"),
            pl.lit(None, pl.Boolean).alias("_final"),
            pl.lit(None, pl.String).alias("_trigger"),
        )
        return self._panes(empty).with_columns(pl.lit(1, pl.Int8).alias(CHANGE)).drop("_there")

    def _panes(self, fired: pl.DataFrame) -> pl.DataFrame:
        there = pl.lit(True) if self.folds.change is None else pl.col("net") != 0
        if self.windowing.how is not Mode.RETRACTING:
            there = pl.lit(True)  # a result of nothing replaces what stands
        return fired.select(
            *self.windowing.by,
            START,
            END,
            *self.folds.results(),
            (pl.coalesce("hold", pl.col(END) - 1) if self.has_hold else pl.col(END) - 1).alias("event_time"),
            pl.col("_timing").alias("timing"),
            pl.col("pane"),
            pl.col("_nonspeculative").alias("nonspeculative_pane"),
            pl.col("_final").alias("is_final"),
            pl.col("_trigger").alias("trigger"),
            there.alias("_there"),
        )

    def _changes(self, fired: pl.DataFrame, panes: pl.DataFrame) -> pl.DataFrame:
        put = panes.filter(pl.col("_there")).drop("_there").with_columns(pl.lit(1, pl.Int8).alias(CHANGE))
        if self.windowing.how is not Mode.RETRACTING:
            return put
        taken = fired.select(EMITTED)
        taken = taken.explode(EMITTED) if self.is_merging else taken
        taken = taken.drop_nulls(EMITTED).unnest(EMITTED)
        taken = taken.with_columns(pl.lit(-1, pl.Int8).alias(CHANGE))
        return pl.concat([taken.select(put.columns), put])

    def _after(self, fired: pl.DataFrame, panes: pl.DataFrame, moment: Moment) -> pl.DataFrame:
        ended = pl.col(END) <= moment.watermark
        # A finished window is looked at once more, to let it go.
        gone_at = pl.col(END) + self.windowing.lateness_micros + 1
        columns = {
            "pane": pl.col("pane") + 1,
            "nonspeculative": pl.col("nonspeculative") + ended.cast(pl.Int32),
            "pending": pl.lit(0, pl.Int64),
            "due": pl.when("finished").then(gone_at).otherwise("due"),
        }
        if self.firing.has_deadlines:
            columns["wake"] = pl.when("finished").then(NEVER).otherwise("wake")
        if self.has_hold:
            # Kept until the on-time pane, which may be empty and still needs its stamp.
            columns["hold"] = pl.when(~ended if self.firing.has_on_time_pane else pl.lit(False)).then("hold")
        after = fired.with_columns(**columns)
        if self.windowing.how is Mode.DISCARDING:
            partials = [name for name in fired.columns if name.startswith("_a")]
            nothing = [pl.lit(None, fired.schema[name]).alias(name) for name in partials]
            if self.folds.change is not None:
                nothing.append(pl.lit(0, pl.Int64).alias("net"))
            return after.with_columns(*nothing)
        if self.windowing.how is Mode.RETRACTING:
            row = pl.struct(self._pane_names)
            row = pl.concat_list(row) if self.is_merging else row
            standing = panes.select(pl.when(pl.col("_there")).then(row).alias(EMITTED))
            return after.with_columns(standing[EMITTED])
        return after
