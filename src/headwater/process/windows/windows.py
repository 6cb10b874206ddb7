"""Windows: the spans of time that events are grouped into.

A window is a span `[start, end)`: its start is inclusive, its end exclusive. Fixed windows are aligned to 1970 in
UTC. Every kind also exists in processing time: an event then belongs to the windows of the time at which it is
processed, and a window is complete when the clock has passed its end.

To add a kind of window, add a class here and its bounds in `placement`. The class must define every abstract
property of `Window`; the kernel looks at nothing else.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Self

from headwater.errors import InvalidError
from headwater.process.durations import micros, parse_duration


class DocumentedEnum(StrEnum):
    """An enumeration whose members are written as a value and a docstring."""

    def __new__(cls, value: str, doc: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.__doc__ = doc
        return member


class Time(DocumentedEnum):
    """The time that decides to which windows an event belongs."""

    EVENT = "event time", "The time at which an event happened, as stated by the event."
    PROCESSING = "processing time", "The time at which an event is processed, by the clock."


EVENT_TIME = Time.EVENT
PROCESSING_TIME = Time.PROCESSING


class Window(ABC):
    """Base class of the kinds of windows.

    The properties have no default, so that a new kind cannot get a wrong answer by omission.
    """

    __slots__ = ()

    by: Time

    @property
    @abstractmethod
    def is_fixed(self) -> bool:
        """True if a row's windows depend only on its time; then a window's start determines its end."""

    @property
    @abstractmethod
    def is_single(self) -> bool:
        """True if there is only one window, so that a group alone identifies it."""

    @property
    @abstractmethod
    def merges(self) -> bool:
        """True if windows of a group that overlap become one window."""

    @property
    @abstractmethod
    def ends_at_events(self) -> bool:
        """True if each event has its own window, which contains the events before it; these must be kept."""

    @property
    def by_clock(self) -> bool:
        """True if the windows are in processing time."""
        return self.by is Time.PROCESSING


@dataclass(frozen=True, slots=True)
class Tumbling(Window):
    """Windows of one size that follow each other without gap or overlap, aligned to 1970 in UTC.

    A window contains the events from its start up to, not including, its end.
    """

    size: str
    offset: str | None = None
    by: Time = Time.EVENT

    is_fixed = True
    is_single = False
    merges = False
    ends_at_events = False

    def __post_init__(self) -> None:
        parse_duration(self.size)
        _check_offset(self.offset, self.size)
        _check_time(self.by)

    @property
    def duration(self) -> timedelta:
        return parse_duration(self.size)


@dataclass(frozen=True, slots=True)
class Hopping(Window):
    """Windows of one `size` that start every `period`.

    They overlap if the period is shorter than the size. If it is longer there are gaps, and events in a gap belong
    to no window.
    """

    size: str
    period: str
    offset: str | None = None
    by: Time = Time.EVENT

    is_fixed = True
    is_single = False
    merges = False
    ends_at_events = False

    def __post_init__(self) -> None:
        parse_duration(self.size)
        parse_duration(self.period)
        _check_offset(self.offset, self.period)
        _check_time(self.by)


@dataclass(frozen=True, slots=True)
class Sliding(Window):
    """All events within a duration of each other: each event ends a window that looks back by the duration.

    The window of an event at `t` contains all events from `t - duration` to `t`, both included; its start is not
    aligned to anything. A late event also joins the windows of the events after it.
    """

    duration: str
    by: Time = Time.EVENT

    is_fixed = False
    is_single = False
    merges = False
    ends_at_events = True

    def __post_init__(self) -> None:
        parse_duration(self.duration)
        _check_time(self.by)


@dataclass(frozen=True, slots=True)
class Session(Window):
    """Events with less than `gap` between each and the next. A late event may join two sessions."""

    gap: str
    by: Time = Time.EVENT

    is_fixed = False
    is_single = False
    merges = True
    ends_at_events = False

    def __post_init__(self) -> None:
        parse_duration(self.gap)
        _check_time(self.by)


@dataclass(frozen=True, slots=True)
class Global(Window):
    """One window for all time."""

    by: Time = Time.EVENT

    is_fixed = True
    is_single = True
    merges = False
    ends_at_events = False

    def __post_init__(self) -> None:
        _check_time(self.by)


def offset_micros(offset: str | None) -> int:
    """Return the shift of fixed windows against 1970, in microseconds."""
    return micros(offset) if offset else 0


def _check_offset(offset: str | None, period: str) -> None:
    if offset is not None and parse_duration(offset) >= parse_duration(period):
        raise InvalidError(
            f"windows that start every {period!r} cannot be shifted by {offset!r}: the offset must be shorter"
        )


def _check_time(by: Time) -> None:
    if not isinstance(by, Time):
        raise InvalidError(f"windows are by hw.EVENT_TIME or by hw.PROCESSING_TIME, not by {by!r}")
