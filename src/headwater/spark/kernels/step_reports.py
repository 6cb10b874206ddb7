"""Reports of a bucket's steps in one batch, next to their output: late rows and facts, written to the spool."""

from dataclasses import dataclass, field
from typing import Any

import polars as pl
from pyspark import TaskContext

from headwater.change import CHANGE
from headwater.process.kernel import KernelStep, State
from headwater.spark.kernels.spool import Spool, StepName

PANES_REPORTED = 20
"""Panes of each step to report: a sample, not all."""

_PANE = ("window_start", "window_end", "timing", "pane", "is_final", "trigger")


@dataclass(slots=True)
class StepReport:
    """The reports of the steps of one bucket in a batch; `by` are the columns of the operator's groups."""

    by: tuple[str, ...]
    late: list[pl.DataFrame] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    panes: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0

    def add(self, step: KernelStep, rows: int) -> None:
        """Add a step that has processed rows."""
        self.rows += rows
        if step.late is not None and step.late.height:
            self.late.append(step.late)
        for name, number in step.counters.items():
            self.counters[name] = self.counters.get(name, 0) + number
        if step.panes is not None and step.panes.height:
            shown = step.panes.tail(PANES_REPORTED).select(*self.by, *_PANE, CHANGE)
            self.panes = [*self.panes, *shown.to_dicts()][-PANES_REPORTED:]

    def facts(self, state: State, watermark: int) -> dict[str, Any]:
        """Return the facts about the steps, and about the state after them."""
        runs = [run for table in state.values() for run in table.runs]
        return {
            "watermark": watermark,
            "rows": self.rows,
            "stateRows": sum(map(len, runs)),
            "stateBytes": sum(int(run.frame.estimated_size()) for run in runs),
            "firedPanes": self.counters.get("panes", 0),
            "lateRows": self.counters.get("late", 0),
            "evicted": self.counters.get("evicted", 0),
            "ignoredRows": self.counters.get("ignored", 0),
            "panes": self.panes,
        }


@dataclass(slots=True)
class StepReporter:
    """Collects the reports of one task's steps; a bucket may have several steps, for rows and for its timer."""

    spool: Spool | None
    operator: str
    by: tuple[str, ...]
    _reports: dict[int, StepReport] = field(default_factory=dict)

    def add(self, bucket: int, step: KernelStep, rows: int) -> None:
        """Add a step to the report of its bucket."""
        if self.spool is not None:
            self._reports.setdefault(bucket, StepReport(self.by)).add(step, rows)

    def report(self, bucket: int, state: State, notes: dict[str, Any]) -> None:
        """Write the report of a bucket; after another step of the bucket, the longer report replaces it."""
        task = TaskContext.get()
        if self.spool is None or task is None or (run := task.getLocalProperty("sql.streaming.queryId")) is None:
            return
        report = self._reports.setdefault(bucket, StepReport(self.by))
        facts = {
            **report.facts(state, notes["watermark"]),
            "sources": notes.get("sources", {}),
            "wakeUpMs": notes.get("timer"),
        }
        batch = int(task.getLocalProperty("streaming.sql.batchId") or 0)
        late = pl.concat(report.late) if report.late else None
        self.spool.put(StepName(run, batch, self.operator, bucket), late, facts)
