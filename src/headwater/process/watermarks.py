"""Watermarks: how far event time is complete, as far as can be known from what came.

Each partition has its own: a partition that lags holds the others back instead of having its rows called late. One
that is silent for long is idle: it does not hold, and is named. All times are microseconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from headwater.errors import InvalidError
from headwater.process.durations import micros
from headwater.process.kernel import BEGINNING


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedBatch:
    """What the rows of one batch say of a partition: their greatest and least event time, and what was known of it
    before; `latest` is the greatest of all."""

    partition: str
    highest: int
    lowest: int
    latest: int
    watermark: int


Estimate = Callable[[ObservedBatch], int]
"""Of what came from a partition, the time up to which its events are complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a user's own estimate of the watermark is given: event times of one partition.

    `highest` and `lowest` are of the batch that came, `latest` is the highest of all so far; `watermark` is the
    partition's before this batch, None for its first.
    """

    partition: str
    highest: datetime
    lowest: datetime
    latest: datetime
    watermark: datetime | None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class UserEstimate:
    """A user's function of an `Observed` that gives a time, checked."""

    function: Callable[[Observed], datetime]

    def __call__(self, batch: ObservedBatch) -> int:
        observed = Observed(
            partition=batch.partition,
            highest=_moment(batch.highest),
            lowest=_moment(batch.lowest),
            latest=_moment(batch.latest),
            watermark=None if batch.watermark == BEGINNING else _moment(batch.watermark),
        )
        name = getattr(self.function, "__name__", repr(self.function))
        try:
            complete: Any = self.function(observed)
        except Exception as error:
            raise InvalidError(
                f"the watermark function {name!r} failed on {observed}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(complete, datetime):
            raise InvalidError(f"the watermark function {name!r} gave {complete!r}; it must give a datetime")
        if complete.tzinfo is None:
            complete = complete.replace(tzinfo=UTC)
        return int((complete - _EPOCH) // timedelta(microseconds=1))


def _moment(time: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time)


@dataclass(frozen=True, slots=True)
class BoundedDisorder:
    """Events come at most `delay` behind the latest one of their partition; without `delay`, in order."""

    delay: str | None = None

    def __post_init__(self) -> None:
        if self.delay is not None:
            micros(self.delay)

    def __call__(self, batch: ObservedBatch) -> int:
        return batch.latest - (micros(self.delay) if self.delay else 0)


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

    def observe(
        self, latest: Mapping[str, int], now: int, lowest: Mapping[str, int] | None = None
    ) -> "Watermarks":
        """Take in the greatest event time of each partition that events came from, and what time it is; the least
        ones too, for estimates that look at them."""
        marks = dict(self.partitions)
        for name, time in latest.items():
            known = marks.get(name, PartitionMark(seen_at=now))
            greatest = max(known.latest, time)
            complete = self.estimate(
                ObservedBatch(
                    partition=name,
                    highest=time,
                    lowest=time if lowest is None else lowest.get(name, time),
                    latest=greatest,
                    watermark=known.watermark,
                )
            )
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
