"""Reading a segment file from front to back: what holds, where it stops holding, and whether more stands behind.

A torn tail is what a crash leaves: nothing whole comes after it. Damage is something else: where a whole batch
stands behind the broken place, records that were acknowledged may be broken or hidden, and nothing is cut.
"""

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import CorruptError
from headwater.transmit.records.batch import HEADER_BYTES, MAGIC, BatchHeader, check_batch, read_header

_SCAN_BYTES = 1 << 20
_MAGIC_AT = 16
_OFFSETS_AHEAD_MAX = 1 << 31
"""A batch that claims to be further ahead than any torn tail can reach is taken for chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A place in a file where record batches stop making sense; `next_offset` is the first offset in doubt."""

    path: Path
    position: int
    next_offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path} is damaged at byte {self.position} (offset {self.next_offset}): {self.reason}"


def scan(
    fd: int, *, at: int, end: int, next_offset: int, note: Callable[[BatchHeader], None], gaps: bool = True
) -> tuple[int, str | None]:
    """Hand every batch of [at, end) to `note`, up to the first that is cut, damaged or out of order.

    Return the place reached, and why it is not the end. Without `gaps` each batch must follow the one before: no
    checksum covers the base offset, but only compaction takes offsets away, and not from the open segment.
    """
    chunk, place = b"", 0
    while at < end:
        if end - at < HEADER_BYTES:
            return at, f"{end - at} bytes are left, a header takes {HEADER_BYTES}"
        if len(chunk) - place < HEADER_BYTES:
            chunk, place = os.pread(fd, _SCAN_BYTES, at), 0
        need = read_header(chunk, place).size
        if not HEADER_BYTES <= need <= end - at:
            return at, f"a batch says it has {need} bytes, {end - at} are left"
        if len(chunk) - place < need:
            chunk, place = os.pread(fd, max(need, _SCAN_BYTES), at), 0
        try:
            header = check_batch(chunk, place)
        except CorruptError as error:
            return at, str(error)
        if header.base_offset < next_offset or (header.base_offset > next_offset and not gaps):
            return at, f"a batch starts at offset {header.base_offset}, expected {next_offset}"
        note(header)
        next_offset = header.next_offset
        at += header.size
        place += header.size
    return at, None


def find_batch(fd: int, *, at: int, end: int, next_offset: int) -> int | None:
    """The place of a whole batch in (at, end) whose offsets may follow `next_offset`; None if none is there."""
    if end - at <= HEADER_BYTES:
        return None
    magic = bytes([MAGIC])
    with mmap.mmap(fd, end, prot=mmap.PROT_READ) as data, memoryview(data) as view:
        place = at + 1
        while (found := data.find(magic, place + _MAGIC_AT, end)) >= 0:
            place = found - _MAGIC_AT
            if end - place < HEADER_BYTES:
                return None
            header = read_header(view, place)
            ahead = header.base_offset - next_offset
            if HEADER_BYTES <= header.size <= end - place and 0 <= ahead < _OFFSETS_AHEAD_MAX:
                try:
                    check_batch(view[:end], place)
                    return place
                except CorruptError:
                    pass
            place += 1
    return None
