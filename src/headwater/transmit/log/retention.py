"""Decide which sealed segments have expired. Pure: segments are passed oldest first, and the time is passed in."""

from collections.abc import Iterable

NO_LIMIT = -1


def is_expired(newest_ms: int, *, now_ms: int, retention_ms: int) -> bool:
    return retention_ms != NO_LIMIT and now_ms - newest_ms > retention_ms


def expired_by_time(newest_ms: Iterable[int], *, now_ms: int, retention_ms: int) -> int:
    """Return the number of oldest segments whose newest records have expired.

    Counting stops at the first segment that has not expired, because the log must not get a gap. `newest_ms` is
    consumed only as far as needed.
    """
    count = 0
    for newest in newest_ms:
        if not is_expired(newest, now_ms=now_ms, retention_ms=retention_ms):
            break
        count += 1
    return count


def expired_by_size(sizes: Iterable[int], *, total_bytes: int, retention_bytes: int) -> int:
    """Return the number of oldest segments that can be deleted while `retention_bytes` are kept."""
    excess = total_bytes - retention_bytes
    count = 0
    for size in sizes:
        if retention_bytes == NO_LIMIT or excess < size:
            break
        excess -= size
        count += 1
    return count
