"""Which segments have had their time: pure decisions about sealed segments, oldest first, with time passed in."""

from collections.abc import Sequence
from dataclasses import dataclass

NO_LIMIT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAge:
    """What retention knows of a segment; `newest_ms` is the time of its newest record."""

    size: int
    newest_ms: int


def is_expired(newest_ms: int, *, now_ms: int, retention_ms: int) -> bool:
    return retention_ms != NO_LIMIT and now_ms - newest_ms > retention_ms


def expired_by_time(sealed: Sequence[SegmentAge], *, now_ms: int, retention_ms: int) -> int:
    """How many of the oldest segments hold only records that are too old.

    A segment with one young record keeps those behind it, or the log would get a hole.
    """
    for count, segment in enumerate(sealed):
        if not is_expired(segment.newest_ms, now_ms=now_ms, retention_ms=retention_ms):
            return count
    return len(sealed)


def expired_by_size(sealed: Sequence[SegmentAge], *, total_bytes: int, retention_bytes: int) -> int:
    """How many of the oldest segments can go with `retention_bytes` still there."""
    if retention_bytes == NO_LIMIT:
        return 0
    excess = total_bytes - retention_bytes
    for count, segment in enumerate(sealed):
        if excess < segment.size:
            return count
        excess -= segment.size
    return len(sealed)
