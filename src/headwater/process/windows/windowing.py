"""Windowing: what, where, when and how in one value, from which a kernel is built."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.aggregates.aggregates import Aggregate
from headwater.process.durations import micros
from headwater.process.windows.triggers import Default, Trigger
from headwater.process.windows.windows import Window


class Mode(StrEnum):
    """How the panes of a window relate."""

    DISCARDING = "discarding", "Each pane holds what came since the one before: the panes of a window add up."
    ACCUMULATING = "accumulating", "Each pane holds all that came so far: it replaces the one before."
    RETRACTING = (
        "retracting",
        "Each pane holds all that came so far, and the one before is taken back: row for row, also where sessions "
        "merged. So the changes add up, whatever is computed of them.",
    )

    def __new__(cls, value: str, doc: str = "") -> "Mode":
        mode = str.__new__(cls, value)
        mode._value_ = value
        mode.__doc__ = doc
        return mode


DISCARDING = Mode.DISCARDING
ACCUMULATING = Mode.ACCUMULATING
RETRACTING = Mode.RETRACTING


class Stamp(StrEnum):
    """Which event time a pane gets: the last moment of its window, or that of its earliest or latest event.

    Events behind the watermark do not count: a pane is never stamped with a time that was already complete, unless
    its window was.
    """

    END = "end"
    EARLIEST = "earliest"
    LATEST = "latest"


EVENT_TIME_COLUMN = "event_time"
PANE_COLUMNS = ("timing", "pane", "nonspeculative_pane", "is_final", "trigger")
OUTPUT_COLUMNS = ("window_start", "window_end", EVENT_TIME_COLUMN, *PANE_COLUMNS, CHANGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windowing:
    """A windowed computation: what is computed, where in time, when it is emitted, how refinements relate.

    `time` names the column of event times (microseconds). `lateness` is how long after its end a window still
    takes events; `stamp_shift` moves the stamps of panes, for tests of downstream order.
    """

    what: Mapping[str, Any]
    where: Window
    when: Trigger = field(default_factory=Default)
    how: Mode = Mode.ACCUMULATING
    by: tuple[str, ...] = ()
    lateness: str | None = None
    time: str = EVENT_TIME_COLUMN
    stamp: Stamp = Stamp.END
    stamp_shift: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", tuple(self.by))
        if not self.what:
            raise InvalidError("windowed: `what` names nothing to compute")
        for name, aggregate in self.what.items():
            if not isinstance(aggregate, Aggregate) and not hasattr(aggregate, "partial"):
                raise InvalidError(
                    f"windowed: `what` has {aggregate!r} for {name!r}; give an aggregate such as hw.sum('amount')"
                )
        for name, value, kind in (("where", self.where, Window), ("when", self.when, Trigger)):
            if not isinstance(value, kind):
                raise InvalidError(
                    f"windowed: `{name}` cannot be {value!r}; see the documentation for what it can"
                )
        if not isinstance(self.how, Mode):
            raise InvalidError(f"windowed: `how` is hw.DISCARDING, ACCUMULATING or RETRACTING, not {self.how!r}")
        if self.lateness is not None:
            micros(self.lateness)
        clash = {*self.by, *OUTPUT_COLUMNS, "window"} & set(self.what) | {*OUTPUT_COLUMNS} & set(self.by)
        if clash:
            raise InvalidError(f"windowed: {', '.join(sorted(clash))} would be there twice; rename it in `what`")
        if len(set(self.by)) < len(self.by):
            raise InvalidError(f"windowed: `by` names a column twice: {', '.join(self.by)}")

    @property
    def lateness_micros(self) -> int:
        """How long after its end a window takes events."""
        return micros(self.lateness) if self.lateness else 0
