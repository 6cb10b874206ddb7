"""Triggers: when a window emits its result. Triggers combine into trees.

A trigger fires, which emits a pane, and may then be finished. A window whose trigger has finished accepts no more
events: they go to the late ledger.

To add a trigger, add a class here and a node in `trigger_columns`. The class must define every abstract property
of `Trigger`; the kernel looks at nothing else.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from headwater.errors import InvalidError
from headwater.process.durations import parse_duration


class TriggerEnd(IntEnum):
    """The earliest time at which a trigger may finish; a greater value is an earlier time."""

    NEVER = 0
    AT_END = 1
    ANY_TIME = 2


class Trigger(ABC):
    """Base class of the triggers.

    The properties have no default, so that a new trigger cannot get a wrong answer by omission.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def may_finish(self) -> TriggerEnd:
        """The earliest time at which the trigger may finish."""

    @property
    @abstractmethod
    def has_deadlines(self) -> bool:
        """True if the trigger fires at points in processing time, so that the clock must wake its windows."""

    @property
    @abstractmethod
    def sees_each_record(self) -> bool:
        """True if the trigger must examine records one by one, so that they cannot be combined beforehand."""

    @property
    @abstractmethod
    def has_on_time_pane(self) -> bool:
        """True if the trigger fires when the watermark passes the window's end, even without new events."""

    @property
    def label(self) -> str:
        """Name of the trigger in the column `trigger` of the panes that it fires."""
        return type(self).__name__


class _Composite(Trigger):
    """A trigger made of others; it needs everything that any of its parts needs."""

    __slots__ = ()

    @property
    @abstractmethod
    def parts(self) -> "tuple[Trigger, ...]":
        """The triggers that it is made of."""

    @property
    def has_deadlines(self) -> bool:
        return any(part.has_deadlines for part in self.parts)

    @property
    def sees_each_record(self) -> bool:
        return any(part.sees_each_record for part in self.parts)

    @property
    def has_on_time_pane(self) -> bool:
        return any(part.has_on_time_pane for part in self.parts)


@dataclass(frozen=True, slots=True)
class Default(Trigger):
    """Fire when the watermark passes the window's end, and again in every later step that brings events for it."""

    may_finish = TriggerEnd.NEVER
    has_deadlines = False
    sees_each_record = False
    has_on_time_pane = True


@dataclass(frozen=True, slots=True)
class AfterWatermark(_Composite):
    """Fire once when the watermark passes the window's end.

    `early` fires repeatedly before that, `late` after it. Without `late`, the trigger is finished at the end.
    """

    early: "Trigger | None" = None
    late: "Trigger | None" = None

    has_on_time_pane = True

    def __post_init__(self) -> None:
        _check("AfterWatermark", *self.parts)

    @property
    def parts(self) -> "tuple[Trigger, ...]":
        return tuple(part for part in (self.early, self.late) if part is not None)

    @property
    def may_finish(self) -> TriggerEnd:
        return TriggerEnd.AT_END if self.late is None else TriggerEnd.NEVER


@dataclass(frozen=True, slots=True)
class AfterCount(Trigger):
    """Fire once when the window has at least `count` events.

    Events of one step are counted together, so the pane may contain more than `count`.
    """

    count: int

    may_finish = TriggerEnd.ANY_TIME
    has_deadlines = False
    sees_each_record = False
    has_on_time_pane = False

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise InvalidError(f"AfterCount takes a number of events, 1 or more, not {self.count!r}")

    @property
    def label(self) -> str:
        return f"AfterCount({self.count})"


