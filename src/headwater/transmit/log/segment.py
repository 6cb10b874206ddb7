"""One file of a partition's log: record batches one after another, named by the offset of the first record.

    00000000000000000000.log      the batches, byte for byte as on the wire; after archiving, a link to the archive
    00000000000000000000.index    the sparse index

A segment is open for appending until it is sealed; each partition has one open segment. After a crash, the open
one is scanned from the point where its index was last saved, and a torn tail is truncated. A torn tail was never
acknowledged as durable. Damage that is followed by a whole batch is kept and reported (`scan`).

A sealed segment is opened at the first read from it, and each batch is verified against its checksum when it is
first read. Not thread-safe, except for `sync`.
"""

import logging
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from headwater.errors import CorruptError
from headwater.files import sync_directory
from headwater.transmit.log.file_names import index_path, segment_path
from headwater.transmit.log.index import SavedIndex, SparseIndex, load_saved
from headwater.transmit.log.pool import FilePool, OpenFile
from headwater.transmit.log.scan import Damage, find_batch, scan
from headwater.transmit.log.verified_regions import REGION_BYTES, VerifiedRegions
from headwater.transmit.records.attributes import Buffer
from headwater.transmit.records.batch_header import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    BatchHeader,
    check_batch,
    read_header,
)
from headwater.transmit.records.file_region import FileRegion

logger = logging.getLogger(__name__)

NO_TIMESTAMP = -1
_EXTENT = struct.Struct(">qi4xb6xi")  # of a header: base offset, length, magic, last offset delta


