"""One file of a partition's log: record batches end to end, named by the offset of the first record.

    00000000000000000000.log      the batches, exactly as they travel; a link into the archive once moved there
    00000000000000000000.index    the sparse index

A segment is open for appending until it is sealed; there is one open segment a partition. After a crash the
open one is scanned from where its index was last saved: what is cut at the end is cut off, which can only be what
was never acknowledged as durable. Damage before a whole batch is kept and named (`scan`).

A sealed segment is neither opened nor read until somebody reads from it, and what is read for the first time is
verified against its checksums. Not thread-safe, but for `sync`.
"""

import logging
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from headwater.errors import CorruptError
from headwater.files import sync_directory
from headwater.transmit.log.index import SavedIndex, SparseIndex, load_saved
from headwater.transmit.log.pool import FilePool, OpenFile
from headwater.transmit.log.scan import Damage, find_batch, scan
from headwater.transmit.records.batch import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    BatchHeader,
    Buffer,
    check_batch,
    read_header,
)
from headwater.transmit.records.file_region import FileRegion

logger = logging.getLogger(__name__)

NO_TIMESTAMP = -1
_PLACE = struct.Struct(">qi4xb6xi")  # of a header: base offset, length, magic, last offset delta
_REGION_BYTES = 64 << 10  # what is remembered as verified, a byte of memory each


