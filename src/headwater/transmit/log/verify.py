"""Check logs offline: read every batch of every segment and verify its checksum; nothing is changed."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headwater.transmit.log.scan import Damage, find_batch, scan
from headwater.transmit.records.batch_header import BatchHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReport:
    """The result for one segment; the next start truncates `torn_bytes` at its end."""

    path: Path
    size: int
    batches: int
    damage: Damage | None = None
    torn_bytes: int = 0


def verify_logs(directory: Path) -> Iterator[SegmentReport]:
    """Check the segments of every partition below the broker's log directory, in order."""
    for folder in sorted(path for path in directory.iterdir() if path.is_dir()):
        segments = sorted(folder.glob("*.log"))
        for path in segments:
            yield verify_segment(path, is_open=path == segments[-1])


def verify_segment(path: Path, *, is_open: bool) -> SegmentReport:
    """Check one segment; only an open one may end in the middle of a batch."""
    batches = 0
    next_offset = int(path.stem)

    def note(header: BatchHeader) -> None:
        nonlocal batches, next_offset
        batches += 1
        next_offset = header.next_offset

    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        at, reason = scan(fd, at=0, end=size, next_offset=next_offset, note=note, gaps=not is_open)
        if reason is None:
            return SegmentReport(path=path, size=size, batches=batches)
        if is_open and find_batch(fd, at=at, end=size, next_offset=next_offset) is None:
            return SegmentReport(path=path, size=size, batches=batches, torn_bytes=size - at)
        damage = Damage(path=path, position=at, next_offset=next_offset, reason=reason)
        return SegmentReport(path=path, size=size, batches=batches, damage=damage)
    finally:
        os.close(fd)
