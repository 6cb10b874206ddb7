"""The producers of a partition: deduplicate retried batches, and track transactions.

A producer numbers its records per partition, from 0 on. A batch is new if it starts with the next number, a
duplicate if it is one of the last few that were written (then its offset is returned), and otherwise rejected. A
transaction is open in the partition from its first batch up to the marker that ends it. Readers of committed
records read up to the oldest open transaction (the last stable offset) and skip aborted ranges.

A batch is deduplicated only within its transaction: a client that ends a transaction waits for no more responses.
When librdkafka aborts, it discards batches without leaving a gap in its sequence numbers. The log may already have
such a batch, if the broker was killed before it could respond. The numbers are then used again for other records,
which must not be mistaken for duplicates.
https://cwiki.apache.org/confluence/display/KAFKA/KIP-98
"""

import json
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headwater.transmit.records.batch_header import BatchHeader
from headwater.transmit.records.control import Marker

BATCHES_KEPT = 5
"""Maximum number of requests in flight of an idempotent producer, so no older batch can be retried."""

SEQUENCE_MAX = 2**31 - 1
NO_PRODUCER = -1
NO_OFFSET = -1
NO_TIME = -1


class Refusal(Enum):
    """Reasons to reject a batch."""

    OUT_OF_ORDER = "an earlier batch is missing"
    STALE_EPOCH = "a newer producer has taken over"
    IN_TRANSACTION = "its transaction is open, and the batch is not part of it"
    NOT_IN_TRANSACTION = "the batch belongs to a transaction, but the request does not"


class Aborted(NamedTuple):
    """An aborted transaction in a partition: its first record and the marker that ended it."""

    producer_id: int
    first_offset: int
    last_offset: int


def is_in_aborted(header: BatchHeader, aborted: Iterable[Aborted]) -> bool:
    """Return whether a batch belongs to one of these aborted transactions, so that its records do not count."""
    return header.is_transactional and any(
        each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
        for each in aborted
    )


