"""What a bucket's steps have to tell in one batch beside their rows: late rows and facts, left in the spool."""

from dataclasses import dataclass, field
from typing import Any

import polars as pl
from pyspark import TaskContext

from headwater.process.kernel import KernelStep, State
from headwater.spark.kernels.spool import Spool, StepName

PANES_TOLD = 20
"""Of each step: to see what happens, not to have it all."""

_PANE = ("window_start", "window_end", "timing", "pane", "is_final", "trigger")


@dataclass(slots=True)
class _Told:
    late: list[pl.DataFrame] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    panes: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0


@dataclass(slots=True)
class StepReporter:
    """Collects what the steps of one task say; a bucket may have several, with rows and by its timer."""

    spool: Spool | None
    operator: str
    by: tuple[str, ...]
    _told: dict[int, _Told] = field(default_factory=dict)

    def note(self, bucket: int, step: KernelStep, rows: int) -> None:
        """Remember what a step said."""
        if self.spool is None:
            return
        told = self._told.setdefault(bucket, _Told())
        told.rows += rows
        if step.late is not None and step.late.height:
            told.late.append(step.late)
        for name, number in step.counters.items():
            told.counters[name] = told.counters.get(name, 0) + number
        if step.output.height and "pane" in step.output.columns:
            shown = step.output.tail(PANES_TOLD).select(*self.by, *_PANE, "_change")
            told.panes = [*told.panes, *shown.to_dicts()][-PANES_TOLD:]

    def tell(self, bucket: int, state: State, notes: dict[str, Any]) -> None:
        """Leave all that was noted of a bucket; again, and more, after another step of it."""
        task = TaskContext.get()
        if self.spool is None or task is None or (run := task.getLocalProperty("sql.streaming.queryId")) is None:
            return
        told = self._told.setdefault(bucket, _Told())
        runs = [run for table in state.values() for run in table.runs]
        facts = {
            "watermark": notes["watermark"],
            "sources": notes.get("sources", {}),
            "rows": told.rows,
            "stateRows": sum(map(len, runs)),
            "stateBytes": sum(int(run.frame.estimated_size()) for run in runs),
            "firedPanes": told.counters.get("panes", 0),
            "lateRows": told.counters.get("late", 0),
            "evicted": told.counters.get("evicted", 0),
            "ignoredRows": told.counters.get("ignored", 0),
            "panes": told.panes,
        }
        batch = int(task.getLocalProperty("streaming.sql.batchId") or 0)
        late = pl.concat(told.late) if told.late else None
        self.spool.put(StepName(run, batch, self.operator, bucket), late, facts)
