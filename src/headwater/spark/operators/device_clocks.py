"""`hw.correct_clocks`: event times by the clocks of devices become event times by ours."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import InvalidError
from headwater.process.device_clocks import OFFSET, ClockKernel, DeviceClocks
from headwater.spark.kernels.attach import INPUTS, attach
from headwater.spark.kernels.change_lineage import changes_of
from headwater.spark.kernels.column_names import column, with_metadata
from headwater.spark.kernels.frames import empty_like
from headwater.spark.kernels.watermark_sources import SOURCE, WATERMARK, watermark_columns
from headwater.spark.operators.timing import micros_of, timing_of
from headwater.spark.source.decoding import BY_PARTITION_KEY, event_time_of


def correct_clocks(
    *, device: str, sent: str, received: str, memory: str = "1 hour"
) -> Callable[[DataFrame], DataFrame]:
    """Move event times from the clocks of devices to ours.

    `sent` is the time at which a row was sent, by the clock of its `device`, like the event time; `received` is
    the time at which it arrived, by ours. The offset of a device's clock is estimated from the rows that arrived
    within `memory`, and is in the column `clock_offset`, in microseconds.
    """

    def apply(events: DataFrame) -> DataFrame:
        timing, event = timing_of(events), event_time_of(events)
        changes = changes_of(events)
        if changes is not None and changes.retracts:
            raise InvalidError(
                f"correct_clocks: rows that {changes} retracts could get another offset than when they were "
                "inserted; correct the clocks first"
            )
        clocks = DeviceClocks(device=device, event=event, sent=sent, received=received, memory=memory)
        missing = [name for name in (device, sent, received) if name not in events.columns]
        if missing:
            raise InvalidError(
                f"correct_clocks: there is no column {', '.join(map(repr, missing))}; the columns are "
                f"{', '.join(events.columns)}"
            )
        names = (event, sent, received)
        rows = events.withColumns({name: micros_of(name, events.schema[name].dataType) for name in names})
        if timing.by_partition or timing.has_source:
            # The tasks after the kernel are buckets, so the rows carry the partition that they come from.
            rows = rows.withColumn(SOURCE, timing.source())
        kernel = ClockKernel.of(clocks, empty_like(rows.schema).schema)
        # Without the state's schema, unlike other operators: existing checkpoints have it so.
        description = {"name": "correct_clocks", "by": [device], "memory": memory, INPUTS: (events,)}
        moved = attach(rows, kernel, description, by=[device], kind="clocks")
        times = {name: F.timestamp_micros(column(name)) for name in names}
        if timing.has_watermark:  # It was known by the clock of the row's device, too.
            times[WATERMARK] = F.col(WATERMARK) + F.col(OFFSET)
        return with_metadata(moved.withColumns(times), event, _marks(events, event))

    return apply


def _marks(events: DataFrame, event: str) -> dict[str, Any]:
    """Return the metadata of the corrected event time: that of the event time, without the source's tasks."""
    marks = dict(events.schema[event].metadata)
    if marks.pop(BY_PARTITION_KEY, False):
        marks |= watermark_columns("correct_clocks", SOURCE)
    return marks
