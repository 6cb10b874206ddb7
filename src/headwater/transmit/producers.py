"""Idempotent producers: a batch that was sent twice is written once.

A producer numbers its records a partition, from 0 on. A batch is new if it starts with the next number, known
if it is one of the last few that were written (then the answer is the offset it got), and otherwise refused.
https://cwiki.apache.org/confluence/display/KAFKA/KIP-98
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from headwater.transmit.batch import BatchHeader

BATCHES_KEPT = 5
"""What a client may have in flight with idempotence on, so no older batch can come again."""

SEQUENCE_MAX = 2**31 - 1
NO_PRODUCER = -1


class Refusal(Enum):
    """Why a batch cannot be taken."""

    OUT_OF_ORDER = "a batch before this one is missing"
    STALE_EPOCH = "a newer producer has taken over"


@dataclass(slots=True)
class _Producer:
    epoch: int
    written: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    """First and last sequence number and base offset of the last batches."""


class ProducerStates:
    """The producers of one partition. Not thread-safe."""

    def __init__(self, written: Iterable[BatchHeader] = ()) -> None:
        self._producers: dict[int, _Producer] = {}
        for header in written:
            self.note(header, header.base_offset)

    def check(self, header: BatchHeader) -> int | Refusal | None:
        """None if the batch is new, its offset if it was written before, else the reason to refuse it."""
        if header.producer_id == NO_PRODUCER:
            return None
        known = self._producers.get(header.producer_id)
        if known is None or header.producer_epoch > known.epoch:
            return None if header.base_sequence == 0 or known is None else Refusal.OUT_OF_ORDER
        if header.producer_epoch < known.epoch:
            return Refusal.STALE_EPOCH
        for first, last, offset in known.written:
            if first == header.base_sequence and last == _last_sequence(header):
                return offset
        expected = _after(known.written[-1][1]) if known.written else 0
        return None if header.base_sequence == expected else Refusal.OUT_OF_ORDER

    def note(self, header: BatchHeader, base_offset: int) -> None:
        """Remember a batch that was written."""
        if header.producer_id == NO_PRODUCER or header.is_control:
            return
        known = self._producers.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            known = self._producers[header.producer_id] = _Producer(header.producer_epoch)
        known.written.append((header.base_sequence, _last_sequence(header), base_offset))


def _last_sequence(header: BatchHeader) -> int:
    # By the offsets and not the count: compaction takes records out of a batch and leaves it its place.
    return (header.base_sequence + header.last_offset_delta) % (SEQUENCE_MAX + 1)


def _after(sequence: int) -> int:
    return (sequence + 1) % (SEQUENCE_MAX + 1)
