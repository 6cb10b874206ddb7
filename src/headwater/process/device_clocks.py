"""Clocks of devices: estimate the error of each clock from the rows themselves, and correct it.

A row contains the time of its event and the time at which it was sent, both by the device's clock, and the time at
which it was received, by ours. The difference between receiving and sending is the clock's offset plus the
transmission time. Transmission time is never negative and sometimes short, so the least difference seen for a
device is the best estimate of its offset: it is too large by the shortest transmission time. Clocks drift and are
reset, so only recent differences count.
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
"""The column with the correction that was added to the event time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClocks:
    """The columns that describe devices' clocks: the device, and three times in microseconds.

    A difference counts for at least `memory` and at most twice that.
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
    """Converts event times from the devices' clocks to ours; returns all rows, with `clock_offset`.

    Rows in which a time is missing do not affect the estimate. The offset of an unknown clock is 0.
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
            raise InvalidError(
                f"cannot correct clocks: the rows already have a column {OFFSET!r}; rename it first"
            )
        return cls(clocks, schema)

    @property
    def output_schema(self) -> pl.Schema:
        return pl.Schema({**self.schema, OFFSET: pl.Int64()})

    @property
    def is_timeless(self) -> bool:
        return False

    def retracts(self, changes: bool) -> bool:
        return changes

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
        kept = pl.concat([known, self._least_differences(rows).select(known.columns)])
        kept = kept.group_by(device, _PERIOD, maintain_order=True).agg(pl.col(OFFSET).min()).filter(recent)
        best = kept.group_by(device, maintain_order=True).agg(pl.col(OFFSET).min())
        corrected = rows.join(best, on=device, how="left", maintain_order="left")
        corrected = corrected.with_columns(pl.col(OFFSET).fill_null(0))
        corrected = corrected.with_columns(pl.col(self.clocks.event) + pl.col(OFFSET))
        outdated = known.join(kept, on=[device, _PERIOD], how="anti")
        output = corrected.select(self.output_schema.names())
        return KernelStep({CLOCKS: table.remove(outdated).put(kept)}, output)

    def _least_differences(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the least difference of each device in each period."""
        received = pl.col(self.clocks.received)
        differences = rows.select(
            self.clocks.device,
            (received // micros(self.clocks.memory)).alias(_PERIOD),
            (received - pl.col(self.clocks.sent)).alias(OFFSET),
        ).drop_nulls()
        return differences.group_by(self.clocks.device, _PERIOD, maintain_order=True).agg(pl.col(OFFSET).min())
