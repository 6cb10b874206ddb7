"""Which segments have had their time: pure decisions about sealed segments, oldest first, with time passed in."""

from collections.abc import Iterable

NO_LIMIT = -1


def is_expired(newest_ms: int, *, now_ms: int, retention_ms: int) -> bool:
    return retention_ms != NO_LIMIT and now_ms - newest_ms > retention_ms


def expired_by_time(newest_ms: Iterable[int], *, now_ms: int, retention_ms: int) -> int:
    """How many of the oldest segments hold only records that are too old, by the time of their newest.

    A segment with one young record keeps those behind it, or the log would get a hole. No more of the times are
    asked for than needed.
    """
    count = 0
    for newest in newest_ms:
        if not is_expired(newest, now_ms=now_ms, retention_ms=retention_ms):
            break
        count += 1
    return count


def expired_by_size(sizes: Iterable[int], *, total_bytes: int, retention_bytes: int) -> int:
    """How many of the oldest segments can go with `retention_bytes` still there."""
    excess = total_bytes - retention_bytes
    count = 0
    for size in sizes:
        if retention_bytes == NO_LIMIT or excess < size:
            break
        excess -= size
        count += 1
    return count
