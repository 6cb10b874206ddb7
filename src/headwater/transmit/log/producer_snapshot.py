"""Snapshots of what is known about a partition up to an offset, kept beside its segments.

    00000000000000004711.producers    magic 4 | CRC-32C of the body 4 | body

A snapshot is written whole and renamed. It is derived: one that is missing or damaged costs the reading of the
batches since the one before it, or of all of them. One that is ahead of its log (the log was cut when it was
recovered) says something about records that are not there, and is removed.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

from headwater.files import replace_durably

SNAPSHOTS_KEPT = 2
_HEADER = struct.Struct(">4sI")
_MAGIC = b"HWP1"
_SUFFIX = ".producers"


def save_snapshot(directory: Path, offset: int, body: bytes) -> None:
    """Write the snapshot of everything before an offset, and remove older ones but the last."""
    # On the disk: an older snapshot is wrong, not only old, where the batches since then have been deleted.
    replace_durably(directory / f"{offset:020d}{_SUFFIX}", _HEADER.pack(_MAGIC, crc32c(body)) + body)
    for old in sorted(directory.glob(f"*{_SUFFIX}"))[:-SNAPSHOTS_KEPT]:
        old.unlink(missing_ok=True)


def load_snapshots(directory: Path, end_offset: int) -> Iterator[tuple[int, bytes]]:
    """Offset and body of each whole snapshot, the newest first."""
    for path in sorted(directory.glob(f"*{_SUFFIX}"), reverse=True):
        offset = int(path.stem)
        if offset > end_offset:
            path.unlink()
            continue
        data = path.read_bytes()
        body = data[_HEADER.size :]
        if len(data) >= _HEADER.size and _HEADER.unpack_from(data) == (_MAGIC, crc32c(body)):
            yield offset, body
