"""One file of a partition's log: record batches end to end, named by the offset of the first record.

    00000000000000000000.log      the batches, exactly as they travel
    00000000000000000000.index    the sparse index, once the segment is sealed

A segment is open for appending until it is sealed; there is one open segment a partition. After a crash the
open one is scanned: batches are kept up to the first that is cut or damaged, and the rest is cut off. That can
only be what was never acknowledged as durable. Not thread-safe, but for `sync`.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from headwater.errors import CorruptError
from headwater.transmit.batch import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    check_batch,
    read_header,
)
from headwater.transmit.log.index import SparseIndex, load_index

NO_TIMESTAMP = -1
_SCAN_BYTES = 1 << 20


class Segment:
    """A segment file and its index; opened by one of the class methods."""

    def __init__(self, path: Path, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.size = 0
        self._index = SparseIndex()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    @classmethod
    def create(cls, directory: Path, base_offset: int) -> "Segment":
        """Start an empty segment; its name is on the disk when this returns."""
        segment = cls(segment_path(directory, base_offset), base_offset)
        sync_directory(directory)
        return segment

    @classmethod
    def open_sealed(cls, path: Path) -> "Segment":
        """Open a sealed segment by its saved index; where that is missing or damaged, by reading it."""
        segment = cls(path, int(path.stem))
        size = os.fstat(segment._fd).st_size
        saved = load_index(path.with_suffix(".index"), size=size)
        if saved is None:
            segment._scan()
            segment.seal()
        else:
            segment._index, segment.next_offset, segment.max_timestamp = saved
            segment.size = size
        return segment

    @classmethod
    def recover(cls, path: Path) -> "tuple[Segment, int]":
        """Open the segment that was being written, cutting off what is not whole; return how much that was."""
        segment = cls(path, int(path.stem))
        segment._scan()
        dropped = os.fstat(segment._fd).st_size - segment.size
        if dropped:
            os.ftruncate(segment._fd, segment.size)
            os.fsync(segment._fd)
        return segment, dropped

    def append(self, data: Buffer, headers: Sequence[BatchHeader]) -> None:
        """Write batches that already carry their offsets; all of them or, if the disk refuses, none."""
        try:
            written = os.pwrite(self._fd, data, self.size)
            while written < len(data):
                written += os.pwrite(self._fd, memoryview(data)[written:], self.size + written)
        except OSError:
            os.ftruncate(self._fd, self.size)
            raise
        for header in headers:
            self._note(header)

    def sync(self) -> None:
        """Wait until what was written is on the disk. May be called from another thread."""
        os.fdatasync(self._fd)

    def seal(self) -> None:
        """Write the index; nothing is appended from now on."""
        self._index.save(
            self.path.with_suffix(".index"),
            size=self.size,
            next_offset=self.next_offset,
            max_timestamp=self.max_timestamp,
        )

    def read(self, position: int, length: int) -> bytes:
        """Read bytes as they stand in the file."""
        return os.pread(self._fd, min(length, self.size - position), position)

    def locate(self, offset: int) -> int:
        """The position of the batch that holds the offset, or of the next one where the offset is in a gap."""
        position = self._index.position_of_offset(offset - self.base_offset)
        while position < self.size:
            header = self._header(position)
            if header.next_offset > offset:
                return position
            position += header.size
        return self.size

    def find_time(self, timestamp: int) -> int | None:
        """The position of the first batch with a record of that time or later."""
        position = self._index.position_of_time(timestamp)
        while position < self.size:
            header = self._header(position)
            if header.max_timestamp >= timestamp:
                return position
            position += header.size
        return None

    def read_batch(self, position: int) -> bytes:
        """Read one whole batch."""
        return self.read(position, self._header(position).size)

    def headers(self) -> list[BatchHeader]:
        """The headers of all batches, in order."""
        return [header for header, _ in self.batches_since(self.base_offset)]

    def batches_since(self, offset: int) -> Iterator[tuple[BatchHeader, bytes | None]]:
        """Headers from an offset on; control batches are small and come whole."""
        position = self.locate(offset)
        while position < self.size:
            header = self._header(position)
            yield header, self.read(position, header.size) if header.is_control else None
            position += header.size

    def close(self) -> None:
        os.close(self._fd)

    def delete(self) -> None:
        """Close and remove the files."""
        self.close()
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(".index").unlink(missing_ok=True)

    def _header(self, position: int) -> BatchHeader:
        data = self.read(position, HEADER_BYTES)
        if len(data) < HEADER_BYTES or read_header(data).size < HEADER_BYTES:
            raise CorruptError(f"{self.path}: there is no record batch at byte {position}")
        return read_header(data)

    def _note(self, header: BatchHeader) -> None:
        self._index.note(header.base_offset - self.base_offset, self.size, self.max_timestamp)
        self.size += header.size
        self.next_offset = header.next_offset
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)

    def _scan(self) -> None:
        """Take in every batch up to the first that is cut, damaged or out of order."""
        file_size = os.fstat(self._fd).st_size
        chunk, at = b"", 0
        while file_size - self.size >= HEADER_BYTES:
            if len(chunk) - at < HEADER_BYTES:
                chunk, at = os.pread(self._fd, _SCAN_BYTES, self.size), 0
            need = read_header(chunk, at).size
            if not HEADER_BYTES <= need <= file_size - self.size:
                return
            if len(chunk) - at < need:
                chunk, at = os.pread(self._fd, max(need, _SCAN_BYTES), self.size), 0
            try:
                header = check_batch(chunk, at)
            except CorruptError:
                return
            if header.base_offset < self.next_offset:
                return
            self._note(header)
            at += header.size


def segment_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.log"


def sync_directory(directory: Path) -> None:
    """Make new names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
