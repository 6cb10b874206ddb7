"""Minimal kernels for a running sum and a tumbling window, to measure what `hw.windowed` adds to them."""

from dataclasses import dataclass

import polars as pl

from headwater.process.kernel import KernelStep, Now, State
from headwater.process.table import Table

WINDOW = 60_000_000


@dataclass(frozen=True)
class RunningSum:
    """The total of each key, emitted again in every batch that contains the key."""

    def initial(self) -> State:
        return {"sums": Table.empty(pl.Schema({"k": pl.String, "v": pl.Float64}), ["k"])}

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        return rows.group_by("k").agg(pl.col("v").sum())

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        rows = self.combine(rows, now)
        known = state["sums"].get(rows.select("k"))
        totals = self.combine(pl.concat([known, rows]), now) if known.height else rows
        return KernelStep({"sums": state["sums"].put(totals)}, totals)


@dataclass(frozen=True)
class WindowSum:
    """The total of each key and minute, emitted when the watermark has passed the minute."""

    def initial(self) -> State:
        schema = pl.Schema({"k": pl.String, "w": pl.Int64, "v": pl.Float64})
        return {"windows": Table.empty(schema, ["k", "w"])}

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        if "w" not in rows.columns:
            rows = rows.select("k", (pl.col("at") // WINDOW * WINDOW).alias("w"), "v")
        return rows.group_by("k", "w").agg(pl.col("v").sum())

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        table = state["windows"]
        if rows.height:
            rows = self.combine(rows, now).filter(pl.col("w") + WINDOW > now.watermark)
            known = table.get(rows.select("k", "w"))
            table = table.put(self.combine(pl.concat([known, rows]), now) if known.height else rows)
        due = table.where(pl.col("w") + WINDOW <= now.watermark)
        return KernelStep({"windows": table.drop(due.select("k", "w"))}, due)
