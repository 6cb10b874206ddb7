"""Watermarks: an estimate of the time up to which event time is complete, based on the rows so far.

Each partition has its own watermark: a partition that lags holds the common watermark back, so that its rows are
not late. A partition without rows for some time is idle: it does not hold the watermark back, and is reported. All
times are microseconds.
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
    """The event times of one partition in a batch.

    `highest` and `lowest` are those of the batch, `latest` is the greatest so far, `watermark` the partition's
    watermark before the batch.
    """

    partition: str
    highest: int
    lowest: int
    latest: int
    watermark: int


EventTimes = Mapping[int, tuple[int, int]]
"""The highest and the lowest event time of each partition in a batch."""

Estimate = Callable[[ObservedBatch], int]
"""Returns the time up to which a partition's events are complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The argument of a user's watermark function: event times of one partition.

    `highest` and `lowest` are those of the current batch, `latest` is the highest so far. `watermark` is the
    partition's watermark before this batch, None for its first batch.
    """

    partition: str
    highest: datetime
    lowest: datetime
    latest: datetime
    watermark: datetime | None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class UserEstimate:
    """A user's watermark function, whose result is checked."""

    function: Callable[[Observed], datetime]

    def __call__(self, batch: ObservedBatch) -> int:
        observed = Observed(
            partition=batch.partition,
            highest=_datetime(batch.highest),
            lowest=_datetime(batch.lowest),
            latest=_datetime(batch.latest),
            watermark=None if batch.watermark == BEGINNING else _datetime(batch.watermark),
        )
        name = getattr(self.function, "__name__", repr(self.function))
        try:
            complete: Any = self.function(observed)
        except Exception as error:
            raise InvalidError(
                f"the watermark function {name!r} failed on {observed}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(complete, datetime):
            raise InvalidError(f"the watermark function {name!r} returned {complete!r}; it must return a datetime")
        if complete.tzinfo is None:
            complete = complete.replace(tzinfo=UTC)
        return int((complete - _EPOCH) // timedelta(microseconds=1))


def _datetime(time: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time)


@dataclass(frozen=True, slots=True)
class BoundedDisorder:
    """Watermark estimate for events that are out of order by at most `delay` in their partition; 0 by default."""

    delay: str | None = None

    def __post_init__(self) -> None:
        if self.delay is not None:
            micros(self.delay)

    def __call__(self, batch: ObservedBatch) -> int:
        return batch.latest - (micros(self.delay) if self.delay else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMark:
    """The state of one partition: its latest event, its watermark, and when its last row arrived."""

    latest: int = BEGINNING
    watermark: int = BEGINNING
    seen_at: int
    is_idle: bool = False


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The watermarks of all partitions, as a value. `watermark` is the least of those that are not idle.

    It never decreases, even if a partition that was idle continues with old events.
    """

    estimate: Estimate = field(default_factory=BoundedDisorder)
    idle_after: str | None = None
    partitions: Mapping[str, PartitionMark] = field(default_factory=dict)
    watermark: int = BEGINNING

    def expect(self, partitions: list[str], now: int) -> "Watermarks":
        """Add partitions before their first row; each holds the watermark back until it has rows or is idle."""
        new = {name: PartitionMark(seen_at=now) for name in partitions if name not in self.partitions}
        return replace(self, partitions={**self.partitions, **new})

    def observe(
        self, latest: Mapping[str, int], now: int, lowest: Mapping[str, int] | None = None
    ) -> "Watermarks":
        """Update the watermarks with the greatest event time of each partition that has new rows.

        `lowest` are the least event times, for estimates that use them; `now` is the processing time.
        """
        marks = dict(self.partitions)
        for name, time in latest.items():
            mark = marks.get(name, PartitionMark(seen_at=now))
            greatest = max(mark.latest, time)
            complete = self.estimate(
                ObservedBatch(
                    partition=name,
                    highest=time,
                    lowest=time if lowest is None else lowest.get(name, time),
                    latest=greatest,
                    watermark=mark.watermark,
                )
            )
            if complete > greatest:
                raise InvalidError(
                    f"the watermark estimate for partition {name!r} is {complete}, which is after its latest "
                    f"event {greatest}; return a time after which all further events are expected"
                )
            marks[name] = PartitionMark(latest=greatest, watermark=max(mark.watermark, complete), seen_at=now)
        return replace(self, partitions=marks).advance(now)

    def advance(self, now: int) -> "Watermarks":
        """Update idle partitions and the common watermark for a new processing time."""
        idle_micros = micros(self.idle_after) if self.idle_after else None
        marks = {
            name: replace(mark, is_idle=idle_micros is not None and now - mark.seen_at >= idle_micros)
            for name, mark in self.partitions.items()
        }
        active = [mark.watermark for mark in marks.values() if not mark.is_idle]
        # If all partitions are idle, the watermark stays where it is.
        least = min(active, default=self.watermark)
        return replace(self, partitions=marks, watermark=max(self.watermark, least))

    @property
    def idle(self) -> list[str]:
        """The idle partitions, which do not hold the watermark back."""
        return sorted(name for name, mark in self.partitions.items() if mark.is_idle)

    @property
    def holding(self) -> list[str]:
        """The partitions that hold the watermark back: those with the lowest watermark."""
        active = {name: mark.watermark for name, mark in self.partitions.items() if not mark.is_idle}
        least = min(active.values(), default=None)
        return sorted(name for name, mark in active.items() if mark == least)
