"""Where in time: the windows that events fall into.

A window is a span `[start, end)`: it holds its start and not its end. Fixed windows are aligned to 1970 in UTC.
Every kind can also be meant in processing time: an event then belongs where the clock stands when it is taken in,
and a window is complete when the clock has passed its end.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from headwater.errors import InvalidError
from headwater.process.durations import micros, parse_duration


class Time(StrEnum):
    """Which of the two times windows are cut from."""

    EVENT = "event time", "The time at which an event happened, as it says itself."
    PROCESSING = "processing time", "The time at which an event is taken in, by the clock."

    def __new__(cls, value: str, doc: str = "") -> "Time":
        time = str.__new__(cls, value)
        time._value_ = value
        time.__doc__ = doc
        return time


EVENT_TIME = Time.EVENT
PROCESSING_TIME = Time.PROCESSING


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size that follow each other without gap or overlap, aligned to 1970 in UTC.

    A window holds the events from its start up to, not including, its end.
    """

    size: str
    offset: str | None = None
    by: Time = Time.EVENT

    def __post_init__(self) -> None:
        parse_duration(self.size)
        _check_offset(self.offset, self.size)
        _check_time(self.by)

    @property
    def duration(self) -> timedelta:
        return parse_duration(self.size)


@dataclass(frozen=True, slots=True)
class Hopping:
    """Windows of one `size` that start every `period`.

    They overlap where the period is shorter than the size; where it is longer there are gaps, and what falls into
    a gap belongs to no window.
    """

    size: str
    period: str
    offset: str | None = None
    by: Time = Time.EVENT

    def __post_init__(self) -> None:
        parse_duration(self.size)
        parse_duration(self.period)
        _check_offset(self.offset, self.period)
        _check_time(self.by)


@dataclass(frozen=True, slots=True)
class Sliding:
    """All events within a duration of each other: each event ends a window that looks back by the duration.

    The window of an event at `t` holds all events from `t - duration` to `t`, both included; it starts nowhere in
    particular. An event that comes late also joins the windows of the events after it.
    """

    duration: str
    by: Time = Time.EVENT

    def __post_init__(self) -> None:
        parse_duration(self.duration)
        _check_time(self.by)


@dataclass(frozen=True, slots=True)
class Session:
    """Events with less than `gap` between each and the next; an event that comes late may join two sessions."""

    gap: str
    by: Time = Time.EVENT

    def __post_init__(self) -> None:
        parse_duration(self.gap)
        _check_time(self.by)


@dataclass(frozen=True, slots=True)
class Global:
    """One window for all time."""

    by: Time = Time.EVENT

    def __post_init__(self) -> None:
        _check_time(self.by)


Window = Tumbling | Hopping | Sliding | Session | Global


def offset_micros(offset: str | None) -> int:
    """Microseconds by which fixed windows are shifted against 1970."""
    return micros(offset) if offset else 0


def _check_offset(offset: str | None, period: str) -> None:
    if offset is not None and parse_duration(offset) >= parse_duration(period):
        raise InvalidError(f"windows that start every {period!r} cannot be shifted by {offset!r}: it must be less")


def _check_time(by: Time) -> None:
    if not isinstance(by, Time):
        raise InvalidError(f"windows are by hw.EVENT_TIME or by hw.PROCESSING_TIME, not by {by!r}")