class Regions:
    """Which parts of a segment have been verified since it was opened: those where every batch was read once."""

    def __init__(self, size: int) -> None:
        self._done = bytearray(size // _REGION_BYTES + 1)
        self._reached: dict[int, int] = {}
        """How far a region was verified whose rest was not, by its number: the next reader goes on from there."""

    def covers(self, position: int, length: int) -> bool:
        """Whether all of it was verified, or stands behind what must be."""
        first, last = position // _REGION_BYTES, (position + length - 1) // _REGION_BYTES
        return b"\x00" not in self._done[first : last + 1]

    def note(self, position: int, length: int, *, is_end: bool) -> None:
        """Batches from a position on were verified; a region counts when all that start in it were."""
        first, last = position // _REGION_BYTES, (position + length) // _REGION_BYTES
        if position % _REGION_BYTES and self._reached.get(first) != position:
            first += 1
        if is_end:
            last = len(self._done)
        elif first <= last:
            self._reached[last] = position + length
        for number in range(first, min(last, len(self._done))):
            self._done[number] = 1
            self._reached.pop(number, None)


class Segment:
    """A segment file and its index; made by one of the functions below."""

    def __init__(self, path: Path, base_offset: int, pool: FilePool) -> None:
        self.path = path
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.damage: Damage | None = None
        self._max_timestamp: int | None = NO_TIMESTAMP
        self._pool = pool
        self._open: OpenFile | None = None
        self._open_lock = threading.Lock()  # `sync` runs in another thread while we may be closed
        self._verified: Regions | None = None
        """None while there is nothing to verify: this process has checked and written it all."""

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
        """Write batches that already carry their offsets; all of them or, if the disk refuses, none."""
        fd = self._file().fd
        try:
            written = os.pwrite(fd, data, self.size)
            while written < len(data):
                written += os.pwrite(fd, memoryview(data)[written:], self.size + written)
        except OSError:
            os.ftruncate(fd, self.size)
            raise
        for header in headers:
            self._note(header)

    def sync(self) -> None:
        """Wait until what was written is on the disk. May be called from another thread."""
        with self._open_lock:
            if self._open is not None:  # or it was sealed or closed meanwhile, and synced before
                os.fdatasync(self._open.fd)

    def saved(self) -> SavedIndex:
        """The index as it is now, to be saved when the segment has been synced."""
        return SavedIndex(
            index=self._file().index.copy(),
            size=self.size,
            next_offset=self.next_offset,
            max_timestamp=self.max_timestamp,
        )

    def seal(self) -> None:
        """Sync, write the index and close the file; nothing is appended from now on."""
        self.sync()
        _try_to_save_index(self.path, self.saved())
        self.close()
        self._verified = Regions(self.size)  # what was checked when it came in is checked again when read back

    def read(self, position: int, length: int) -> bytes:
        """Read bytes as they stand in the file."""
        return os.pread(self._file().fd, max(0, min(length, self.size - position)), position)

    def read_batches(self, position: int, max_bytes: int, below: int) -> tuple[bytes, int]:
        """Whole, undamaged batches from a position on that end before an offset, and the offset behind them.

        At least one where there is one, however large. A CorruptError if the first is damaged.
        """
        data = self.read(position, max_bytes)
        if len(data) < HEADER_BYTES or read_header(data).size > len(data):
            data = self.read_batch(position)
        is_new = self._verified is not None and not self._verified.covers(position, len(data))
        end = next_offset = 0
        before = (0, 0)
        lowest = self.base_offset
        while end + HEADER_BYTES <= len(data):
            base_offset, length, magic, last_delta = _PLACE.unpack_from(data, end)
            size = length + LENGTH_PREFIX_BYTES
            if end and size > len(data) - end:
                break
            behind = base_offset + last_delta + 1
            fits = HEADER_BYTES <= size <= len(data) - end and magic == MAGIC and last_delta >= 0
            if not fits or base_offset < lowest or behind > self.next_offset or (is_new and not _holds(data, end)):
                if not end:
                    raise _corrupt(self.path, position, lowest, _reason(data))
                break
            if behind > below:
                break
            before = (end, next_offset)
            end += size
            lowest = next_offset = behind
        if is_new and end and self._is_overlapped(position + end, next_offset):
            end, next_offset = before
            if not end:
                raise _corrupt(self.path, position, self.base_offset, "its offsets reach into the batch behind it")
        if is_new and self._verified is not None:
            self._verified.note(position, end, is_end=position + end == self.size)
        return (data if end == len(data) else data[:end]), next_offset

    def locate(self, offset: int) -> int:
        """The position of the batch that holds the offset, or of the next one where the offset is in a gap."""
        position = self._file().index.position_of_offset(offset - self.base_offset)
        while position < self.size:
            header = self._header(position)
            if header.next_offset > offset:
                return position
            position += header.size
        return self.size

    def find_time(self, timestamp: int, at: int = 0) -> int | None:
        """The position of the first batch, from `at` on, with a record of that time or later."""
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
        """The headers of all batches, in order; none behind damage."""
        return [header for header, _ in self.batches_since(self.base_offset)]

    def batches_since(self, offset: int) -> Iterator[tuple[BatchHeader, bytes | None]]:
        """Headers from an offset on; control batches are small and come whole."""
        position = self.locate(offset)
        while position < self.size:
            try:
                header = self._header(position)
            except CorruptError:
                return  # who reads from here is told
            yield header, self.read(position, header.size) if header.is_control else None
            position += header.size

    def batches_with_records(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Whole batches from an offset on, without control batches; a CorruptError where one is damaged."""
        position = self.locate(offset)
        while position < self.size:
            data = self.read_batch(position)
            header = check_batch(data)
            if not header.is_control:
                yield header, data
            position += header.size

    def close(self) -> None:
        """Let go of the file."""
        with self._open_lock:
            if self._open is not None:
                os.close(self._open.fd)
                self._open = None
        self._pool.drop(self.path)

    def _file(self) -> OpenFile:
        return self._open or self._pool.get(self.path, self._open_sealed)

    def _open_sealed(self) -> OpenFile:
        """Open by the saved index; where that is missing or damaged, by reading the segment."""
        fd = os.open(self.path, os.O_RDONLY)
        saved = load_saved(index_path(self.path), size_wanted=self.size)
        if saved is not None:
            self._max_timestamp = saved.max_timestamp
            return OpenFile(fd, saved.index)
        fresh = Segment(self.path, self.base_offset, self._pool)
        fresh._open = OpenFile(fd, SparseIndex())
        at, reason = scan(fd, at=0, end=self.size, next_offset=self.base_offset, note=fresh._note)
        self._max_timestamp = fresh.max_timestamp
        if reason is None:
            _try_to_save_index(self.path, fresh.saved())
        else:
            self.damage = Damage(path=self.path, position=at, next_offset=fresh.next_offset, reason=reason)
        return fresh._open

    def _is_overlapped(self, position: int, next_offset: int) -> bool:
        """Whether the batch there starts before an offset: a base offset is wrong, which no checksum tells."""
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

    def _note(self, header: BatchHeader) -> None:
        newest = self.max_timestamp
        self._file().index.note(header.base_offset - self.base_offset, self.size, newest)
        self.size += header.size
        self.next_offset = header.next_offset
        if header.max_timestamp > newest:
            self._max_timestamp = header.max_timestamp


def find_region(segment: Segment, position: int, max_bytes: int, below: int) -> tuple[FileRegion, int] | None:
    """What `read_batches` reads, by the index alone; None where the batches have to be looked at.

    That is where they are not yet verified, and where there are too few for the index to tell them apart.
    """
    if segment.next_offset <= below and segment.size - position <= max_bytes:
        size, next_offset = segment.size - position, segment.next_offset
    else:
        offset_delta, end = segment._file().index.last_batch(
            position=position + max_bytes,
            offset_delta=None if segment.next_offset <= below else below - segment.base_offset,
        )
        size, next_offset = end - position, segment.base_offset + offset_delta
    if size < _REGION_BYTES or not (segment._verified is None or segment._verified.covers(position, size)):
        return None
    return FileRegion(segment._file().fd, position, size), next_offset


def create_segment(directory: Path, base_offset: int, pool: FilePool) -> Segment:
    """Start an empty segment; its name is on the disk when this returns."""
    segment = Segment(segment_path(directory, base_offset), base_offset, pool)
    segment._open = _open_for_writing(segment.path, SparseIndex())
    try:
        sync_directory(directory)
    except OSError:
        delete_segment(segment)  # or the one before it, which goes on growing, would overlap it
        raise
    return segment


def sealed_segment(path: Path, next_offset: int, pool: FilePool) -> Segment:
    """A sealed segment, whose records are before `next_offset`; nothing is read but its size."""
    segment = Segment(path, int(path.stem), pool)
    try:
        segment.size = path.stat().st_size
    except FileNotFoundError as error:
        raise CorruptError(
            f"{path} is a link to {path.readlink()}, which is not there",
            hint="mount the archive or restore the file; without the link the log starts with the next segment",
        ) from error
    segment.next_offset = next_offset
    segment._max_timestamp = None
    segment._verified = Regions(segment.size)
    return segment


def recover_segment(path: Path, pool: FilePool) -> tuple[Segment, int]:
    """Open the segment that was being written, cutting off what is not whole; return how much that was."""
    segment = Segment(path, int(path.stem), pool)
    file_size = path.stat().st_size
    saved = load_saved(index_path(path))
    if saved is None or saved.size > file_size:
        index_path(path).unlink(missing_ok=True)  # or it would seem to fit when the file has grown again
        saved = SavedIndex(
            index=SparseIndex(), size=0, next_offset=segment.base_offset, max_timestamp=NO_TIMESTAMP
        )
    segment.size, segment.next_offset = saved.size, saved.next_offset
    segment._max_timestamp = saved.max_timestamp
    segment._verified = Regions(saved.size) if saved.size else None
    segment._open = _open_for_writing(path, saved.index)
    fd = segment._open.fd
    at, reason = scan(
        fd, at=saved.size, end=file_size, next_offset=saved.next_offset, note=segment._note, gaps=False
    )
    if reason is None:
        if segment.size > saved.size:
            os.fdatasync(fd)  # readers are about to see it, and only the process may have died so far
        return segment, 0
    if find_batch(fd, at=at, end=file_size, next_offset=segment.next_offset) is not None:
        segment.damage = Damage(path=path, position=at, next_offset=segment.next_offset, reason=reason)
        return segment, 0
    os.ftruncate(fd, segment.size)
    os.fsync(fd)
    return segment, file_size - segment.size


def delete_segment(segment: Segment) -> None:
    """Close it and remove its files; from the archive, too, if it was moved there."""
    segment.close()
    delete_files(segment.path)


def delete_files(path: Path) -> None:
    """Remove a segment's files. The link goes after what it leads to, so that a crash leaves nothing unknown."""
    if path.is_symlink():
        path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    index_path(path).unlink(missing_ok=True)


def _holds(data: bytes, at: int) -> bool:
    try:
        check_batch(data, at)
    except CorruptError:
        return False
    return True


def _reason(data: bytes) -> str:
    """What is wrong with the batch that the data starts with."""
    try:
        check_batch(data)
    except CorruptError as error:
        return str(error)
    return f"its offsets from {read_header(data).base_offset} on do not belong here"


def _corrupt(path: Path, position: int, offset: int, reason: str) -> CorruptError:
    return CorruptError(
        str(Damage(path=path, position=position, next_offset=offset, reason=reason)),
        hint="restore the file from a copy; `headwater log verify` checks the others",
    )


def save_index(path: Path, saved: SavedIndex) -> None:
    """Write the index of a segment beside it."""
    saved.index.save(
        index_path(path), size=saved.size, next_offset=saved.next_offset, max_timestamp=saved.max_timestamp
    )


def _try_to_save_index(path: Path, saved: SavedIndex) -> None:
    try:
        save_index(path, saved)
    except OSError as error:
        # It saves reading the segment and nothing else; a full disk must not keep us from closing or reading it.
        logger.warning("cannot save the index of %s: %s", path, error)


def segment_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.log"


def index_path(path: Path) -> Path:
    return path.with_suffix(".index")


def _open_for_writing(path: Path, index: SparseIndex) -> OpenFile:
    return OpenFile(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), index)
