"""What no window takes: which rows that may be, what travels of them, and their lines in the late ledger."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from headwater.process.table import Table
from headwater.process.windows.placement import END, START
from headwater.process.windows.trigger_columns import Moment
from headwater.process.windows.trigger_end import TriggerEnd, finishes_of
from headwater.process.windows.windowing import Windowing
from headwater.process.windows.windows import Session, Time

CLOSED_WINDOWS = "closed"

EXPIRED, CLOSED, NO_TIME = "expired", "closed", "no event time"
"""Why a row is in the late ledger: its window is gone, its window's trigger is finished, or it has no time."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """When the windows of a computation refuse rows of one schema."""

    windowing: Windowing
    schema: pl.Schema

    @property
    def keys(self) -> list[str]:
        return [*self.windowing.by, START, END]

    @property
    def finishes(self) -> TriggerEnd:
        return finishes_of(self.windowing.when)

    @property
    def whole(self) -> pl.DataType:
        """The type of `_rows`: those of a group that may have to go to the late ledger, as they came."""
        return pl.List(pl.Struct(self.schema))

    def with_rows(self, combined: pl.DataFrame) -> pl.DataFrame:
        """With the columns that are left out where no window can refuse anything."""
        if "_rows" in combined.columns:
            return combined
        return combined.with_columns(
            pl.lit(None, pl.Int64).alias("_last"), pl.lit(None, self.whole).alias("_rows")
        )

    def may_be_rejected(self, watermark: int) -> pl.Expr:
        """Rows that have to travel whole, since they may have to go to the late ledger."""
        timeless = pl.col("_at").is_null()
        match self.finishes:
            case TriggerEnd.ANY_TIME:
                return pl.lit(True)
            case TriggerEnd.AT_END if isinstance(self.windowing.where, Session):
                return timeless | (pl.col(START) < watermark)
            case TriggerEnd.AT_END:
                return timeless | (pl.col(END) <= watermark)
            case TriggerEnd.NEVER:
                return timeless | (pl.col(END) + self.windowing.lateness_micros < watermark)

    def may_refuse(self, earliest: Any, moment: Moment) -> bool:
        """Whether any of some windows may refuse rows, by the end of the earliest."""
        if not isinstance(earliest, int):
            return False
        if earliest + self.windowing.lateness_micros < moment.watermark:
            return True
        return {
            TriggerEnd.NEVER: False,
            TriggerEnd.AT_END: earliest <= moment.watermark,
            TriggerEnd.ANY_TIME: True,
        }[self.finishes]

    def part(self, union: pl.DataFrame, moment: Moment) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """Part what windows take from what they do not: the latter leaves its windows as they are."""
        group = [*self.windowing.by, "_start", "_end"]
        expired = pl.col("_end") + self.windowing.lateness_micros < moment.watermark
        if not self.may_refuse(union["_end"].min(), moment):
            return union, None
        closed = pl.lit(False)
        if self.finishes is not TriggerEnd.NEVER:
            closed = (pl.col("finished") | pl.col("_new")).all() & ~pl.col("_new").all()
            closed = closed.over(group)
            if self.finishes is TriggerEnd.AT_END:  # a session that grows beyond the watermark goes on
                closed &= pl.col("_end") <= moment.watermark
        marked = union.with_columns(_expired=expired, _closed=closed)
        refused = marked.filter(pl.col("_expired") | pl.col("_closed"))
        if not refused.height:
            return union, None
        panes = pl.col("pane").filter(~pl.col("_new")).max().over(group)
        refused = refused.with_columns(pl.col("_start").alias(START), pl.col("_end").alias(END), _panes=panes)
        refused = refused.filter(pl.col("_new"))
        reason = pl.when(pl.col("_expired")).then(pl.lit(EXPIRED)).otherwise(pl.lit(CLOSED))
        taken = marked.filter(~(pl.col("_expired") | pl.col("_closed"))).drop("_expired", "_closed")
        return taken, self.rejected(refused.with_columns(_reason=reason), EXPIRED)

    def rejected(self, rows: pl.DataFrame, reason: str) -> pl.DataFrame:
        panes = pl.col("_panes") - 1 if "_panes" in rows.columns else pl.lit(None, pl.Int32)
        why = pl.col("_reason") if "_reason" in rows.columns else pl.lit(reason)
        return self.with_rows(rows).select(
            *self.keys, why.alias("reason"), panes.cast(pl.Int32).alias("last_pane"), "_last", "_rows"
        )

    def with_last_panes(self, tables: dict[str, Table], rejected: pl.DataFrame) -> pl.DataFrame:
        """Rejected rows with the last pane of windows that have gone, where it is still known."""
        if CLOSED_WINDOWS not in tables:
            return rejected
        table = tables[CLOSED_WINDOWS]
        is_merging = isinstance(self.windowing.where, Session)
        remembered = (
            of_keys(table, self.windowing.by, rejected) if is_merging else table.get(rejected.select(self.keys))
        )
        remembered = remembered.drop("forget")
        if is_merging:
            by = list(self.windowing.by)
            spans = rejected.select(self.keys).unique()
            how: dict[str, Any] = {"on": by, "nulls_equal": True} if by else {"how": "cross"}
            pairs = spans.join(remembered, suffix="_gone", **how)
            meets = (pl.col(START) < pl.col(f"{END}_gone")) & (pl.col(f"{START}_gone") < pl.col(END))
            remembered = pairs.filter(meets).group_by(self.keys).agg(pl.col("last_pane").max())
        found = rejected.join(
            remembered, on=self.keys, how="left", nulls_equal=True, suffix="_gone", maintain_order="left"
        )
        found = found.with_columns(pl.coalesce("last_pane", "last_pane_gone").alias("last_pane"))
        return found.select(rejected.columns)

    def closed(self, evicted: pl.DataFrame) -> pl.DataFrame:
        """What is remembered of windows that go, for as long as their lateness again: their last pane."""
        return evicted.filter(pl.col("pane") > 0).select(
            *self.keys,
            (pl.col("pane") - 1).alias("last_pane"),
            (pl.col(END) + 2 * self.windowing.lateness_micros + 1).alias("forget"),
        )

    def ledger(self, rejected: pl.DataFrame, moment: Moment) -> pl.DataFrame:
        rows = rejected.explode("_rows")
        is_by_clock = self.windowing.where.by is Time.PROCESSING
        at = pl.col("_last") if is_by_clock else pl.col("_rows").struct.field(self.windowing.time)
        rows = rows.with_columns(event_time=pl.coalesce(at, "_last"))
        return rows.select(
            *self.keys,
            "event_time",
            (moment.watermark - pl.col("event_time")).alias("late_by"),
            "reason",
            "last_pane",
            pl.col("_rows").alias("row"),
        )


def of_keys(table: Table, by: Sequence[str], rows: pl.DataFrame) -> pl.DataFrame:
    """What a table has of the groups of some rows."""
    return table.get(rows.select(by).unique()) if by else table.where(pl.lit(True))
