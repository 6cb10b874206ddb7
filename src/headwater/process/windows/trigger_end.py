"""When a trigger can finish: a window whose trigger is finished takes no more events."""

from enum import IntEnum

from headwater.process.windows import triggers as t


class TriggerEnd(IntEnum):
    """When a trigger may finish; the greater, the sooner."""

    NEVER = 0
    AT_END = 1
    ANY_TIME = 2


def finishes_of(trigger: t.Trigger) -> TriggerEnd:
    """The soonest that a trigger may finish."""
    match trigger:
        case t.Default() | t.Repeatedly() | t.EveryBatch() | t.PerRecord():
            return TriggerEnd.NEVER
        case t.AfterWatermark(_, late):
            return TriggerEnd.AT_END if late is None else TriggerEnd.NEVER
        case t.AfterCount() | t.AfterProcessingTime():
            return TriggerEnd.ANY_TIME
        case t.OrFinally(inner, until):
            return max(finishes_of(inner), finishes_of(until))
        case t.AfterAny(several):
            return max(map(finishes_of, several))
        case t.AfterAll(several):
            return min(map(finishes_of, several))
        case t.AfterEach(several):
            # One that never finishes is the last that gets its turn.
            return min(map(finishes_of, several))