@dataclass(slots=True)
class _Producer:
    epoch: int
    written: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    """First and last sequence number and base offset of the last batches; NO_OFFSET once its transaction ended."""
    last_ms: int = NO_TIME
    """Time of its last write, by the broker's clock; unknown after a scan, and then set by the next `expire`."""
    coordinator_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInfo:
    """The state of a producer, as reported by DescribeProducers."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_ms: int
    coordinator_epoch: int
    transaction_start: int


class ProducerStates:
    """The producers of one partition. Not thread-safe."""

    def __init__(self, written: Iterable[BatchHeader] = ()) -> None:
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}  # first offsets, ascending
        self._ending: list[tuple[int, int]] = []  # first offset and marker, while the marker is not durable
        self._aborted: list[Aborted] = []  # in the order of their markers
        for header in written:
            self.note(header, header.base_offset)

    # -- sequence numbers -------------------------------------------------------------------------------------

    def check(self, header: BatchHeader) -> int | Refusal | None:
        """Return None if the batch is new, its offset if it is a duplicate, else the reason to reject it."""
        if header.producer_id == NO_PRODUCER:
            return None
        known = self._producers.get(header.producer_id)
        if known is None or header.producer_epoch > known.epoch:
            return None if header.base_sequence == 0 or known is None else Refusal.OUT_OF_ORDER
        if header.producer_epoch < known.epoch:
            return Refusal.STALE_EPOCH
        for first, last, offset in known.written:
            if offset != NO_OFFSET and first == header.base_sequence and last == _last_sequence(header):
                return offset
        if header.producer_id in self._open and not header.is_transactional:
            return Refusal.IN_TRANSACTION
        expected = _after(known.written[-1][1]) if known.written else 0
        return None if header.base_sequence == expected else Refusal.OUT_OF_ORDER

    def note(self, header: BatchHeader, base_offset: int, now_ms: int = NO_TIME) -> None:
        """Record that a batch was written."""
        if header.producer_id == NO_PRODUCER or header.is_control:
            return
        known = self._producers.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            known = self._producers[header.producer_id] = _Producer(header.producer_epoch)
        known.written.append((header.base_sequence, _last_sequence(header), base_offset))
        known.last_ms = now_ms
        if header.is_transactional:
            self._open.setdefault(header.producer_id, base_offset)

    def expire(self, now_ms: int, after_ms: int) -> None:
        """Remove producers that have written nothing for `after_ms` and have no open transaction."""
        for producer_id, known in list(self._producers.items()):
            if known.last_ms == NO_TIME:
                known.last_ms = now_ms
            if now_ms - known.last_ms >= after_ms and producer_id not in self._open:
                del self._producers[producer_id]

    def infos(self) -> Iterator[ProducerInfo]:
        """Yield the states of all producers."""
        for producer_id, known in self._producers.items():
            yield ProducerInfo(
                producer_id=producer_id,
                epoch=known.epoch,
                last_sequence=known.written[-1][1] if known.written else -1,
                last_ms=known.last_ms,
                coordinator_epoch=known.coordinator_epoch,
                transaction_start=self._open.get(producer_id, NO_OFFSET),
            )

    # -- transactions -----------------------------------------------------------------------------------------

    def is_stale(self, marker: Marker) -> bool:
        """Return whether a marker has an older epoch than its producer."""
        known = self._producers.get(marker.producer_id)
        return known is not None and marker.producer_epoch < known.epoch

    def note_marker(self, marker: Marker, offset: int, now_ms: int = NO_TIME) -> None:
        """Record that a producer's transaction ended at `offset`."""
        known = self._producers.get(marker.producer_id)
        if known is None or known.epoch < marker.producer_epoch:
            # Added even if it has written nothing here, because older epochs must not write any more.
            known = self._producers[marker.producer_id] = _Producer(marker.producer_epoch)
        known.last_ms = now_ms
        known.coordinator_epoch = marker.coordinator_epoch
        if known.written:
            first_sequence, last_sequence, _ = known.written.pop()
            known.written.clear()
            known.written.append((first_sequence, last_sequence, NO_OFFSET))
        first = self._open.pop(marker.producer_id, None)
        if first is None:
            return
        self._ending.append((first, offset))
        if not marker.is_commit:
            self._aborted.append(Aborted(marker.producer_id, first, offset))

    def settle(self, high_watermark: int) -> None:
        """Drop ended transactions whose marker is before the high watermark, and so durable."""
        if self._ending:
            self._ending = [(first, marker) for first, marker in self._ending if marker >= high_watermark]

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the first offset of the oldest transaction that is open or whose end is not durable."""
        self.settle(high_watermark)
        if not self._open and not self._ending:
            return high_watermark
        oldest_open = next(iter(self._open.values()), high_watermark)
        return min([high_watermark, oldest_open, *(first for first, _ in self._ending)])

    def aborted(self, start: int, end: int) -> list[Aborted]:
        """Return aborted transactions with records or markers in [start, end), sorted by their first offset."""
        from_here = bisect_left(self._aborted, start, key=lambda a: a.last_offset)
        return sorted((a for a in self._aborted[from_here:] if a.first_offset < end), key=lambda a: a.first_offset)

    def forget_aborted(self, before: int) -> None:
        """Remove aborted transactions of which no record is left in the log."""
        del self._aborted[: bisect_left(self._aborted, before, key=lambda a: a.last_offset)]

    # -- snapshots --------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """Serialize the states for a snapshot."""
        producers = [
            (producer_id, p.epoch, list(p.written), p.last_ms, p.coordinator_epoch)
            for producer_id, p in self._producers.items()
        ]
        return json.dumps(
            {"producers": producers, "open": list(self._open.items()), "aborted": self._aborted}
        ).encode()

    @classmethod
    def load(cls, dumped: bytes) -> "ProducerStates":
        """Return the states serialized by `dump`."""
        states = cls()
        found = json.loads(dumped)
        for producer_id, epoch, written, last_ms, coordinator_epoch in found["producers"]:
            kept = deque(((a, b, c) for a, b, c in written), maxlen=BATCHES_KEPT)
            states._producers[producer_id] = _Producer(epoch, kept, last_ms, coordinator_epoch)
        states._open = dict(found["open"])
        states._aborted = [Aborted(*fields) for fields in found["aborted"]]
        return states


def _last_sequence(header: BatchHeader) -> int:
    # By the offsets, not the count: compaction removes records from a batch, but keeps its offsets.
    return (header.base_sequence + header.last_offset_delta) % (SEQUENCE_MAX + 1)


def _after(sequence: int) -> int:
    return (sequence + 1) % (SEQUENCE_MAX + 1)
