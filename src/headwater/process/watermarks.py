"""Watermarks: how far event time is complete, as far as can be known from what came.

Each partition has its own: a partition that lags holds the others back instead of having its rows called late. One
that is silent for long is idle: it does not hold, and is named. All times are microseconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from headwater.errors import InvalidError
from headwater.process.durations import micros
from headwater.process.kernel import BEGINNING

Estimate = Callable[[int, int], int]
"""A user's own estimate: of the latest event time of a partition and when it came, the time that is complete."""


@dataclass(frozen=True, slots=True)
class BoundedDisorder:
    """Events come at most `delay` behind the latest one of their partition; without `delay`, in order."""

    delay: str | None = None

    def __post_init__(self) -> None:
        if self.delay is not None:
            micros(self.delay)

    def __call__(self, latest: int, seen_at: int) -> int:
        return latest - (micros(self.delay) if self.delay else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMark:
    """What is known of one partition: its latest event, its own watermark, and when it last said something."""

    latest: int = BEGINNING
    watermark: int = BEGINNING
    seen_at: int
    is_idle: bool = False


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The watermarks of all partitions, as a value; `watermark` is the least of those that are not idle.

    A partition that was idle and comes back with old events does not pull the watermark back: it never falls.
    """

    estimate: Estimate = field(default_factory=BoundedDisorder)
    idle_after: str | None = None
    partitions: Mapping[str, PartitionMark] = field(default_factory=dict)
    watermark: int = BEGINNING

    def expect(self, partitions: list[str], now: int) -> "Watermarks":
        """Know of partitions before they say anything: they hold the watermark until they do, or are idle."""
        new = {name: PartitionMark(seen_at=now) for name in partitions if name not in self.partitions}
        return replace(self, partitions={**self.partitions, **new})

    def observe(self, latest: Mapping[str, int], now: int) -> "Watermarks":
        """Take in the greatest event time of each partition that events came from, and what time it is."""
        marks = dict(self.partitions)
        for name, time in latest.items():
            known = marks.get(name, PartitionMark(seen_at=now))
            greatest = max(known.latest, time)
            complete = self.estimate(greatest, now)
            if complete > greatest:
                raise InvalidError(
                    f"the watermark estimate for partition {name!r} gave {complete}, which is after its latest "
                    f"event {greatest}; give a time up to which no event is to be expected"
                )
            marks[name] = PartitionMark(latest=greatest, watermark=max(known.watermark, complete), seen_at=now)
        return replace(self, partitions=marks).advance(now)

    def advance(self, now: int) -> "Watermarks":
        """See what the passing of time alone changes: who is idle, and how far the others are."""
        patience = micros(self.idle_after) if self.idle_after else None
        marks = {
            name: replace(mark, is_idle=patience is not None and now - mark.seen_at >= patience)
            for name, mark in self.partitions.items()
        }
        active = [mark.watermark for mark in marks.values() if not mark.is_idle]
        # If all are idle nobody knows better than the watermark that stands.
        reached = min(active, default=self.watermark)
        return replace(self, partitions=marks, watermark=max(self.watermark, reached))

    @property
    def idle(self) -> list[str]:
        """The partitions that hold nothing back since they are silent."""
        return sorted(name for name, mark in self.partitions.items() if mark.is_idle)

    @property
    def holding(self) -> list[str]:
        """The partitions that the watermark waits for: those furthest behind."""
        active = {name: mark.watermark for name, mark in self.partitions.items() if not mark.is_idle}
        least = min(active.values(), default=None)
        return sorted(name for name, mark in active.items() if mark == least)
