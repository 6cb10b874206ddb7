"""The sparse index of a segment: positions from which to search for an offset or a time.

One entry for every INTERVAL_BYTES of log, at the start of a batch:

    offset - base offset 4 | position in the segment file 4 | highest timestamp before this batch 8

The entries of the open segment are in memory. When the segment is sealed, they are written to a temporary file
next to it, with a checksum in front, which is then renamed. A missing or damaged index is rebuilt from the
segment, so no index needs repair after a crash. The index of the open segment is also saved from time to time, for
the bytes that are on disk by then: after a crash, only the bytes after them are scanned.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from headwater.files import replacing

INTERVAL_BYTES = 4096

_ENTRY = struct.Struct(">IIq")
_FILE_HEADER = struct.Struct(">4sIqqq")
_MAGIC = b"HWI1"


class SparseIndex:
    """Entries in ascending order of offset, position and time. Not thread-safe."""

    def __init__(self, entries: bytes = b"") -> None:
        self._entries = bytearray(entries)
        self._next_position = self.last_position + INTERVAL_BYTES if entries else 0

    def __len__(self) -> int:
        return len(self._entries) // _ENTRY.size

    @property
    def last_position(self) -> int:
        return int(_ENTRY.unpack_from(self._entries, len(self._entries) - _ENTRY.size)[1]) if self._entries else 0

    def copy(self) -> "SparseIndex":
        return SparseIndex(bytes(self._entries))

    def add(self, offset_delta: int, position: int, timestamp_before: int) -> None:
        """Add an entry for a batch, if the last entry is at least INTERVAL_BYTES before it."""
        if position >= self._next_position:
            self._entries += _ENTRY.pack(offset_delta, position, timestamp_before)
            self._next_position = position + INTERVAL_BYTES

    def position_of_offset(self, offset_delta: int) -> int:
        """Return the last indexed position at or before the batch with the offset."""
        return self._last(0, offset_delta)

    def position_of_time(self, timestamp: int) -> int:
        """Return the last indexed position before which every record is older than the timestamp."""
        return self._last(2, timestamp - 1)

    def last_batch(self, *, position: int, offset_delta: int | None) -> tuple[int, int]:
        """Return offset and position of the last indexed batch that starts at or before both; (0, 0) if none."""
        number = self._count(1, position)
        if offset_delta is not None:
            number = min(number, self._count(0, offset_delta))
        found = _ENTRY.unpack_from(self._entries, (number - 1) * _ENTRY.size) if number else (0, 0)
        return found[0], found[1]

    def _last(self, field: int, bound: int) -> int:
        number = self._count(field, bound)
        return int(_ENTRY.unpack_from(self._entries, (number - 1) * _ENTRY.size)[1]) if number else 0

    def _count(self, field: int, bound: int) -> int:
        """Return the number of entries with at most `bound` in a field."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if _ENTRY.unpack_from(self._entries, middle * _ENTRY.size)[field] <= bound:
                low = middle + 1
            else:
                high = middle
        return low

    def save(self, path: Path, *, size: int, next_offset: int, max_timestamp: int) -> None:
        """Write the index, and the segment's properties that would otherwise require reading it."""
        body = bytes(self._entries)
        fields = struct.pack(">qqq", size, next_offset, max_timestamp)
        header = _FILE_HEADER.pack(_MAGIC, crc32c(body, crc32c(fields)), size, next_offset, max_timestamp)
        # Not synced: a damaged index is rebuilt from the segment.
        with replacing(path, path.with_suffix(".index.new")) as temporary:
            temporary.write_bytes(header + body)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedIndex:
    """An index that covers the first `size` bytes of its segment."""

    index: SparseIndex
    size: int
    next_offset: int
    max_timestamp: int


def load_saved(path: Path, *, size_wanted: int | None = None) -> SavedIndex | None:
    """Read a saved index; return None if it is missing or damaged, or the segment had a different size."""
    try:
        data = path.read_bytes()
        magic, crc, size, next_offset, max_timestamp = _FILE_HEADER.unpack_from(data)
    except (OSError, struct.error):
        return None
    body = data[_FILE_HEADER.size :]
    fields = struct.pack(">qqq", size, next_offset, max_timestamp)
    if magic != _MAGIC or crc32c(body, crc32c(fields)) != crc or size_wanted not in (None, size):
        return None
    return SavedIndex(index=SparseIndex(body), size=size, next_offset=next_offset, max_timestamp=max_timestamp)
