"""Run a kernel over tables as the runners do, and sum its changes, for all tests of joins."""

import math
import os
from collections import Counter
from typing import Any

import polars as pl

from headwater.change import CHANGE
from headwater.process.changes import CHANGE_TYPE
from headwater.process.kernel import Kernel, Now

EXAMPLES = int(os.environ.get("HEADWATER_EXAMPLES", "40"))  # more examples find rare cases


def frozen(value: Any) -> Any:
    """Convert a value to one that can be a key of a dictionary; NaN, which equals only itself, becomes a text."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return tuple((name, frozen(part)) for name, part in value.items())
    return tuple(frozen(part) for part in value) if isinstance(value, list) else value


class Running:
    """A kernel with its state and the sum of its output. `seal` does what a runner does between batches."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.state = kernel.initial()
        self.table: Counter[Any] = Counter()
        self.late: list[dict[str, Any]] = []
        self.counters: Counter[str] = Counter()
        self.output = pl.DataFrame()

    def step(self, rows: pl.DataFrame | None = None, watermark: int = -(2**63), *, seal: bool = False) -> None:
        rows = pl.DataFrame(schema=self.kernel.schema) if rows is None else rows
        now = Now(watermark=watermark)
        step = self.kernel.step(self.state, self.kernel.combine(rows, now), now)
        self.state = {name: table.sealed() if seal else table for name, table in step.state.items()}
        self.output = step.output
        self.counters.update(step.counters)
        if step.late is not None:
            self.late += step.late.to_dicts()
        assert step.output.schema[CHANGE] == CHANGE_TYPE
        for row, change in zip(
            step.output.drop(CHANGE).iter_rows(), step.output.get_column(CHANGE).to_list(), strict=True
        ):
            assert change in (1, -1)
            self.table[frozen(list(row))] += change
            if not self.table[frozen(list(row))]:
                del self.table[frozen(list(row))]

    @property
    def state_rows(self) -> int:
        return sum(len(table) for table in self.state.values())
