"""A sparse index into a segment: where to start looking for an offset or a time.

One entry for every INTERVAL_BYTES of log, made at the start of a batch:

    offset - base offset 4 | position in the segment file 4 | highest timestamp before this batch 8

The entries of a segment that is still written live in memory. When the segment is sealed they go to a file,
written whole beside it and renamed, with a checksum in front; a missing or damaged index is rebuilt from the
segment. So there is no index to repair after a crash. The index of the open segment is saved now and then, too,
and covers the bytes that were on the disk by then: after a crash only what stands behind them is read.
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
    """Entries in growing order of offset, position and time. Not thread-safe."""

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

    def note(self, offset_delta: int, position: int, timestamp_before: int) -> None:
        """Take in a batch that was written; an entry is made only where the last one is far enough behind."""
        if position >= self._next_position:
            self._entries += _ENTRY.pack(offset_delta, position, timestamp_before)
            self._next_position = position + INTERVAL_BYTES

    def position_of_offset(self, offset_delta: int) -> int:
        """The last known place at or before the batch that holds the offset."""
        return self._last(0, offset_delta)

    def position_of_time(self, timestamp: int) -> int:
        """The last known place before which every record is older than the timestamp."""
        return self._last(2, timestamp - 1)

    def last_batch(self, *, position: int, offset_delta: int | None) -> tuple[int, int]:
        """The offset and place of the last known batch that starts at or before both; 0 and 0 if there is none."""
        number = self._count(1, position)
        if offset_delta is not None:
            number = min(number, self._count(0, offset_delta))
        found = _ENTRY.unpack_from(self._entries, (number - 1) * _ENTRY.size) if number else (0, 0)
        return found[0], found[1]

    def _last(self, field: int, bound: int) -> int:
        number = self._count(field, bound)
        return int(_ENTRY.unpack_from(self._entries, (number - 1) * _ENTRY.size)[1]) if number else 0

    def _count(self, field: int, bound: int) -> int:
        """How many entries have no more than the bound in a field."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if _ENTRY.unpack_from(self._entries, middle * _ENTRY.size)[field] <= bound:
                low = middle + 1
            else:
                high = middle
        return low

    def save(self, path: Path, *, size: int, next_offset: int, max_timestamp: int) -> None:
        """Write the index of a sealed segment, with what else is to be known without reading the segment."""
        body = bytes(self._entries)
        fields = struct.pack(">qqq", size, next_offset, max_timestamp)
        header = _FILE_HEADER.pack(_MAGIC, crc32c(body, crc32c(fields)), size, next_offset, max_timestamp)
        # Not synced: a damaged index is rebuilt from the segment.
        with replacing(path, path.with_suffix(".index.new")) as temporary:
            temporary.write_bytes(header + body)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedIndex:
    """An index as it was saved, with the first `size` bytes of its segment in it."""

    index: SparseIndex
    size: int
    next_offset: int
    max_timestamp: int


def load_saved(path: Path, *, size_wanted: int | None = None) -> SavedIndex | None:
    """Read a saved index; None if it is missing, damaged, or of a segment that had another size."""
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
