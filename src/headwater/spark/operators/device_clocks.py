"""`hw.correct_clocks`: event times by the clocks of devices become event times by ours."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import InvalidError
from headwater.process.device_clocks import ClockKernel, DeviceClocks
from headwater.spark.kernels.attach import INPUTS, attach
from headwater.spark.kernels.frames import empty_like
from headwater.spark.source.decoding import event_time_of


def correct_clocks(
    *, device: str, sent: str, received: str, memory: str = "1 hour"
) -> Callable[[DataFrame], DataFrame]:
    """Move event times from the clocks of devices to ours.

    `sent` is the time at which a row was sent, by the clock of its `device`, like the event time; `received` is
    the time at which it arrived, by ours. The offset of a device's clock is estimated from the rows that arrived
    within `memory`, and is in the column `clock_offset`, in microseconds.
    """

    def apply(events: DataFrame) -> DataFrame:
        event = event_time_of(events)
        clocks = DeviceClocks(device=device, event=event, sent=sent, received=received, memory=memory)
        missing = [name for name in (device, sent, received) if name not in events.columns]
        if missing:
            raise InvalidError(
                f"correct_clocks: there is no column {', '.join(map(repr, missing))}; the columns are "
                f"{', '.join(events.columns)}"
            )
        names = (event, sent, received)
        rows = events.withColumns({name: F.unix_micros(F.col(name).cast("timestamp")) for name in names})
        kernel = ClockKernel.of(clocks, empty_like(rows.schema).schema)
        # Without the state's schema, unlike other operators: existing checkpoints have it so.
        description = {"name": "correct_clocks", "by": [device], "memory": memory, INPUTS: (events,)}
        moved = attach(rows, kernel, description, by=[device], kind="clocks")
        times = {name: F.timestamp_micros(name) for name in names}
        return moved.withColumns(times).withMetadata(event, events.schema[event].metadata)

    return apply
