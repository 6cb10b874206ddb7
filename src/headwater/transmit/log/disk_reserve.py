"""Disk space that records may not use.

Deleting a topic, committing an offset and changing a retention config all write a little. If records could fill
the disk completely, users could not free space any more.
"""

import errno
import os
from pathlib import Path

RESERVED_BYTES = 8 << 20
_CHECK_EVERY_BYTES = 1 << 20


class DiskReserve:
    """Checks that records leave `reserved_bytes` free on the disk of a directory."""

    def __init__(self, directory: Path, reserved_bytes: int = RESERVED_BYTES) -> None:
        self._directory = directory
        self._reserved = reserved_bytes
        self._budget = 0
        """Bytes that may be written before the disk is checked again."""

    def take(self, size: int) -> None:
        """Raise OSError (ENOSPC) unless records of this size fit. Another process may use the space first."""
        if self._budget < size:
            found = os.statvfs(self._directory)
            free = found.f_bavail * found.f_frsize - self._reserved
            if found.f_blocks and free < size:  # file systems without blocks do not report free space
                reserved = f"{self._reserved >> 20} MB are reserved for data other than records"
                raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {reserved}", str(self._directory))
            self._budget = max(size, min(free, _CHECK_EVERY_BYTES))
        self._budget -= size
