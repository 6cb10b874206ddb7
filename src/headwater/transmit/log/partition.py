"""The log of one partition: a sequence of segments that reads as one file of records.

Offsets increase by one per record and are never reused. Three of them divide the log:

    start_offset   the oldest record that is not deleted
    high_watermark readers see records before it, which are as durable as the topic's config requires
    end_offset     the offset of the next record

Not thread-safe, except for `sync`, which another thread may call.
"""

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from headwater.errors import CorruptError, InvalidError
from headwater.files import sync_directory
from headwater.transmit.log.pool import FilePool
from headwater.transmit.log.scan import Damage
from headwater.transmit.log.segment import NO_TIMESTAMP, Segment, delete_files
from headwater.transmit.log.start_offset import load_start, save_start
from headwater.transmit.log.swap import finish_swaps
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import BatchHeader, place
from headwater.transmit.records.file_region import FileRegion

LEADER_EPOCH = 0  # with one node, the leader never changes
_CURSORS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The size at which the open segment is sealed and a new one started."""

    segment_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampOffset:
    """Timestamp and offset of a record that was found by time."""

    timestamp_ms: int
    offset: int


class OffsetOutOfRange(InvalidError):
    """The offset was deleted, or is after the end of the log."""


class PartitionLog:
    """Appends and reads record batches in `directory`, which is created if it is missing."""

    def __init__(self, directory: Path, settings: LogSettings, pool: FilePool | None = None) -> None:
        self.directory = directory
        self.settings = settings
        self._pool = FilePool() if pool is None else pool
        if not directory.exists():
            directory.mkdir(parents=True)
            sync_directory(directory.parent)
        finish_swaps(directory)
        self._segments, self.recovered_bytes = _open_segments(directory, self._pool)
        start = load_start(directory)
        if start:
            sync_directory(directory)  # only the process may have died: readers must not see what is not on disk
        if start > self.end_offset and self.damage is None:
            # A power failure removed records that had been deleted anyway; their offsets are not reused.
            self._segments[-1].seal()
            self._segments[-1].next_offset = start
            self._segments.append(Segment.create(directory, start, self._pool))
        self._bases = [segment.base_offset for segment in self._segments]
        self._start_offset = max(start, self._bases[0])
        self.high_watermark = self.end_offset
        self.is_closed = False
        self._cursors: dict[int, tuple[Segment, int]] = {}

    @property
    def damage(self) -> Damage | None:
        """Damage in the open segment, if any; the log is then read-only and ends before it."""
        return self._segments[-1].damage

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, the open one last."""
        return tuple(self._segments)

    @property
    def start_offset(self) -> int:
        return self._start_offset

    @property
    def end_offset(self) -> int:
        return self._segments[-1].next_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def append(self, data: bytearray | memoryview, headers: list[BatchHeader]) -> int:
        """Assign offsets to checked batches, write them, and return the first offset.

        `data` is changed in place; `headers` are the headers of its batches, in order.
        """
        if self.damage is not None:
            raise CorruptError(f"cannot append: {self.damage}", hint="restore the file from a copy")
        if self._segments[-1].size + len(data) > self.settings.segment_bytes:
            self.roll()
        segment = self._segments[-1]
        first = offset = self.end_offset
        at = 0
        placed = []
        for header in headers:
            place(data, at, base_offset=offset, leader_epoch=LEADER_EPOCH)
            placed.append(header._replace(base_offset=offset))
            offset += header.last_offset_delta + 1
            at += header.size
        segment.append(data, placed)
        return first

    def sync(self) -> int:
        """Wait until everything appended before the call is on disk; return the end offset at that time."""
        reached = self.end_offset
        self._segments[-1].sync()
        return reached

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Read whole batches, from the one with `offset` up to the high watermark.

        Returns at most `max_bytes`, but at least one batch if there is one, however large.
        """
        records, _ = self.read_region(offset, max_bytes, self.high_watermark)
        return records.read() if isinstance(records, FileRegion) else records

    def read_region(self, offset: int, max_bytes: int, below: int) -> tuple[bytes | FileRegion, int]:
        """Read batches below an offset; return them and the offset after them. Large results are a FileRegion."""
        segment, position = self._locate(offset, below) or (None, 0)
        if segment is None:
            return b"", offset
        records: bytes | FileRegion
        records, next_offset = segment.find_region(position, max_bytes, below) or segment.read_batches(
            position, max_bytes, below
        )
        if records:  # readers continue at the next offset, so remember its position
            if len(self._cursors) >= _CURSORS_MAX:
                self._cursors.pop(next(iter(self._cursors)))
            self._cursors[next_offset] = (segment, position + len(records))
        return records, next_offset

    def offset_of_time(self, timestamp: int) -> TimestampOffset | None:
        """Return the first record at or after a time."""
        for segment in self._segments:
            position = segment.find_time(timestamp) if segment.max_timestamp >= timestamp else None
            while position is not None:
                data, _ = segment.read_batches(position, 1, segment.next_offset)
                for record in decode_batch(data):
                    is_there = self.start_offset <= record.offset < self.high_watermark
                    if record.timestamp_ms >= timestamp and is_there:
                        return TimestampOffset(timestamp_ms=record.timestamp_ms, offset=record.offset)
                # Compaction may have removed all records of the batch, or some of them are deleted.
                position = segment.find_time(timestamp, position + len(data))
        return None

    def latest_time(self) -> TimestampOffset | None:
        """Return the record with the highest timestamp; the first of them if there are several."""
        newest = max(_newest_visible(segment, self.high_watermark) for segment in self._segments)
        return None if newest < 0 else self.offset_of_time(newest)

    @property
    def open_segment_offset(self) -> int:
        """The base offset of the open segment."""
        return self._bases[-1]

    def batches_since(self, offset: int) -> Iterator[tuple[BatchHeader, bytes | None]]:
        """Yield the headers of batches from an offset on, with the bytes of control batches."""
        for segment in self._segments[max(bisect_right(self._bases, offset) - 1, 0) :]:
            yield from segment.batches_since(offset)

    def batches_from(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yield whole batches from an offset on, except control batches."""
        for segment in self._segments[max(bisect_right(self._bases, offset) - 1, 0) :]:
            yield from segment.batches_with_records(offset)

    def close(self) -> None:
        """Sync, seal and close the files, so that the next start need not scan the open segment."""
        self.is_closed = True
        if self.damage is None and self._segments[-1].size:
            self._segments[-1].seal()
        for segment in self._segments:
            segment.close()

    # -- rolling and deleting ---------------------------------------------------------------------------------

    def roll(self) -> None:
        """Seal the open segment, unless it is empty, and start the next."""
        sealed = self._segments[-1]
        if sealed.size and self.damage is None:
            sealed.sync()
            # If the disk is full, this raises and the open segment stays open.
            self._segments.append(Segment.create(self.directory, sealed.next_offset, self._pool))
            self._bases.append(sealed.next_offset)
            sealed.seal()

    def delete_before(self, offset: int) -> None:
        """Delete records before an offset; segments with only such records are removed."""
        old = [segment for segment in self._segments[:-1] if segment.next_offset <= offset]
        if offset > self._start_offset:
            try:
                save_start(self.directory, offset)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not old:
                    raise
                # Deleting frees space. Without a saved start offset, the log starts with its first file.
                self._start_offset = old.pop(0).next_offset
                self.delete_before(self._start_offset)
                sync_directory(self.directory)
                save_start(self.directory, offset)
            self._start_offset = offset
        self._drop_cursors(old)
        for segment in old:
            segment.delete()
        self._segments = self._segments[len(old) :]
        self._bases = self._bases[len(old) :]

    def replace(self, old: Sequence[Segment], change: Callable[[], Path]) -> None:
        """Replace adjacent sealed segments by one file, which `change` puts in place and returns."""
        at = self._segments.index(old[0])
        next_offset = old[-1].next_offset
        self._drop_cursors(old)
        for segment in old:
            segment.close()
        self._segments[at : at + len(old)] = [Segment.open_sealed(change(), next_offset, self._pool)]
        self._bases = [segment.base_offset for segment in self._segments]

    # -- inside -----------------------------------------------------------------------------------------------

    def _drop_cursors(self, segments: Sequence[Segment]) -> None:
        removed = set(segments)
        self._cursors = {offset: at for offset, at in self._cursors.items() if at[0] not in removed}

    def _locate(self, offset: int, below: int) -> tuple[Segment, int] | None:
        """Return segment and position of the batch with an offset; None if there is nothing below `below`."""
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"cannot read {self.directory.name} at offset {offset}: it has offsets {self.start_offset} to "
                f"{self.end_offset}"
            )
        if offset == self.end_offset and self.damage is not None:
            raise CorruptError(str(self.damage))
        if offset >= below:
            return None
        known = self._cursors.pop(offset, None)
        if known is not None and known[1] < known[0].size:
            return known
        number = max(0, bisect_right(self._bases, offset) - 1)
        segment = self._segments[number]
        position = segment.locate(offset)
        while position == segment.size and segment is not self._segments[-1]:
            number += 1
            segment, position = self._segments[number], 0  # the offset is in a gap between the two
        return None if position == segment.size else (segment, position)  # compaction may have removed the rest


def _newest_visible(segment: Segment, high_watermark: int) -> int:
    if segment.next_offset <= high_watermark:
        return segment.max_timestamp
    visible = (h.max_timestamp for h in segment.headers() if h.next_offset <= high_watermark)
    return max(visible, default=NO_TIMESTAMP)


def _open_segments(directory: Path, pool: FilePool) -> tuple[list[Segment], int]:
    start = load_start(directory)
    paths = sorted(directory.glob("*.log"))
    # After an interrupted deletion a link may have no target. Other old files are left for the next deletion,
    # because the states of producers may have to be read from them.
    broken = [path for path, following in pairwise(paths) if int(following.stem) <= start and not path.exists()]
    for path in broken:
        delete_files(path)
        paths.remove(path)
    if not paths:
        return [Segment.create(directory, start, pool)], 0
    ends = [int(path.stem) for path in paths[1:]]
    sealed = [Segment.open_sealed(path, end, pool) for path, end in zip(paths, ends, strict=False)]
    last, dropped = Segment.recover(paths[-1], pool)
    return [*sealed, last], dropped
