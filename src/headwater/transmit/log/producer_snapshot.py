"""Snapshots of the producer states of a partition up to an offset, stored next to its segments.

    00000000000000004711.producers    magic 4 | CRC-32C of the body 4 | body

A snapshot is derived data, replaced atomically. If it is missing or damaged, the batches since the previous
snapshot, or all batches, are read instead. A snapshot ahead of its log (which was truncated by recovery) is about
records that do not exist, and is removed.
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
    """Write the snapshot of the states before an offset, and remove older ones except for the last."""
    # Durable, because an older snapshot would be wrong once the batches after it are deleted.
    replace_durably(directory / f"{offset:020d}{_SUFFIX}", _HEADER.pack(_MAGIC, crc32c(body)) + body)
    for old in sorted(directory.glob(f"*{_SUFFIX}"))[:-SNAPSHOTS_KEPT]:
        old.unlink(missing_ok=True)


def load_snapshots(directory: Path, end_offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield offset and body of each valid snapshot, newest first."""
    for path in sorted(directory.glob(f"*{_SUFFIX}"), reverse=True):
        offset = int(path.stem)
        if offset > end_offset:
            path.unlink()
            continue
        data = path.read_bytes()
        body = data[_HEADER.size :]
        if len(data) >= _HEADER.size and _HEADER.unpack_from(data) == (_MAGIC, crc32c(body)):
            yield offset, body
