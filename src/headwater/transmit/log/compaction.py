"""Compaction by key: which records are kept. Pure: bytes in, bytes out; the time and all bounds are passed in.

A pass reads the keys of the part that is not compacted yet into a map from key to last offset. Then it goes over
the log from its start and keeps each record unless the map has a later one with the same key. So at least the last
value of each key is kept, in order and at its offset. A tombstone is kept for `delete.retention.ms` after the
first pass that reads it, so that readers see the deletion. Its batch stores that time (KIP-534).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from headwater.transmit.records.batch_header import BatchHeader, check_batches
from headwater.transmit.records.rewrite import DELETE_HORIZON, RawRecord, raw_records, rebuild

KEYS_MAX = 500_000
"""Maximum number of keys per pass, about 70 MB; a log with more is compacted in several passes."""

PRODUCER_EXPIRY_MS = 24 * 3600 * 1000
"""Kafka's default for producer.id.expiration.ms."""

_HASH_BYTES = 16  # as in Kafka; records would be lost if two keys collided

IsAborted = Callable[[BatchHeader], bool]


def none_aborted(header: BatchHeader) -> bool:
    return False


@dataclass(slots=True)
class OffsetMap:
    """The last offset of each key from some offset up to `end`."""

    end: int
    keys_max: int = KEYS_MAX
    _last: dict[bytes, int] = field(default_factory=dict)
    _producers: dict[int, int] = field(default_factory=dict)
    """Base offset of the last batch of each producer."""

    def __len__(self) -> int:
        return len(self._last)

    @property
    def is_full(self) -> bool:
        return len(self._last) >= self.keys_max

    def add(self, data: bytes, *, start: int, bound: int, is_aborted: IsAborted = none_aborted) -> None:
        """Add the keys of batches with offsets in [start, bound) until the map is full."""
        at = 0
        for header in check_batches(data):
            if header.next_offset > bound or self.is_full:
                return
            if not header.is_control and not is_aborted(header):
                for record in raw_records(data, at, header):
                    if record.key is not None and record.offset >= start:
                        self._last[_hash(record.key)] = record.offset
            self._producers[header.producer_id] = header.base_offset
            self.end = max(self.end, header.next_offset)
            at += header.size

    def is_last_of_producer(self, header: BatchHeader, now_ms: int) -> bool:
        """Return whether this is the last batch of a producer that may still continue its sequence numbers."""
        is_young = now_ms - header.max_timestamp <= PRODUCER_EXPIRY_MS
        last = self._producers.get(header.producer_id, header.base_offset)
        return header.producer_id >= 0 and is_young and last == header.base_offset

    def is_superseded(self, record: RawRecord) -> bool:
        return record.key is None or self._last.get(_hash(record.key), -1) > record.offset


def compact(
    data: bytes,
    latest: OffsetMap,
    *,
    now_ms: int,
    delete_retention_ms: int,
    is_aborted: IsAborted = none_aborted,
) -> bytes:
    """Return the batches without records that have a later one with the same key.

    The last batch of a producer is kept even without records, because it determines the next sequence number. So
    is the last batch of the pass, which moves readers past the removed records.
    """
    parts = []
    at = 0
    for header in check_batches(data):
        whole = data[at : at + header.size]
        at += header.size
        if header.is_control or header.next_offset > latest.end:
            parts.append(whole)
            continue
        kept = _compact_batch(whole, header, latest, now_ms, delete_retention_ms, is_aborted(header))
        is_last = header.next_offset == latest.end or latest.is_last_of_producer(header, now_ms)
        if not kept and is_last:
            kept = rebuild(header, [])
        parts.append(kept)
    return b"".join(parts)


def _compact_batch(
    data: bytes, header: BatchHeader, latest: OffsetMap, now_ms: int, delete_retention_ms: int, aborted: bool
) -> bytes:
    horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
    records = list(raw_records(data, 0, header))
    removes_tombstones = horizon is not None and now_ms > horizon
    kept = [
        record
        for record in records
        if not aborted and not latest.is_superseded(record) and (record.has_value or not removes_tombstones)
    ]
    if not kept:
        return b""
    if horizon is None and not all(record.has_value for record in kept):
        return rebuild(header, kept, horizon_ms=now_ms + delete_retention_ms)
    return data if len(kept) == len(records) else rebuild(header, kept)


def _hash(key: bytes) -> bytes:
    return blake2b(key, digest_size=_HASH_BYTES).digest()


# -- due ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanable:
    """The properties of a sealed segment that compaction needs: its first batch's and newest record's time."""

    base_offset: int
    next_offset: int
    size: int
    oldest_ms: int
    newest_ms: int


def cleanable_end(
    sealed: Iterable[Cleanable], *, dirty_from: int, bound: int, now_ms: int, min_lag_ms: int
) -> int:
    """Return the end offset of a pass: at most `bound`, and before the first segment with too recent records."""
    end = dirty_from
    for segment in sealed:
        if segment.next_offset <= dirty_from:
            continue
        if segment.next_offset > bound or (min_lag_ms > 0 and now_ms - segment.newest_ms < min_lag_ms):
            return end
        end = segment.next_offset
    return end


def is_due(
    sealed: Iterable[Cleanable], *, dirty_from: int, end: int, now_ms: int, ratio: float, max_lag_ms: int
) -> bool:
    """Return whether the ratio of dirty bytes reaches `ratio`, or a dirty segment is older than `max_lag_ms`."""
    clean = dirty = 0
    for segment in sealed:
        if segment.next_offset <= dirty_from:
            clean += segment.size
        elif segment.next_offset <= end:
            dirty += segment.size
            if now_ms - segment.oldest_ms > max_lag_ms:
                return True
    return dirty > 0 and dirty / (clean + dirty) >= ratio
