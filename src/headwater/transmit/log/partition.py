"""The log of one partition: a row of segments that looks like one endless file of records.

Offsets grow by one a record and never repeat. Three marks divide it:

    start_offset   the oldest record that is still there
    high_watermark what readers may see: everything before it is as durable as the broker promises
    end_offset     where the next record goes

Not thread-safe, but for `sync`, which another thread may call to wait for the disk.
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
from headwater.transmit.records.batch import BatchHeader, decode_batch, place
from headwater.transmit.records.file_region import FileRegion

LEADER_EPOCH = 0  # one node leads for ever
_CURSORS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """When the open segment is sealed and a new one begun."""

    segment_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampOffset:
    """A record found by time."""

    timestamp_ms: int
    offset: int


class OffsetOutOfRange(InvalidError):
    """The offset was deleted or is not written yet."""


class PartitionLog:
    """Appends and reads record batches in `directory`, which is made if it is missing."""

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
            sync_directory(directory)  # readers are about to see it, and only the process may have died so far
        if start > self.end_offset and self.damage is None:
            # The loss of power took records that had been deleted anyway; their offsets are not given again.
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
        """What is wrong with the open segment; the log is then read-only and ends before it."""
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
        """Give checked batches their offsets, write them, and return the first offset.

        `data` is changed in place, and `headers` are those of its batches in order.
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
        """Wait until all that was appended before the call is on the disk; return the offset reached."""
        reached = self.end_offset
        self._segments[-1].sync()
        return reached

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Read whole batches from the one that holds `offset` up to the high watermark.

        At least one batch is returned where there is one, however large; otherwise at most `max_bytes`.
        """
        records, _ = self.read_region(offset, max_bytes, self.high_watermark)
        return records.read() if isinstance(records, FileRegion) else records

    def read_region(self, offset: int, max_bytes: int, below: int) -> tuple[bytes | FileRegion, int]:
        """As `read`, up to an offset, and the offset behind it; what is large is not read but pointed at."""
        segment, position = self._locate(offset, below) or (None, 0)
        if segment is None:
            return b"", offset
        records: bytes | FileRegion
        records, next_offset = segment.find_region(position, max_bytes, below) or segment.read_batches(
            position, max_bytes, below
        )
        if records:  # a reader comes back for the next offset, so keep where that is
            if len(self._cursors) >= _CURSORS_MAX:
                self._cursors.pop(next(iter(self._cursors)))
            self._cursors[next_offset] = (segment, position + len(records))
        return records, next_offset

    def offset_of_time(self, timestamp: int) -> TimestampOffset | None:
        """The first record of that time or later, exact to the record."""
        for segment in self._segments:
            position = segment.find_time(timestamp) if segment.max_timestamp >= timestamp else None
            while position is not None:
                data, _ = segment.read_batches(position, 1, segment.next_offset)
                for record in decode_batch(data):
                    is_there = self.start_offset <= record.offset < self.high_watermark
                    if record.timestamp_ms >= timestamp and is_there:
                        return TimestampOffset(timestamp_ms=record.timestamp_ms, offset=record.offset)
                # A batch of the right time may have been emptied by compaction, or be deleted in part.
                position = segment.find_time(timestamp, position + len(data))
        return None

    def latest_time(self) -> TimestampOffset | None:
        """The record with the highest timestamp; the first of them where several have it."""
        newest = max(_newest_visible(segment, self.high_watermark) for segment in self._segments)
        return None if newest < 0 else self.offset_of_time(newest)

    @property
    def open_segment_offset(self) -> int:
        """Where the segment begins that is written now."""
        return self._bases[-1]

    def batches_since(self, offset: int) -> Iterator[tuple[BatchHeader, bytes | None]]:
        """The headers of all batches from an offset on, with the bytes of those that are control batches."""
        for segment in self._segments[max(bisect_right(self._bases, offset) - 1, 0) :]:
            yield from segment.batches_since(offset)

    def close(self) -> None:
        """Wait for the disk and close the files; the next start need not read the open segment."""
        self.is_closed = True
        if self.damage is None and self._segments[-1].size:
            self._segments[-1].seal()
        for segment in self._segments:
            segment.close()

    # -- getting older ----------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Seal the open segment, if there is something in it, and start the next."""
        sealed = self._segments[-1]
        if sealed.size and self.damage is None:
            sealed.sync()
            # Where the disk has no room for it, the open segment stays open.
            self._segments.append(Segment.create(self.directory, sealed.next_offset, self._pool))
            self._bases.append(sealed.next_offset)
            sealed.seal()

    def delete_before(self, offset: int) -> None:
        """Let the log start at an offset; segments that are wholly before it are removed."""
        old = [segment for segment in self._segments[:-1] if segment.next_offset <= offset]
        if offset > self._start_offset:
            try:
                save_start(self.directory, offset)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not old:
                    raise
                # To delete is what makes room. Without the note the log starts with the first file that is there.
                self._start_offset = old.pop(0).next_offset
                self.delete_before(self._start_offset)
                sync_directory(self.directory)
                save_start(self.directory, offset)
            self._start_offset = offset
        self._forget(old)
        for segment in old:
            segment.delete()
        self._segments = self._segments[len(old) :]
        self._bases = self._bases[len(old) :]

    def replace(self, old: Sequence[Segment], change: Callable[[], Path]) -> None:
        """Have `change` put one sealed file in the place of some neighbours; readers see one or the other."""
        at = self._segments.index(old[0])
        next_offset = old[-1].next_offset
        self._forget(old)
        for segment in old:
            segment.close()
        self._segments[at : at + len(old)] = [Segment.open_sealed(change(), next_offset, self._pool)]
        self._bases = [segment.base_offset for segment in self._segments]

    # -- inside -----------------------------------------------------------------------------------------------

    def _forget(self, segments: Sequence[Segment]) -> None:
        gone = set(segments)
        self._cursors = {offset: at for offset, at in self._cursors.items() if at[0] not in gone}

    def _locate(self, offset: int, below: int) -> tuple[Segment, int] | None:
        """Where the batch with the offset is; None if there is nothing to read from it up to the other offset."""
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"cannot read {self.directory.name} at offset {offset}: it holds {self.start_offset} to "
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
        return None if position == segment.size else (segment, position)  # compaction may have left nothing here


def _newest_visible(segment: Segment, high_watermark: int) -> int:
    if segment.next_offset <= high_watermark:
        return segment.max_timestamp
    visible = (h.max_timestamp for h in segment.headers() if h.next_offset <= high_watermark)
    return max(visible, default=NO_TIMESTAMP)


def _open_segments(directory: Path, pool: FilePool) -> tuple[list[Segment], int]:
    start = load_start(directory)
    paths = sorted(directory.glob("*.log"))
    # Where a deletion was cut short, a link may lead nowhere; other files are left for the next deletion, because
    # what is known of producers may still have to be read from them.
    broken = [path for path, behind in pairwise(paths) if int(behind.stem) <= start and not path.exists()]
    for path in broken:
        delete_files(path)
        paths.remove(path)
    if not paths:
        return [Segment.create(directory, start, pool)], 0
    ends = [int(path.stem) for path in paths[1:]]
    sealed = [Segment.open_sealed(path, end, pool) for path, end in zip(paths, ends, strict=False)]
    last, dropped = Segment.recover(paths[-1], pool)
    return [*sealed, last], dropped
