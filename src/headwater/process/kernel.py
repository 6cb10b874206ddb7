"""Kernel: a stateful operator as a pure function over columns, which every runner runs alike.

A kernel knows no Spark, no clock and no IO. It is given the rows of one step and the time, and returns what it
remembers and what it has to say. Three runners run the same kernel: the simulator, Spark streaming, Spark batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl

from headwater.process.table import Table

State = Mapping[str, Table]
"""What a kernel remembers: tables by name, each with its own key."""

BEGINNING = -(2**63)
"""The watermark before anything is known; all times are microseconds since 1970, UTC."""


def behind(watermark: int, duration: int) -> int:
    """The moment that lies a duration behind a watermark; there is none before the beginning."""
    return max(watermark - duration, BEGINNING)


@dataclass(frozen=True, slots=True)
class Now:
    """The time of a step, in both senses: how far event time is complete, and what the clock says."""

    watermark: int = BEGINNING
    processing_time: int = 0


@dataclass(frozen=True, slots=True)
class KernelStep:
    """What a step gives; `wake_up` is the processing time at which the kernel wants a step, rows or no rows.

    `late` holds the rows that no window took, for the late ledger; `counters` says how many of what there was.
    """

    state: State
    output: pl.DataFrame
    wake_up: int | None = None
    late: pl.DataFrame | None = None
    counters: Mapping[str, int] = field(default_factory=dict)


class Kernel(Protocol):
    """What the runners need to know of an operator."""

    @property
    def schema(self) -> pl.Schema:
        """The rows it takes."""
        ...

    def initial(self) -> State:
        """What it remembers before the first step."""
        ...

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        """Make fewer rows of the same meaning, before they travel; `step` takes the result in the rows' place.

        `now.watermark` is the one at which `step` will take them: rows that are too late for it are not combined.
        """
        ...

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        """Take rows in at `now.watermark`, then fire what is due.

        A runner that learns of a new watermark from the rows themselves calls twice: once with the rows at the old
        watermark, once without rows at the new one. So a row is never late because of a row that came with it.
        """
        ...
