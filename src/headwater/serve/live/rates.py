"""Rates of topics: offsets are sampled once a second, and records per second computed from the samples.

Thread-safe: one thread samples, any thread reads.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from headwater.clock import Clock
from headwater.errors import HeadwaterError
from headwater.record import TopicPartition

SAMPLE_EVERY_S = 1.0
RATE_OVER_S = 10.0  # long enough for a steady figure, short enough to show a stop soon
HISTORY_S = 60.0
STALE_AFTER_S = 5.0
_JOIN_S = 2.0  # a sampler that waits for the network may run longer: its thread is a daemon

Offsets = Mapping[TopicPartition, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets:
    """The offset of the first record kept (start), and that of the next record to be written (end)."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """The records per second between the previous sample and this one."""

    at_ms: int
    records_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRate:
    """A topic at the last sample; its rate is None until there are two samples. `stale` marks an old sample."""

    name: str
    partitions: tuple[PartitionOffsets, ...]
    records_per_second: float | None
    history: tuple[RatePoint, ...]
    stale: bool

    @property
    def records(self) -> int:
        return sum(p.end - p.start for p in self.partitions)


@dataclass(frozen=True, slots=True)
class _Sample:
    at_ms: int
    monotonic: float
    topics: Mapping[str, Mapping[int, tuple[int, int]]]


class TopicRates:
    """The topics of a log, sampled with `read_offsets` (the start and end offset of each partition)."""

    def __init__(self, read_offsets: Callable[[], Offsets], clock: Clock) -> None:
        self._read_offsets = read_offsets
        self._clock = clock
        self._samples: tuple[_Sample, ...] = ()
        self._failed = False

    def sample(self) -> None:
        """Take a sample; if the log does not respond, keep the last one and mark it as stale."""
        try:
            offsets = self._read_offsets()
        except (HeadwaterError, OSError):
            self._failed = True
            return
        taken = _Sample(self._clock.now_ms(), self._clock.monotonic(), _by_topic(offsets))
        # There is no rate between two samples of the same instant: the later one replaces the earlier.
        kept = [s for s in self._samples if taken.monotonic - HISTORY_S <= s.monotonic < taken.monotonic]
        # Both are replaced, never changed, so that a reader in another thread needs no lock.
        self._samples = (*kept, taken)
        self._failed = False

    def topics(self) -> list[TopicRate]:
        """Return the topics of the last sample, ordered by name; none before the first sample."""
        samples = self._samples
        if not samples:
            return []
        age_s = self._clock.monotonic() - samples[-1].monotonic
        stale = self._failed or age_s > STALE_AFTER_S
        return [_topic(name, samples, stale) for name in sorted(samples[-1].topics)]


class Sample(Protocol):
    """An object to sample periodically."""

    def sample(self) -> None: ...


@contextmanager
def sampling(rates: Sample, every_s: float = SAMPLE_EVERY_S) -> Iterator[None]:
    """Sample every `every_s` seconds (one by default) in a separate thread while the block runs."""
    stop = threading.Event()

    def run() -> None:
        rates.sample()
        while not stop.wait(every_s):
            rates.sample()

    thread = threading.Thread(target=run, name="log-sampling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_JOIN_S)


def _by_topic(offsets: Offsets) -> dict[str, dict[int, tuple[int, int]]]:
    topics: dict[str, dict[int, tuple[int, int]]] = {}
    for (topic, partition), start_and_end in sorted(offsets.items()):
        topics.setdefault(topic, {})[partition] = start_and_end
    return topics


def _since(samples: tuple[_Sample, ...], monotonic: float) -> tuple[_Sample, ...]:
    return tuple(sample for sample in samples if sample.monotonic >= monotonic)


def _topic(name: str, samples: tuple[_Sample, ...], stale: bool) -> TopicRate:
    last = samples[-1]
    window = _since(samples, last.monotonic - RATE_OVER_S)
    return TopicRate(
        name=name,
        partitions=tuple(
            PartitionOffsets(partition=partition, start=start, end=end)
            for partition, (start, end) in last.topics[name].items()
        ),
        records_per_second=_rate(name, window[0], last) if len(window) > 1 else None,
        history=tuple(
            RatePoint(at_ms=after.at_ms, records_per_second=_rate(name, before, after))
            for before, after in pairwise(samples)
        ),
        stale=stale,
    )


def _rate(topic: str, before: _Sample, after: _Sample) -> float:
    """Records per second between two samples.

    A partition that is missing in `before` is new and counts from its first kept record. A partition that shrank
    was deleted and created again; it counts as zero.
    """
    known = before.topics.get(topic, {})
    grown = sum(
        max(0, end - known.get(partition, (start, start))[1])
        for partition, (start, end) in after.topics.get(topic, {}).items()
    )
    return grown / (after.monotonic - before.monotonic)
