"""Kernel: a stateful operator as a pure function over columns, the same for every runner.

A kernel uses no Spark, no clock and no IO. It takes its state, the rows of one step and the time, and returns its
new state and its output. Three runners run the same kernel: the simulator, Spark streaming, Spark batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl

from headwater.process.table import Table

State = Mapping[str, Table]
"""The state of a kernel: tables by name, each with its own key."""

BEGINNING = -(2**63)
"""The initial watermark. All times are microseconds since 1970, UTC."""


def time_before(watermark: int, duration: int) -> int:
    """Return the time that is a duration before a watermark, but not less than `BEGINNING`."""
    return max(watermark - duration, BEGINNING)


@dataclass(frozen=True, slots=True)
class Now:
    """The time of a step: the watermark, up to which event time is complete, and processing time, by the clock."""

    watermark: int = BEGINNING
    processing_time: int = 0


@dataclass(frozen=True, slots=True)
class KernelStep:
    """The result of a step.

    `wake_up` is the processing time at which the kernel needs a step even without rows. `late` holds the rejected
    rows, as entries of the late ledger. `counters` are numbers for statistics, by name. `panes` is the output of a
    windowed computation, whose columns are `windowing.OUTPUT_COLUMNS`; None for every other kernel.
    """

    state: State
    output: pl.DataFrame
    wake_up: int | None = None
    late: pl.DataFrame | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    panes: pl.DataFrame | None = None


class Kernel(Protocol):
    """The interface of an operator that runners use."""

    @property
    def schema(self) -> pl.Schema:
        """The schema of its input rows."""
        ...

    def initial(self) -> State:
        """Return the state before the first step."""
        ...

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        """Reduce rows before they are sent to another process; `step` accepts the result in place of the rows.

        `now.watermark` is the watermark at which `step` will process them; rows that are too late for it stay as
        they are.
        """
        ...

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        """Process rows at `now.watermark`, then emit the results that are due.

        A runner that derives a new watermark from the rows themselves calls twice: once with the rows at the old
        watermark, once without rows at the new one. So a row is never late because of a row of the same batch.
        """
        ...


class OperatorKernel(Kernel, Protocol):
    """The kernel of an operator for users, whose output may be the input of another one."""

    @property
    def is_timeless(self) -> bool:
        """True if a step without rows does nothing, however far time has advanced."""
        ...

    def retracts(self, changes: bool) -> bool:
        """Return whether it may retract rows; `changes` is True if rows of its input may be retracted."""
        ...
