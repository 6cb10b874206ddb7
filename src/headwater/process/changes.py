"""Changes: rows with weights, which add up. What every kernel over tables computes with.

Inside a kernel a weight is any number: how many times a row is there, or is to be taken away. Outside, a change
is one row put (1) or one taken back (-1). Rows are equal if all their columns are; a row that is nowhere said
to be put twice is there once.

A table of rows by weight can hold rows of a negative weight for a while: what is taken back before it was put,
since inputs are out of order, waits for it, and both go when it comes.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from headwater.change import CHANGE
from headwater.process.table import Table

ROW = "_row"
"""A whole row, as one value."""

CHANGE_TYPE = pl.Int8()

LEDGER_SCHEMA = {
    "window_start": pl.Int64(),
    "window_end": pl.Int64(),
    "event_time": pl.Int64(),
    "late_by": pl.Int64(),
    "reason": pl.String(),
    "last_pane": pl.Int32(),
}
"""The columns of the late ledger beside the row itself."""


def weighed(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with a weight that can be summed up; each is there once where nothing else is said."""
    weight = pl.col(CHANGE).cast(pl.Int64) if CHANGE in rows.columns else pl.lit(1, pl.Int64).alias(CHANGE)
    return rows.with_columns(weight)


def net(rows: pl.DataFrame) -> pl.DataFrame:
    """Each row once, with the sum of its weights; without those that add up to nothing."""
    if not rows.height:
        return rows
    names = [name for name in rows.columns if name != CHANGE]
    summed = rows.group_by(names, maintain_order=True).agg(pl.col(CHANGE).sum())
    return summed.filter(pl.col(CHANGE) != 0).select(rows.columns)


def settled(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of which none takes back another; equal ones may stay apart, which costs less than to look for them."""
    return rows if (rows.get_column(CHANGE) > 0).all() else net(rows)


def difference(after: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    """What has to be added to `before` to have `after`; equal rows of `after` may stay apart."""
    if not before.height:
        return after.select(before.columns)
    return net(pl.concat([before.with_columns(-pl.col(CHANGE)), after.select(before.columns)]))


def as_changes(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of any weight as rows that are put or taken back; those that are taken back come first."""
    weights = rows.get_column(CHANGE).to_numpy()
    if len(weights) and np.abs(weights).max() > 1:
        rows = rows[np.repeat(np.arange(len(weights)), np.abs(weights))]
    signs = rows.with_columns(pl.col(CHANGE).sign().cast(CHANGE_TYPE))
    return signs if (signs.get_column(CHANGE) > 0).all() else signs.sort(CHANGE, maintain_order=True)


def put_weights(table: Table, known: pl.DataFrame, delta: pl.DataFrame) -> tuple[Table, pl.DataFrame]:
    """Add weights, those of a row in one, to those of a table, of which `known` are the rows that they may meet.

    Gives the table and what is now in the place of `known`. The table's columns are its key and the weight.
    """
    key, columns = table.key, [*table.key, CHANGE]
    known, delta = known.select(columns), delta.select(columns)
    met = known.join(delta, on=key, how="semi", nulls_equal=True) if known.height else known
    if not met.height:
        return table.put(delta), pl.concat([known, delta])
    summed = pl.concat([met, delta]).group_by(key, maintain_order=True).agg(pl.col(CHANGE).sum())
    changed, gone = summed.filter(pl.col(CHANGE) != 0), summed.filter(pl.col(CHANGE) == 0)
    table = table.put(changed)
    table = table.drop(gone.select(key)) if gone.height else table
    return table, pl.concat([known.join(met, on=key, how="anti", nulls_equal=True), changed])


def ledger(
    rows: pl.DataFrame, row: pl.Expr, reason: str, time: pl.Expr | None = None, watermark: int | None = None
) -> pl.DataFrame:
    """Rows that an operator does not take, as the late ledger has them."""
    at = pl.lit(None, pl.Int64) if time is None else time
    late_by = pl.lit(None, pl.Int64) if time is None or watermark is None else watermark - at
    nothing = pl.lit(None, pl.Int64)
    return rows.select(
        nothing.alias("window_start"),
        nothing.alias("window_end"),
        at.alias("event_time"),
        late_by.alias("late_by"),
        pl.lit(reason).alias("reason"),
        pl.lit(None, pl.Int32).alias("last_pane"),
        row.alias("row"),
    )


def listed(names: Sequence[str]) -> str:
    """Names as a message shows them."""
    return ", ".join(names)
