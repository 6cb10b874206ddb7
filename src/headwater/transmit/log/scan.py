"""Scan a segment file from its start: find the first invalid batch, and whether a valid batch follows.

A crash leaves a torn tail, which no valid batch follows. If a valid batch follows, the file is damaged:
acknowledged records may be broken or hidden, so nothing is truncated.
"""

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import CorruptError
from headwater.transmit.records.batch_header import HEADER_BYTES, MAGIC, BatchHeader, check_batch, read_header

_SCAN_BYTES = 1 << 20
_MAGIC_AT = 16
_OFFSETS_AHEAD_MAX = 1 << 31
"""A batch further ahead than any torn tail can be is a chance match of bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A position in a file where an invalid record batch starts; `next_offset` is the first affected offset."""

    path: Path
    position: int
    next_offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path} is damaged at byte {self.position} (offset {self.next_offset}): {self.reason}"


def scan(
    fd: int, *, at: int, end: int, next_offset: int, note: Callable[[BatchHeader], None], gaps: bool = True
) -> tuple[int, str | None]:
    """Call `note` for every batch of [at, end), up to the first that is truncated, damaged or out of order.

    Return the position reached, and the reason if it is not the end. Without `gaps`, each batch must start where
    the previous one ends: no checksum covers the base offset, but only compaction removes offsets, and not from
    the open segment.
    """
    chunk, place = b"", 0
    while at < end:
        if end - at < HEADER_BYTES:
            return at, f"{end - at} bytes are left, but a header has {HEADER_BYTES}"
        if len(chunk) - place < HEADER_BYTES:
            chunk, place = os.pread(fd, _SCAN_BYTES, at), 0
        need = read_header(chunk, place).size
        if not HEADER_BYTES <= need <= end - at:
            return at, f"a batch has length {need}, but {end - at} bytes are left"
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
    """Return the position of a valid batch in (at, end) whose offsets may follow `next_offset`, or None."""
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
