"""Runs the kernels of a query's operators in the driver, one batch after the other.

An operator's rows are processed at the watermark before the batch, then event time advances to the watermark after
it, as in `kernels.runner`. The watermark of a topic follows the event times of all its records (`TopicClock`), so
all queries that read it decide alike which rows are late. The watermark of an operator is the minimum of those it
follows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import polars as pl
import pyarrow as pa

from headwater.app import Topic
from headwater.process.durations import micros
from headwater.process.kernel import BEGINNING, KernelStep, Now, State, time_before
from headwater.process.watermarks import (
    BoundedDisorder,
    Estimate,
    EventTimes,
    PartitionMark,
    UserEstimate,
    Watermarks,
)
from headwater.spark.kernels.frames import as_schema, from_arrow, slices, to_arrow
from headwater.spark.kernels.spool import late_rows_of
from headwater.spark.kernels.step_reports import StepReport
from headwater.spark.kernels.watermark_sources import SOURCES_MAX
from headwater.spark.lanes.steps.blueprint import DrawnOperator
from headwater.store.late import LateRow

STEP_ROWS_MAX = 1_000_000

LINEAGE = "lineage"
"""The note of an operator that two queries have in common only if their states are the same."""

Notes = dict[str, Any]


@dataclass(slots=True)
class TopicClock:
    """The watermarks of a topic's partitions."""

    marks: Watermarks
    since: int | None = None
    """Processing time of the first batch, from which on a topic without records may become idle."""
    idle_after: int | None = None

    @classmethod
    def of(cls, topic: Topic, notes: Notes) -> "TopicClock":
        """Create it from what `notes` returned, or as before the first batch."""
        estimate: Estimate = BoundedDisorder(topic.delay)
        if topic.watermark is not None:
            estimate = UserEstimate(topic.watermark)
        marks = Watermarks(
            estimate=estimate,
            idle_after=topic.idle,
            partitions={name: PartitionMark(**mark) for name, mark in notes.get("partitions", {}).items()},
            watermark=int(notes.get("watermark", BEGINNING)),
        )
        return cls(marks, notes.get("since"), None if topic.idle is None else micros(topic.idle))

    def notes(self) -> Notes:
        """Return its state in JSON's types."""
        partitions = {name: asdict(mark) for name, mark in self.marks.partitions.items()}
        return {"partitions": partitions, "watermark": self.marks.watermark, "since": self.since}

    def observed(self, times: EventTimes, clock: int) -> "TopicClock":
        """Return it after a batch with these event times."""
        high = {str(partition): highest for partition, (highest, _) in times.items()}
        low = {str(partition): lowest for partition, (_, lowest) in times.items()}
        marks = self.marks.observe(high, clock, low)
        return replace(self, marks=marks, since=clock if self.since is None else self.since)

    def active(self, clock: int) -> list[int]:
        """Return the watermarks that hold others back: those of partitions with records that are not idle."""
        if not self.marks.partitions:  # Its event times are unknown.
            is_idle = (
                self.idle_after is not None and self.since is not None and clock - self.since >= self.idle_after
            )
            return [] if is_idle else [BEGINNING]
        return [mark.watermark for mark in self.marks.partitions.values() if not mark.is_idle]

    def next_idle(self, clock: int, *, is_alone: bool) -> int | None:
        """Return when the next partition becomes idle, or the topic if it has no records; None if none will.

        A topic without records holds back no other if it `is_alone`.
        """
        if self.idle_after is None:
            return None
        seen = [mark.seen_at for mark in self.marks.partitions.values() if not mark.is_idle]
        if not self.marks.partitions and self.since is not None and not is_alone:
            seen.append(self.since)
        return min((at + self.idle_after for at in seen if at + self.idle_after > clock), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorBatch:
    """The result of an operator for a batch: its output, its new state, its watermark, and its reports."""

    operator: DrawnOperator
    output: pa.Table
    state: State
    notes: Notes
    watermark: int | None
    wake_up: int | None
    report: StepReport

    @property
    def late(self) -> list[LateRow]:
        """The rows that it rejected."""
        return [row for frame in self.report.late for row in late_rows_of(self.operator.name, frame)]


def run_operator(
    operator: DrawnOperator,
    state: State,
    notes: Mapping[str, Any],
    rows: Sequence[pl.DataFrame],
    *,
    followed: Sequence[int] | None,
    clock: int,
    lineage: str = "",
) -> OperatorBatch:
    """Process the combined rows of a batch.

    `followed` are the watermarks after the batch that its own is the minimum of; None if it has no watermark.
    `lineage` is that of the state after the batch, if the batch changes it.
    """
    kernel = operator.kernel
    before = int(notes.get("watermark", BEGINNING))
    after = before if not followed else max(before, min(followed))
    report = StepReport(operator.by)
    outputs: list[pl.DataFrame] = []
    wake_up = notes.get("wake_up")

    def step(rows: pl.DataFrame, now: Now) -> KernelStep:
        done = kernel.step(state, rows, now)
        report.add(done, rows.height)
        outputs.append(done.output)
        return done

    for number, some in enumerate(rows):
        if number:  # The changes of the previous piece are read faster from a run.
            state = {name: table.sealed() for name, table in state.items()}
        done = step(some, Now(watermark=before, processing_time=clock))
        state, wake_up = done.state, done.wake_up
    is_due = wake_up is not None and wake_up <= clock
    if is_due or (after > before and not kernel.is_timeless):
        done = step(operator.combined, Now(watermark=after, processing_time=clock))
        state, wake_up = done.state, done.wake_up
    return OperatorBatch(
        operator=operator,
        output=_output(operator, outputs, after),
        state=state,
        notes={"watermark": after, "wake_up": wake_up, LINEAGE: lineage if outputs else notes.get(LINEAGE)},
        watermark=None if operator.watermark_column is None else time_before(after, operator.hold),
        wake_up=wake_up if operator.uses_clock else None,
        report=report,
    )


def combined(operator: DrawnOperator, rows: pa.Table, watermark: int) -> list[pl.DataFrame]:
    """Combine the rows of an operator's input, whose columns may have other names, in pieces of bounded length."""
    frame = as_schema(from_arrow(rows.rename_columns(operator.arriving.names())), operator.arriving)
    frame = frame.drop(operator.hints)
    return [operator.kernel.combine(piece, Now(watermark=watermark)) for piece in slices(frame, STEP_ROWS_MAX)]


def sources_of(clocks: Iterable[TopicClock]) -> dict[str, Any]:
    """Return the marks of all partitions of an operator's topics, numbered as in `watermark_sources`."""
    return {
        str(number * SOURCES_MAX + int(name)): asdict(mark)
        for number, clock in enumerate(clocks)
        for name, mark in clock.marks.partitions.items()
    }


def _output(operator: DrawnOperator, outputs: Sequence[pl.DataFrame], watermark: int) -> pa.Table:
    """Return the output of all steps, each row with the watermark after the batch."""
    some = [output for output in outputs if output.height]
    if not some:
        return operator.output.empty_table()
    table = to_arrow(pl.concat(some))
    if operator.watermark_column is not None:
        marks = pa.repeat(pa.scalar(watermark, pa.int64()), table.num_rows)
        table = table.append_column(operator.watermark_column, marks)
    return table.cast(operator.output)
