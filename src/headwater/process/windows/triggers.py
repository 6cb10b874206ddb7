"""When in processing time a window's result is emitted: triggers, which combine into trees.

A trigger fires, which emits a pane, and may then be finished. A window whose trigger is finished takes no more
events: they go to the late ledger. These are values; `firing.py` makes columns of them.
"""

from dataclasses import dataclass
from typing import Any

from headwater.errors import InvalidError
from headwater.process.durations import parse_duration


@dataclass(frozen=True, slots=True)
class Default:
    """When the watermark passes the window's end, and again with every later step that brings events for it."""


@dataclass(frozen=True, slots=True)
class AfterWatermark:
    """Once when the watermark passes the window's end.

    `early` fires again and again before that, `late` after it. Without `late` the trigger is then finished.
    """

    early: "Trigger | None" = None
    late: "Trigger | None" = None

    def __post_init__(self) -> None:
        _check("AfterWatermark", *(t for t in (self.early, self.late) if t is not None))


@dataclass(frozen=True, slots=True)
class AfterCount:
    """Once when at least `count` events are there.

    Events that come in one step are counted together: the pane may hold more than `count`.
    """

    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise InvalidError(f"AfterCount takes a number of events from 1 on, not {self.count!r}")


@dataclass(frozen=True, slots=True)
class AfterProcessingTime:
    """Once when `delay` has passed since the first event; with `aligned_to`, at the next multiple of it.

    `AfterProcessingTime("10 seconds")` waits ten seconds for each window by itself;
    `AfterProcessingTime(aligned_to="1 minute")` fires all windows together at the full minute.
    """

    delay: str | None = None
    aligned_to: str | None = None

    def __post_init__(self) -> None:
        for duration in (self.delay, self.aligned_to):
            if duration is not None:
                parse_duration(duration)


@dataclass(frozen=True, slots=True)
class EveryBatch:
    """Once for each step that brings events for the window: a micro-batch, aligned for all windows."""


@dataclass(frozen=True, slots=True)
class PerRecord:
    """Once for each event, as if it had come alone. Costs a pass for each event of the busiest key."""


@dataclass(frozen=True, slots=True)
class Repeatedly:
    """Whenever the other trigger fires, starting it anew when it is finished; never finished itself."""

    trigger: "Trigger"

    def __post_init__(self) -> None:
        _check("Repeatedly", self.trigger)


@dataclass(frozen=True, slots=True, init=False)
class AfterAny:
    """When any of these fires; finished when any of them is."""

    triggers: "tuple[Trigger, ...]"

    def __init__(self, *triggers: "Trigger") -> None:
        object.__setattr__(self, "triggers", _several("AfterAny", triggers))


@dataclass(frozen=True, slots=True, init=False)
class AfterAll:
    """When all of these would fire; finished when all of them are."""

    triggers: "tuple[Trigger, ...]"

    def __init__(self, *triggers: "Trigger") -> None:
        object.__setattr__(self, "triggers", _several("AfterAll", triggers))


@dataclass(frozen=True, slots=True, init=False)
class AfterEach:
    """One after the other: each until it is finished; finished with the last."""

    triggers: "tuple[Trigger, ...]"

    def __init__(self, *triggers: "Trigger") -> None:
        object.__setattr__(self, "triggers", _several("AfterEach", triggers))


@dataclass(frozen=True, slots=True)
class OrFinally:
    """Whenever `trigger` fires, until `until` fires: that is the last pane."""

    trigger: "Trigger"
    until: "Trigger"

    def __post_init__(self) -> None:
        _check("OrFinally", self.trigger, self.until)


Trigger = (
    Default
    | AfterWatermark
    | AfterCount
    | AfterProcessingTime
    | EveryBatch
    | PerRecord
    | Repeatedly
    | AfterAny
    | AfterAll
    | AfterEach
    | OrFinally
)


def name_of(trigger: Trigger) -> str:
    """How a pane names the trigger that fired it."""
    match trigger:
        case AfterCount(count):
            return f"AfterCount({count})"
        case AfterProcessingTime():
            arguments = [repr(trigger.delay)] if trigger.delay else []
            if trigger.aligned_to:
                arguments.append(f"aligned_to={trigger.aligned_to!r}")
            return f"AfterProcessingTime({', '.join(arguments)})"
        case _:
            return type(trigger).__name__


def is_per_record(trigger: Trigger) -> bool:
    """Whether some part of the trigger looks at each event by itself."""
    match trigger:
        case PerRecord():
            return True
        case AfterWatermark(early, late):
            return any(is_per_record(t) for t in (early, late) if t is not None)
        case Repeatedly(inner):
            return is_per_record(inner)
        case OrFinally(inner, until):
            return is_per_record(inner) or is_per_record(until)
        case AfterAny(triggers) | AfterAll(triggers) | AfterEach(triggers):
            return any(map(is_per_record, triggers))
        case _:
            return False


def _several(name: str, triggers: tuple[Any, ...]) -> tuple[Any, ...]:
    if not triggers:
        raise InvalidError(f"{name} takes one trigger or more")
    _check(name, *triggers)
    return triggers


def _check(name: str, *triggers: Any) -> None:
    for trigger in triggers:
        if not isinstance(trigger, Trigger):
            what = (
                "write it with parentheses" if isinstance(trigger, type) else "see hw.AfterWatermark and the like"
            )
            raise InvalidError(f"{name} takes triggers, not {trigger!r}; {what}")
