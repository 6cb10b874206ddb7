"""The clocks of devices: how far each is off, estimated from the rows themselves, and corrected.

A row knows when its event was and when it was sent, by the device's clock, and when it was received, by ours. What
lies between sending and receiving is the clock's offset and the way. The way never takes less than no time and is
sometimes short, so the least difference seen of a device is nearest to its offset, off by the shortest way seen.
Clocks drift and are set anew, so only what was seen lately counts.
"""

from dataclasses import dataclass

import polars as pl

from headwater.errors import InvalidError
from headwater.process.durations import micros
from headwater.process.kernel import KernelStep, Now, State
from headwater.process.table import Table

CLOCKS = "clocks"
_PERIOD = "period"
OFFSET = "clock_offset"
"""The column that shows by how much an event time was moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClocks:
    """Which columns tell of devices' clocks: who it is, and three times in microseconds.

    An offset counts for `memory` at least and twice that at most.
    """

    device: str
    event: str
    sent: str
    received: str
    memory: str = "1 hour"

    def __post_init__(self) -> None:
        micros(self.memory)


@dataclass(frozen=True, slots=True)
class ClockKernel:
    """Moves event times from the devices' clocks to ours; gives all rows back, with `clock_offset`.

    A time that is missing moves nothing, and where nothing is known of a clock the offset is 0.
    """

    clocks: DeviceClocks
    schema: pl.Schema

    @classmethod
    def of(cls, clocks: DeviceClocks, schema: pl.Schema) -> "ClockKernel":
        """Build the kernel for rows of this schema."""
        schema = pl.Schema(schema)
        for column in (clocks.device, clocks.event, clocks.sent, clocks.received):
            if column not in schema:
                raise InvalidError(
                    f"cannot correct clocks: there is no column {column!r}; the columns are {', '.join(schema)}"
                )
        for column in (clocks.event, clocks.sent, clocks.received):
            if schema[column] != pl.Int64:
                raise InvalidError(
                    f"cannot correct clocks: the time {column!r} is {schema[column]}, not Int64 microseconds"
                )
        if OFFSET in schema:
            raise InvalidError(f"cannot correct clocks: there is a column {OFFSET!r} already; rename it before")
        return cls(clocks, schema)

    @property
    def output_schema(self) -> pl.Schema:
        return pl.Schema({**self.schema, OFFSET: pl.Int64()})

    def initial(self) -> State:
        device = self.clocks.device
        schema = pl.Schema({device: self.schema[device], _PERIOD: pl.Int64(), OFFSET: pl.Int64()})
        return {CLOCKS: Table.empty(schema, (device, _PERIOD))}

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        return rows

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        device, table = self.clocks.device, state[CLOCKS]
        known = table.get(rows.select(device).unique())
        recent = pl.col(_PERIOD) >= pl.col(_PERIOD).max().over(device) - 1
        kept = pl.concat([known, self._seen(rows).select(known.columns)])
        kept = kept.group_by(device, _PERIOD, maintain_order=True).agg(pl.col(OFFSET).min()).filter(recent)
        nearest = kept.group_by(device, maintain_order=True).agg(pl.col(OFFSET).min())
        moved = rows.join(nearest, on=device, how="left", maintain_order="left")
        moved = moved.with_columns(pl.col(OFFSET).fill_null(0))
        moved = moved.with_columns(pl.col(self.clocks.event) + pl.col(OFFSET)).select(self.output_schema.names())
        forgotten = known.join(kept, on=[device, _PERIOD], how="anti").select(device, _PERIOD)
        return KernelStep({CLOCKS: table.drop(forgotten).put(kept)}, moved)

    def _seen(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The least difference of each device in each period of time."""
        received = pl.col(self.clocks.received)
        told = rows.select(
            self.clocks.device,
            (received // micros(self.clocks.memory)).alias(_PERIOD),
            (received - pl.col(self.clocks.sent)).alias(OFFSET),
        ).drop_nulls()
        return told.group_by(self.clocks.device, _PERIOD, maintain_order=True).agg(pl.col(OFFSET).min())
