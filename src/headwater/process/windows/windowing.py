"""Windowing: what, where, when and how in one value, from which a kernel is built."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.aggregates.aggregates import check_what
from headwater.process.durations import micros
from headwater.process.windows.triggers import Default, Trigger
from headwater.process.windows.windows import DocumentedEnum, Window


class Mode(DocumentedEnum):
    """The relation between the panes of a window."""

    DISCARDING = (
        "discarding",
        "Each pane contains the events since the previous one: panes of a window add up.",
    )
    ACCUMULATING = "accumulating", "Each pane contains all events so far: it replaces the previous one."
    RETRACTING = (
        "retracting",
        "Each pane contains all events so far, and the previous pane is retracted row by row, also when sessions "
        "merge. The changes add up, so any computation over them is correct.",
    )


DISCARDING = Mode.DISCARDING
ACCUMULATING = Mode.ACCUMULATING
RETRACTING = Mode.RETRACTING


class Stamp(StrEnum):
    """The event time of a pane: the last microsecond of its window, or the time of its earliest or latest event.

    Events older than the watermark are ignored: a pane never gets a time that was already complete, unless its
    window was complete.

    `hw.windowed` always uses END. The others exist for Beam's transcripts, which check them; they stay in the
    kernel because the time depends on the watermark at which each event arrived, which only the kernel's state
    knows.
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

    `time` names the column of event times (microseconds). `lateness` is the time after its end in which a window
    still accepts events. Without `how`, the mode depends on the input, see `over`.
    """

    what: Mapping[str, Any]
    where: Window
    when: Trigger = field(default_factory=Default)
    how: Mode | None = None
    by: tuple[str, ...] = ()
    lateness: str | None = None
    time: str = EVENT_TIME_COLUMN
    stamp: Stamp = Stamp.END

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", tuple(self.by))
        check_what("windowed", self.what)
        if not isinstance(self.where, Window):
            raise InvalidError(
                f"windowed: where={self.where!r} is not a window; use hw.Tumbling('1 minute') or another window"
            )
        if not isinstance(self.when, Trigger):
            raise InvalidError(
                f"windowed: when={self.when!r} is not a trigger; use hw.AfterWatermark() or another trigger"
            )
        if self.how is not None and not isinstance(self.how, Mode):
            raise InvalidError(
                f"windowed: how={self.how!r} is not a mode; use hw.DISCARDING, hw.ACCUMULATING or hw.RETRACTING"
            )
        if self.lateness is not None:
            micros(self.lateness)
        clash = {*self.by, *OUTPUT_COLUMNS, "window"} & set(self.what) | {*OUTPUT_COLUMNS} & set(self.by)
        if clash:
            raise InvalidError(
                f"windowed: the result would have two columns {', '.join(map(repr, sorted(clash)))}; "
                "rename one in `what`"
            )
        if len(set(self.by)) < len(self.by):
            raise InvalidError(f"windowed: `by` names a column twice: {', '.join(map(repr, self.by))}")

    def over(self, *, changes: bool) -> "Windowing":
        """Return this computation for an input with or without changes: it then has a mode.

        The default is RETRACTING over changes and for windows that merge, because results of windows that exist no
        more must be removed; else ACCUMULATING. A mode that would give wrong results is refused.
        """
        kind, merges = f"hw.{type(self.where).__name__}", self.where.merges
        how = self.how or (Mode.RETRACTING if changes or merges else Mode.ACCUMULATING)
        if changes and self.where.by_clock and not self.where.is_single:
            raise InvalidError(
                f"windowed: the input has changes, and {kind} is by processing time: a retraction would be in the "
                "window of the time at which it is processed, not in that of its row; use windows by event time"
            )
        if changes and not self.where.is_fixed and how is not Mode.RETRACTING:
            raise InvalidError(
                f"windowed: the input has changes, and with how=hw.{how.name} the panes of an {kind} window that "
                "exists no more, because its rows were retracted, would remain; use how=hw.RETRACTING, or leave "
                "`how` out"
            )
        if changes and not self.where.is_fixed and self.stamp is not Stamp.END:
            raise InvalidError(
                f"windowed: the input has changes, and panes of {kind} windows have the stamp {self.stamp}; the "
                "event may be retracted: use the stamp 'end'"
            )
        return replace(self, how=how)

    @property
    def lateness_micros(self) -> int:
        """The time after its end in which a window accepts events."""
        return micros(self.lateness) if self.lateness else 0

    @property
    def needs_clock(self) -> bool:
        """True if results depend on processing time, so that the kernel must run even without new rows."""
        return self.where.by_clock or self.when.has_deadlines
