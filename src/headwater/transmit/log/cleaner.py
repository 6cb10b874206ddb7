"""Run compaction: read sealed segment files and write one new file for several. Needs no lock and no loop.

Segments in use are not changed: the result is a separate file until it is swapped in (`swap`). Memory is bounded
by the offset map and a few megabytes of records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import CorruptError
from headwater.files import replace_durably, sync_file
from headwater.transmit.log.compaction import IsAborted, OffsetMap, compact, none_aborted
from headwater.transmit.log.index import SavedIndex, SparseIndex
from headwater.transmit.log.segment import NO_TIMESTAMP, Segment
from headwater.transmit.log.swap import cleaned_path
from headwater.transmit.records.batch_header import walk

_CHUNK_BYTES = 4 << 20
_CLEANED_NAME = "cleaned-offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedFile:
    """A compacted file that is not swapped in yet, and its index."""

    path: Path
    saved: SavedIndex
    end_offset: int


def load_cleaned(directory: Path) -> int:
    """Return the offset up to which the log is compacted; 0 if unknown, which only costs another pass."""
    try:
        return int((directory / _CLEANED_NAME).read_text())
    except (OSError, ValueError):
        return 0


def save_cleaned(directory: Path, offset: int) -> None:
    replace_durably(directory / _CLEANED_NAME, f"{offset}\n".encode())


def map_offsets(
    paths: Sequence[Path],
    *,
    start: int,
    end: int,
    keys_max: int,
    is_aborted: IsAborted = none_aborted,
) -> OffsetMap:
    """Return the last offset of each key in [start, end), or in the part of it that `keys_max` allows."""
    latest = OffsetMap(end=start, keys_max=keys_max)
    for path in paths:
        for data in _read_batches(path):
            if latest.is_full:
                return latest
            latest.add(data, start=start, bound=end, is_aborted=is_aborted)
    return latest


def group_segments(segments: Sequence[Segment], segment_bytes: int) -> list[list[Segment]]:
    """Group adjacent segments that fit into one segment, by their sizes before compaction."""
    groups: list[list[Segment]] = []
    left = 0
    for segment in segments:
        if not groups or segment.size > left:
            groups.append([])
            left = segment_bytes
        groups[-1].append(segment)
        left -= segment.size
    return groups


def write_cleaned(
    paths: Sequence[Path],
    latest: OffsetMap,
    *,
    end_offset: int,
    now_ms: int,
    delete_retention_ms: int,
    is_aborted: IsAborted = none_aborted,
) -> CompactedFile:
    """Compact adjacent segments into a new file next to them; its content is on disk when this returns."""
    base_offset = next_offset = int(paths[0].stem)
    target = cleaned_path(paths[0].parent, base_offset)
    index, size, newest = SparseIndex(), 0, NO_TIMESTAMP
    with target.open("wb") as file:
        for path in paths:
            for data in _read_batches(path):
                kept = compact(
                    data, latest, now_ms=now_ms, delete_retention_ms=delete_retention_ms, is_aborted=is_aborted
                )
                for at, header in walk(kept):
                    index.add(header.base_offset - base_offset, size + at, newest)
                    newest, next_offset = max(newest, header.max_timestamp), header.next_offset
                size += len(kept)
                file.write(kept)
        sync_file(file)
    saved = SavedIndex(index=index, size=size, next_offset=next_offset, max_timestamp=newest)
    return CompactedFile(path=target, saved=saved, end_offset=end_offset)


def _read_batches(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in chunks of whole batches."""
    position = 0
    rest = b""
    with path.open("rb") as file:
        while chunk := file.read(max(_CHUNK_BYTES, len(rest))):
            data = rest + chunk
            end = 0
            for at, header in walk(data):
                end = at + header.size
            if end:
                yield data[:end]
            position += end
            rest = data[end:]
    if rest:
        raise CorruptError(f"{path} is damaged at byte {position}: the file ends within a batch")