@dataclass(frozen=True, slots=True)
class AfterProcessingTime(Trigger):
    """Fire once when `delay` has passed since the first event; with `aligned_to`, at the next multiple of it.

    `AfterProcessingTime("10 seconds")` waits ten seconds for each window separately;
    `AfterProcessingTime(aligned_to="1 minute")` fires all windows together at the full minute.
    """

    delay: str | None = None
    aligned_to: str | None = None

    may_finish = TriggerEnd.ANY_TIME
    has_deadlines = True
    sees_each_record = False
    has_on_time_pane = False

    def __post_init__(self) -> None:
        for duration in (self.delay, self.aligned_to):
            if duration is not None:
                parse_duration(duration)

    @property
    def label(self) -> str:
        arguments = [repr(self.delay)] if self.delay else []
        if self.aligned_to:
            arguments.append(f"aligned_to={self.aligned_to!r}")
        return f"AfterProcessingTime({', '.join(arguments)})"


@dataclass(frozen=True, slots=True)
class EveryBatch(Trigger):
    """Fire once for each step (micro-batch) that brings events for the window; all windows fire together."""

    may_finish = TriggerEnd.NEVER
    has_deadlines = False
    sees_each_record = False
    has_on_time_pane = False


@dataclass(frozen=True, slots=True)
class PerRecord(Trigger):
    """Fire once for each event, as if it had arrived alone. Costs one pass for each event of the busiest key."""

    may_finish = TriggerEnd.NEVER
    has_deadlines = False
    sees_each_record = True
    has_on_time_pane = False


@dataclass(frozen=True, slots=True)
class Repeatedly(_Composite):
    """Fire whenever `trigger` fires, and restart it when it has finished. Never finishes itself."""

    trigger: "Trigger"

    may_finish = TriggerEnd.NEVER

    def __post_init__(self) -> None:
        _check("Repeatedly", self.trigger)

    @property
    def parts(self) -> "tuple[Trigger, ...]":
        return (self.trigger,)


@dataclass(frozen=True, slots=True)
class OrFinally(_Composite):
    """Fire whenever `trigger` fires, until `until` fires, which emits the last pane."""

    trigger: "Trigger"
    until: "Trigger"

    def __post_init__(self) -> None:
        _check("OrFinally", self.trigger, self.until)

    @property
    def parts(self) -> "tuple[Trigger, ...]":
        return self.trigger, self.until

    @property
    def may_finish(self) -> TriggerEnd:
        return max(part.may_finish for part in self.parts)


@dataclass(frozen=True, slots=True, init=False)
class _Several(_Composite):
    """A trigger made of one or more others, given as arguments."""

    triggers: "tuple[Trigger, ...]"

    def __init__(self, *triggers: "Trigger") -> None:
        name = type(self).__name__
        if not triggers:
            raise InvalidError(f"{name} takes one or more triggers, got none")
        _check(name, *triggers)
        object.__setattr__(self, "triggers", triggers)

    @property
    def parts(self) -> "tuple[Trigger, ...]":
        return self.triggers


@dataclass(frozen=True, slots=True, init=False)
class AfterAny(_Several):
    """Fire when any of these triggers fires. Finished when any of them is finished."""

    @property
    def may_finish(self) -> TriggerEnd:
        return max(part.may_finish for part in self.parts)


@dataclass(frozen=True, slots=True, init=False)
class AfterAll(_Several):
    """Fire when all of these triggers are ready to fire. Finished when all of them are finished."""

    @property
    def may_finish(self) -> TriggerEnd:
        return min(part.may_finish for part in self.parts)


@dataclass(frozen=True, slots=True, init=False)
class AfterEach(_Several):
    """Use these triggers in turn, each until it is finished. Finished when the last one is finished."""

    @property
    def may_finish(self) -> TriggerEnd:
        # The triggers that follow one that never finishes do not get their turn.
        return min(part.may_finish for part in self.parts)


def _check(name: str, *triggers: Any) -> None:
    for trigger in triggers:
        if not isinstance(trigger, Trigger):
            if isinstance(trigger, type) and issubclass(trigger, Trigger):
                hint = f"write {trigger.__name__}() with parentheses"
            else:
                hint = "use hw.AfterCount(100) or another trigger"
            raise InvalidError(f"{name} takes triggers, not {trigger!r}; {hint}")