class Segment:
    """A segment file and its index; made by `create`, `open_sealed` or `recover`."""

    def __init__(self, path: Path, base_offset: int, pool: FilePool) -> None:
        self.path = path
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.damage: Damage | None = None
        self._max_timestamp: int | None = NO_TIMESTAMP
        self._pool = pool
        self._open: OpenFile | None = None
        self._open_lock = threading.Lock()  # another thread may call `sync` while this one closes the file
        self._verified: VerifiedRegions | None = None
        """None while there is nothing to verify, because this process has checked and written all of it."""

    @classmethod
    def create(cls, directory: Path, base_offset: int, pool: FilePool) -> Self:
        """Start an empty segment; its name is on disk when this returns."""
        segment = cls(segment_path(directory, base_offset), base_offset, pool)
        segment._open = _open_for_writing(segment.path, SparseIndex())
        try:
            sync_directory(directory)
        except OSError:
            segment.delete()  # or the previous segment, which continues to grow, would overlap it
            raise
        return segment

    @classmethod
    def open_sealed(cls, path: Path, next_offset: int, pool: FilePool) -> Self:
        """Open a sealed segment whose records are before `next_offset`; reads nothing but the file's size."""
        segment = cls(path, int(path.stem), pool)
        try:
            segment.size = path.stat().st_size
        except FileNotFoundError as error:
            raise CorruptError(
                f"{path} is a link to {path.readlink()}, which does not exist",
                hint="mount the archive or restore the file; without the link, the log starts at the next segment",
            ) from error
        segment.next_offset = next_offset
        segment._max_timestamp = None
        segment._verified = VerifiedRegions(segment.size)
        return segment

    @classmethod
    def recover(cls, path: Path, pool: FilePool) -> tuple[Self, int]:
        """Open the segment that was being written and truncate a torn tail; return the number of bytes removed."""
        segment = cls(path, int(path.stem), pool)
        file_size = path.stat().st_size
        saved = load_saved(index_path(path))
        if saved is None or saved.size > file_size:
            index_path(path).unlink(missing_ok=True)  # or it would seem to match when the file has grown again
            saved = SavedIndex(
                index=SparseIndex(), size=0, next_offset=segment.base_offset, max_timestamp=NO_TIMESTAMP
            )
        segment.size, segment.next_offset = saved.size, saved.next_offset
        segment._max_timestamp = saved.max_timestamp
        segment._verified = VerifiedRegions(saved.size) if saved.size else None
        segment._open = _open_for_writing(path, saved.index)
        fd = segment._open.fd
        at, reason = scan(
            fd, at=saved.size, end=file_size, next_offset=saved.next_offset, note=segment._add, gaps=False
        )
        if reason is None:
            if segment.size > saved.size:
                os.fdatasync(fd)  # only the process may have died: readers must not see what is not on disk
            return segment, 0
        if find_batch(fd, at=at, end=file_size, next_offset=segment.next_offset) is not None:
            segment.damage = Damage(path=path, position=at, next_offset=segment.next_offset, reason=reason)
            return segment, 0
        os.ftruncate(fd, segment.size)
        os.fsync(fd)
        return segment, file_size - segment.size

    @property
    def max_timestamp(self) -> int:
        if self._max_timestamp is None:
            saved = load_saved(index_path(self.path), size_wanted=self.size)
            if saved is not None:
                self._max_timestamp = saved.max_timestamp  # the file itself need not be opened
            else:
                self._file()
        return NO_TIMESTAMP if self._max_timestamp is None else self._max_timestamp

    def append(self, data: Buffer, headers: Sequence[BatchHeader]) -> None:
        """Write batches that already have their offsets; all of them, or none if the disk fails."""
        fd = self._file().fd
        try:
            written = os.pwrite(fd, data, self.size)
            while written < len(data):
                written += os.pwrite(fd, memoryview(data)[written:], self.size + written)
        except OSError:
            os.ftruncate(fd, self.size)
            raise
        for header in headers:
            self._add(header)

    def sync(self) -> None:
        """Wait until everything written is on disk. May be called from another thread."""
        with self._open_lock:
            if self._open is not None:  # sealing and closing have synced it
                os.fdatasync(self._open.fd)

    def copy_index(self) -> SavedIndex:
        """Return a copy of the index, to be saved after the segment is synced."""
        return SavedIndex(
            index=self._file().index.copy(),
            size=self.size,
            next_offset=self.next_offset,
            max_timestamp=self.max_timestamp,
        )

    def seal(self) -> None:
        """Sync, save the index and close the file; nothing can be appended afterwards."""
        self.sync()
        _try_to_save_index(self.path, self.copy_index())
        self.close()
        self._verified = VerifiedRegions(self.size)  # batches are verified again when they are read from the file

    def read(self, position: int, length: int) -> bytes:
        """Read bytes of the file."""
        return os.pread(self._file().fd, max(0, min(length, self.size - position)), position)

    def read_batches(self, position: int, max_bytes: int, below: int) -> tuple[bytes, int]:
        """Return whole, undamaged batches from a position on that end before an offset, and the offset after them.

        Returns at least one batch if there is one, however large. Raises CorruptError if the first is damaged.
        """
        data = self.read(position, max_bytes)
        if len(data) < HEADER_BYTES or read_header(data).size > len(data):
            data = self.read_batch(position)
        is_new = self._verified is not None and not self._verified.covers(position, len(data))
        end = next_offset = 0
        before = (0, 0)
        lowest = self.base_offset
        while end + HEADER_BYTES <= len(data):
            base_offset, length, magic, last_delta = _EXTENT.unpack_from(data, end)
            size = length + LENGTH_PREFIX_BYTES
            if end and size > len(data) - end:
                break
            batch_end = base_offset + last_delta + 1
            fits = HEADER_BYTES <= size <= len(data) - end and magic == MAGIC and last_delta >= 0
            if (
                not fits
                or base_offset < lowest
                or batch_end > self.next_offset
                or (is_new and not _is_valid(data, end))
            ):
                if not end:
                    raise _corrupt(self.path, position, lowest, _reason(data))
                break
            if batch_end > below:
                break
            before = (end, next_offset)
            end += size
            lowest = next_offset = batch_end
        if is_new and end and self._is_overlapped(position + end, next_offset):
            end, next_offset = before
            if not end:
                raise _corrupt(self.path, position, self.base_offset, "its offsets overlap the next batch")
        if is_new and self._verified is not None:
            self._verified.add(position, end, is_end=position + end == self.size)
        return (data if end == len(data) else data[:end]), next_offset

    def find_region(self, position: int, max_bytes: int, below: int) -> tuple[FileRegion, int] | None:
        """Return the batches that `read_batches` would read as a region of the file, found by the index alone.

        Returns None if they have to be read: they are not verified yet, or too small for the index to separate.
        """
        if self.next_offset <= below and self.size - position <= max_bytes:
            size, next_offset = self.size - position, self.next_offset
        else:
            offset_delta, end = self._file().index.last_batch(
                position=position + max_bytes,
                offset_delta=None if self.next_offset <= below else below - self.base_offset,
            )
            size, next_offset = end - position, self.base_offset + offset_delta
        if size < REGION_BYTES or not (self._verified is None or self._verified.covers(position, size)):
            return None
        return FileRegion(self._file().fd, position, size), next_offset

    def locate(self, offset: int) -> int:
        """Return the position of the batch that holds an offset, or of the next one if the offset is in a gap."""
        position = self._file().index.position_of_offset(offset - self.base_offset)
        while position < self.size:
            header = self._header(position)
            if header.next_offset > offset:
                return position
            position += header.size
        return self.size

    def find_time(self, timestamp: int, at: int = 0) -> int | None:
        """Return the position of the first batch, from `at` on, with a record at or after a time."""
        position = max(at, self._file().index.position_of_time(timestamp))
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
        """Return the headers of all batches in order, up to the first damaged one."""
        return [header for header, _ in self.batches_since(self.base_offset)]

    def batches_since(self, offset: int) -> Iterator[tuple[BatchHeader, bytes | None]]:
        """Yield the headers of batches from an offset on; control batches, which are small, with their bytes."""
        position = self.locate(offset)
        while position < self.size:
            try:
                header = self._header(position)
            except CorruptError:
                return  # reading from here raises the error
            yield header, self.read(position, header.size) if header.is_control else None
            position += header.size

    def batches_with_records(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yield whole batches from an offset on, except control batches; raise CorruptError at a damaged one."""
        position = self.locate(offset)
        while position < self.size:
            data = self.read_batch(position)
            header = check_batch(data)
            if not header.is_control:
                yield header, data
            position += header.size

    def close(self) -> None:
        """Close the file."""
        with self._open_lock:
            if self._open is not None:
                os.close(self._open.fd)
                self._open = None
        self._pool.drop(self.path)

    def delete(self) -> None:
        """Close the segment and remove its files, in the archive too if it was moved there."""
        self.close()
        delete_files(self.path)

    def _file(self) -> OpenFile:
        return self._open or self._pool.get(self.path, self._open_sealed)

    def _open_sealed(self) -> OpenFile:
        """Open the file with its saved index; if that is missing or damaged, rebuild it from the segment."""
        fd = os.open(self.path, os.O_RDONLY)
        saved = load_saved(index_path(self.path), size_wanted=self.size)
        if saved is not None:
            self._max_timestamp = saved.max_timestamp
            return OpenFile(fd, saved.index)
        scanned = Segment(self.path, self.base_offset, self._pool)
        scanned._open = OpenFile(fd, SparseIndex())
        at, reason = scan(fd, at=0, end=self.size, next_offset=self.base_offset, note=scanned._add)
        self._max_timestamp = scanned.max_timestamp
        if reason is None:
            _try_to_save_index(self.path, scanned.copy_index())
        else:
            self.damage = Damage(path=self.path, position=at, next_offset=scanned.next_offset, reason=reason)
        return scanned._open

    def _is_overlapped(self, position: int, next_offset: int) -> bool:
        """Return whether the batch at a position starts before an offset.

        Then a base offset is wrong, which no checksum covers.
        """
        data = self.read(position, HEADER_BYTES)
        return len(data) == HEADER_BYTES and read_header(data).base_offset < next_offset

    def _header(self, position: int) -> BatchHeader:
        data = self.read(position, HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            raise _corrupt(self.path, position, self.next_offset, "no record batch starts here")
        header = read_header(data)
        fits = HEADER_BYTES <= header.size <= self.size - position and header.magic == MAGIC
        if not fits or header.base_offset < self.base_offset or header.next_offset > self.next_offset:
            raise _corrupt(self.path, position, header.base_offset, "no record batch starts here")
        return header

    def _add(self, header: BatchHeader) -> None:
        newest = self.max_timestamp
        self._file().index.add(header.base_offset - self.base_offset, self.size, newest)
        self.size += header.size
        self.next_offset = header.next_offset
        if header.max_timestamp > newest:
            self._max_timestamp = header.max_timestamp


def delete_files(path: Path) -> None:
    """Remove a segment's files; a link after its target, so that a crash leaves no unreferenced file."""
    if path.is_symlink():
        path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    index_path(path).unlink(missing_ok=True)


def _is_valid(data: bytes, at: int) -> bool:
    try:
        check_batch(data, at)
    except CorruptError:
        return False
    return True


def _reason(data: bytes) -> str:
    """Return what is wrong with the first batch of the data."""
    try:
        check_batch(data)
    except CorruptError as error:
        return str(error)
    return f"its offsets start at {read_header(data).base_offset}, outside the range expected here"


def _corrupt(path: Path, position: int, offset: int, reason: str) -> CorruptError:
    return CorruptError(
        str(Damage(path=path, position=position, next_offset=offset, reason=reason)),
        hint="restore the file from a copy; `headwater log verify` checks the others",
    )


def save_index(path: Path, saved: SavedIndex) -> None:
    """Write a segment's index to the file next to it."""
    saved.index.save(
        index_path(path), size=saved.size, next_offset=saved.next_offset, max_timestamp=saved.max_timestamp
    )


def _try_to_save_index(path: Path, saved: SavedIndex) -> None:
    try:
        save_index(path, saved)
    except OSError as error:
        # The index only saves reading the segment; a full disk must not prevent closing or reading it.
        logger.warning("cannot save the index of %s: %s", path, error)


def _open_for_writing(path: Path, index: SparseIndex) -> OpenFile:
    return OpenFile(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), index)
