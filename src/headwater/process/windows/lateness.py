"""Lateness: rows that no window accepts, and their entries in the late ledger."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from headwater.process.changes import EXPIRED
from headwater.process.kernel import BEGINNING, Now
from headwater.process.table import Table
from headwater.process.windows.columns import (
    AT,
    END,
    FINISHED,
    FORGET,
    LAST,
    LAST_PANE,
    NEW,
    NEW_END,
    NEW_START,
    PANE,
    ROWS,
    START,
)
from headwater.process.windows.placement import EARLIEST, LATEST, has_place
from headwater.process.windows.triggers import TriggerEnd
from headwater.process.windows.windowing import Windowing

CLOSED_WINDOWS = "closed"

CLOSED = "closed"
"""Reason in the late ledger: the trigger of the row's window has finished."""

OUT_OF_RANGE = "event time out of range"
"""Reason in the late ledger: the row's time is tens of thousands of years away."""

_EXPIRED, _CLOSED, _PANES, _REASON = "_expired", "_closed", "_panes", "_reason"
"""Columns of rejected rows: the two conditions, the number of panes of the window, and the reason."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Decides which rows of one schema the windows of a computation reject."""

    windowing: Windowing
    schema: pl.Schema

    @property
    def keys(self) -> list[str]:
        return [*self.windowing.by, START, END]

    @property
    def rows_type(self) -> pl.DataType:
        """The type of the column `ROWS`."""
        return pl.List(pl.Struct(self.schema))

    def with_rows(self, combined: pl.DataFrame) -> pl.DataFrame:
        """Add the columns that are left out if no window can reject anything."""
        if ROWS in combined.columns:
            return combined
        return combined.with_columns(pl.lit(None, pl.Int64).alias(LAST), pl.lit(None, self.rows_type).alias(ROWS))

    def may_be_rejected(self, watermark: int) -> pl.Expr:
        """Select the rows that must be kept unchanged, because they may have to go to the late ledger."""
        timeless = ~has_place(self.windowing.where, pl.col(AT))
        match self.windowing.when.may_finish:
            case TriggerEnd.ANY_TIME:
                return pl.lit(True)
            case TriggerEnd.AT_END if self.windowing.where.merges:
                return timeless | (pl.col(START) < watermark)
            case TriggerEnd.AT_END:
                return timeless | (pl.col(END) <= watermark)
            case TriggerEnd.NEVER:
                return timeless | (pl.col(END) + self.windowing.lateness_micros <= watermark)

    def may_reject(self, earliest_end: Any, now: Now) -> bool:
        """Return True if any window of a set may reject rows, given the earliest end of these windows."""
        if not isinstance(earliest_end, int):
            return False
        if earliest_end + self.windowing.lateness_micros <= now.watermark:
            return True
        return {
            TriggerEnd.NEVER: False,
            TriggerEnd.AT_END: earliest_end <= now.watermark,
            TriggerEnd.ANY_TIME: True,
        }[self.windowing.when.may_finish]

    def split(self, union: pl.DataFrame, now: Now) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """Separate the rows that windows accept from the rejected ones, which leave their windows unchanged."""
        group = [*self.windowing.by, NEW_START, NEW_END]
        expired = pl.col(NEW_END) + self.windowing.lateness_micros <= now.watermark
        if not self.may_reject(union[NEW_END].min(), now):
            return union, None
        closed = pl.lit(False)
        may_finish = self.windowing.when.may_finish
        if may_finish is not TriggerEnd.NEVER:
            closed = (pl.col(FINISHED) | pl.col(NEW)).all() & ~pl.col(NEW).all()
            closed = closed.over(group)
            if may_finish is TriggerEnd.AT_END:  # a session that grows beyond the watermark stays open
                closed &= pl.col(NEW_END) <= now.watermark
        marked = union.with_columns(expired.alias(_EXPIRED), closed.alias(_CLOSED))
        is_rejected = pl.col(_EXPIRED) | pl.col(_CLOSED)
        rejected = marked.filter(is_rejected)
        if not rejected.height:
            return union, None
        panes = pl.col(PANE).filter(~pl.col(NEW)).max().over(group).alias(_PANES)
        rejected = rejected.with_columns(pl.col(NEW_START).alias(START), pl.col(NEW_END).alias(END), panes)
        rejected = rejected.filter(pl.col(NEW))
        reason = pl.when(pl.col(_EXPIRED)).then(pl.lit(EXPIRED)).otherwise(pl.lit(CLOSED)).alias(_REASON)
        accepted = marked.filter(~is_rejected).drop(_EXPIRED, _CLOSED)
        return accepted, self.rejected(rejected.with_columns(reason), EXPIRED)

    def rejected(self, rows: pl.DataFrame, reason: str) -> pl.DataFrame:
        """Return the columns of rejected rows from which the late ledger is made."""
        panes = pl.col(_PANES) - 1 if _PANES in rows.columns else pl.lit(None, pl.Int32)
        why = pl.col(_REASON) if _REASON in rows.columns else pl.lit(reason)
        return self.with_rows(rows).select(
            *self.keys, why.alias("reason"), panes.cast(pl.Int32).alias(LAST_PANE), LAST, ROWS
        )

    def with_last_panes(self, tables: dict[str, Table], rejected: pl.DataFrame) -> pl.DataFrame:
        """Add the last pane of windows that have been discarded to rejected rows, if it is still known."""
        if CLOSED_WINDOWS not in tables:
            return rejected
        table, merges = tables[CLOSED_WINDOWS], self.windowing.where.merges
        closed = (
            rows_of_groups(table, self.windowing.by, rejected) if merges else table.get(rejected.select(self.keys))
        )
        closed = closed.drop(FORGET)
        if merges:
            by = list(self.windowing.by)
            spans = rejected.select(self.keys).unique()
            how: dict[str, Any] = {"on": by, "nulls_equal": True} if by else {"how": "cross"}
            pairs = spans.join(closed, suffix="_closed", **how)
            overlaps = (pl.col(START) < pl.col(f"{END}_closed")) & (pl.col(f"{START}_closed") < pl.col(END))
            closed = pairs.filter(overlaps).group_by(self.keys).agg(pl.col(LAST_PANE).max())
        found = rejected.join(
            closed, on=self.keys, how="left", nulls_equal=True, suffix="_closed", maintain_order="left"
        )
        found = found.with_columns(pl.coalesce(LAST_PANE, f"{LAST_PANE}_closed").alias(LAST_PANE))
        return found.select(rejected.columns)

    def closed(self, evicted: pl.DataFrame) -> pl.DataFrame:
        """Return evicted windows as rows of the table of closed windows, to be kept for another `lateness`."""
        return evicted.filter(pl.col(PANE) > 0).select(
            *self.keys,
            (pl.col(PANE) - 1).alias(LAST_PANE),
            (pl.col(END) + 2 * self.windowing.lateness_micros).alias(FORGET),
        )

    def ledger(self, rejected: pl.DataFrame, now: Now) -> pl.DataFrame:
        """Return the entries of the late ledger, one for each rejected row."""
        rows = rejected.explode(ROWS)
        at = pl.col(LAST) if self.windowing.where.by_clock else pl.col(ROWS).struct.field(self.windowing.time)
        rows = rows.with_columns(event_time=at)
        late_by = pl.lit(now.watermark, pl.Int64) - pl.col("event_time")
        has_time = pl.col("event_time").is_not_null()
        is_odd = has_time & ~pl.col("event_time").is_between(EARLIEST, LATEST)
        reason = pl.when(is_odd & pl.col(END).is_null()).then(pl.lit(OUT_OF_RANGE)).otherwise("reason")
        return rows.select(
            *self.keys,
            "event_time",
            # Before the first watermark, and of a time out of range, the difference is unknown.
            pl.when(has_time & ~is_odd & (now.watermark > BEGINNING)).then(late_by).alias("late_by"),
            reason.alias("reason"),
            LAST_PANE,
            pl.col(ROWS).alias("row"),
        )


def rows_of_groups(table: Table, by: Sequence[str], rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a table that are in the groups of some rows."""
    return table.get(rows.select(by).unique()) if by else table.where(pl.lit(True))
