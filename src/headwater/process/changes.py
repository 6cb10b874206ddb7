"""Changes: rows with weights, which add up. All kernels over tables compute with them.

Inside a kernel, a weight is any number: how many times a row is inserted, or retracted if it is negative. Outside,
a change is one inserted row (1) or one retracted row (-1). Rows are equal if all their columns are equal. A row
without a weight is inserted once.

A table of rows by weight can temporarily contain rows with a negative weight: if inputs are out of order, a row
can be retracted before it is inserted. When the insert arrives, the weights cancel out.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from headwater.change import CHANGE
from headwater.process.table import Table

ROW = "_row"
"""Name of the column that contains a whole row as a struct."""

CHANGE_TYPE = pl.Int8()

LEDGER_SCHEMA = {
    "window_start": pl.Int64(),
    "window_end": pl.Int64(),
    "event_time": pl.Int64(),
    "late_by": pl.Int64(),
    "reason": pl.String(),
    "last_pane": pl.Int32(),
}
"""The columns of the late ledger, apart from the row itself."""

EXPIRED, NO_TIME = "expired", "no event time"
"""Reasons in the late ledger: the row is later than the permitted lateness, or it has no event time."""


def with_weights(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with a weight that can be summed; a row without a weight gets 1."""
    weight = pl.col(CHANGE).cast(pl.Int64) if CHANGE in rows.columns else pl.lit(1, pl.Int64).alias(CHANGE)
    return rows.with_columns(weight)


def net(rows: pl.DataFrame) -> pl.DataFrame:
    """Return each distinct row once with the sum of its weights, without the rows whose sum is 0."""
    if not rows.height:
        return rows
    names = [name for name in rows.columns if name != CHANGE]
    summed = rows.group_by(names, maintain_order=True).agg(pl.col(CHANGE).sum())
    return summed.filter(pl.col(CHANGE) != 0).select(rows.columns)


def without_retractions(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of which none retracts another. Equal rows are combined only if there are retractions."""
    return rows if (rows.get_column(CHANGE) > 0).all() else net(rows)


def difference(after: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    """Return the changes that turn `before` into `after`; equal rows of `after` may stay separate."""
    if not before.height:
        return after.select(before.columns)
    return net(pl.concat([before.with_columns(-pl.col(CHANGE)), after.select(before.columns)]))


def as_changes(rows: pl.DataFrame) -> pl.DataFrame:
    """Convert rows of any weight to inserts and retractions, retractions first."""
    weights = rows.get_column(CHANGE).to_numpy()
    if len(weights) and np.abs(weights).max() > 1:
        rows = rows[np.repeat(np.arange(len(weights)), np.abs(weights))]
    signs = rows.with_columns(pl.col(CHANGE).sign().cast(CHANGE_TYPE))
    return signs if (signs.get_column(CHANGE) > 0).all() else signs.sort(CHANGE, maintain_order=True)


def put_weights(table: Table, known: pl.DataFrame, delta: pl.DataFrame) -> tuple[Table, pl.DataFrame]:
    """Add the weights of `delta`, in which each row is distinct, to those of a table.

    `known` are the table's rows that may be equal to rows of `delta`. Returns the new table, and the rows that
    replace `known`. The table's columns are its key and the weight.
    """
    key, columns = table.key, [*table.key, CHANGE]
    known, delta = known.select(columns), delta.select(columns)
    matching = known.join(delta, on=key, how="semi", nulls_equal=True) if known.height else known
    if not matching.height:
        return table.put(delta), pl.concat([known, delta])
    summed = pl.concat([matching, delta]).group_by(key, maintain_order=True).agg(pl.col(CHANGE).sum())
    changed, gone = summed.filter(pl.col(CHANGE) != 0), summed.filter(pl.col(CHANGE) == 0)
    table = table.put(changed)
    table = table.drop(gone.select(key)) if gone.height else table
    return table, pl.concat([known.join(matching, on=key, how="anti", nulls_equal=True), changed])


def ledger(
    rows: pl.DataFrame, row: pl.Expr, reason: str, time: pl.Expr | None = None, watermark: int | None = None
) -> pl.DataFrame:
    """Return rejected rows as entries of the late ledger."""
    at = pl.lit(None, pl.Int64) if time is None else time
    late_by = pl.lit(None, pl.Int64) if time is None or watermark is None else watermark - at
    null = pl.lit(None, pl.Int64)
    return rows.select(
        null.alias("window_start"),
        null.alias("window_end"),
        at.alias("event_time"),
        late_by.alias("late_by"),
        pl.lit(reason).alias("reason"),
        pl.lit(None, pl.Int32).alias("last_pane"),
        row.alias("row"),
    )


def split_late(
    rows: pl.DataFrame, row: pl.Expr, time: str, is_late: pl.Expr, watermark: int
) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Separate rows that are on time from those that are late or have no time, which become ledger entries."""
    has_time = pl.col(time).is_not_null()
    timeless, expired = rows.filter(~has_time), rows.filter(has_time & is_late)
    if not timeless.height and not expired.height:
        return rows, None
    late = [ledger(timeless, row, NO_TIME), ledger(expired, row, EXPIRED, pl.col(time), watermark)]
    return rows.filter(has_time & ~is_late), pl.concat(late)


def join_names(names: Sequence[str]) -> str:
    """Join names for a message."""
    return ", ".join(names)
