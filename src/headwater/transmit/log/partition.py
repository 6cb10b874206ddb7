"""The log of one partition: a row of segments that looks like one endless file of records.

Offsets grow by one a record and never repeat. Three marks divide it:

    start_offset   the oldest record that is still there
    high_watermark what readers may see: everything before it is as durable as the broker promises
    end_offset     where the next record goes

Not thread-safe, but for `sync`, which another thread may call to wait for the disk.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import InvalidError
from headwater.transmit.batch import BatchHeader, decode_batch, place, read_header, walk
from headwater.transmit.log.segment import NO_TIMESTAMP, Segment, sync_directory

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

    def __init__(self, directory: Path, settings: LogSettings) -> None:
        self.directory = directory
        self._settings = settings
        if not directory.exists():
            directory.mkdir(parents=True)
            sync_directory(directory.parent)
        self._segments, self.recovered_bytes = _open_segments(directory)
        self._bases = [segment.base_offset for segment in self._segments]
        self.high_watermark = self.end_offset
        self._cursors: dict[int, tuple[Segment, int]] = {}

    @property
    def start_offset(self) -> int:
        return self._bases[0]

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
        segment = self._segment_for(len(data))
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
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"cannot read {self.directory.name} at offset {offset}: it holds {self.start_offset} to "
                f"{self.end_offset}"
            )
        if offset >= self.high_watermark:
            return b""
        segment, position = self._locate(offset)
        data = segment.read(position, max_bytes)
        end = next_offset = 0
        for at, header in walk(data):
            if header.next_offset > self.high_watermark:
                break
            end, next_offset = at + header.size, header.next_offset
        if end == 0:
            data = segment.read_batch(position)
            end, next_offset = len(data), read_header(data).next_offset
            if next_offset > self.high_watermark:
                return b""
        self._remember(next_offset, segment, position + end)
        return data if end == len(data) else data[:end]

    def offset_of_time(self, timestamp: int) -> TimestampOffset | None:
        """The first record of that time or later, exact to the record."""
        for segment in self._segments:
            position = segment.find_time(timestamp) if segment.max_timestamp >= timestamp else None
            if position is None:
                continue
            for record in decode_batch(segment.read_batch(position)):
                if record.timestamp_ms >= timestamp and record.offset < self.high_watermark:
                    return TimestampOffset(timestamp_ms=record.timestamp_ms, offset=record.offset)
        return None

    def latest_time(self) -> TimestampOffset | None:
        """The record with the highest timestamp; the first of them where several have it."""
        newest = max(self._newest_visible(segment) for segment in self._segments)
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
        """Wait for the disk and close the files."""
        self.sync()
        for segment in self._segments:
            segment.close()

    def _segment_for(self, size: int) -> Segment:
        open_segment = self._segments[-1]
        if open_segment.size and open_segment.size + size > self._settings.segment_bytes:
            open_segment.sync()
            open_segment.seal()
            open_segment = Segment.create(self.directory, open_segment.next_offset)
            self._segments.append(open_segment)
            self._bases.append(open_segment.base_offset)
        return open_segment

    def _newest_visible(self, segment: Segment) -> int:
        if segment.next_offset <= self.high_watermark:
            return segment.max_timestamp
        visible = (h.max_timestamp for h in segment.headers() if h.next_offset <= self.high_watermark)
        return max(visible, default=NO_TIMESTAMP)

    def _locate(self, offset: int) -> tuple[Segment, int]:
        known = self._cursors.pop(offset, None)
        if known is not None and known[1] < known[0].size:
            return known
        number = bisect_right(self._bases, offset) - 1
        segment = self._segments[number]
        position = segment.locate(offset)
        if position == segment.size and segment is not self._segments[-1]:
            return self._segments[number + 1], 0  # the offset is in a gap between the two
        return segment, position

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        """A reader comes back for the next offset, so keep where that is."""
        if len(self._cursors) >= _CURSORS_MAX:
            self._cursors.pop(next(iter(self._cursors)))
        self._cursors[offset] = (segment, position)


def _open_segments(directory: Path) -> tuple[list[Segment], int]:
    paths = sorted(directory.glob("*.log"))
    if not paths:
        return [Segment.create(directory, 0)], 0
    last, dropped = Segment.recover(paths[-1])
    return [*(Segment.open_sealed(path) for path in paths[:-1]), last], dropped
