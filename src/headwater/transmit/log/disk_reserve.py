"""Room on the disk that records leave alone.

To delete a topic, to commit an offset, to change how long records are kept: all of it writes a little. Where
records could take the last byte, nobody could make room any more.
"""

import errno
import os
from pathlib import Path

RESERVED_BYTES = 8 << 20
_LOOK_EVERY_BYTES = 1 << 20


class DiskReserve:
    """How much the disk of a directory may still be given of records, looked at now and then."""

    def __init__(self, directory: Path, reserved_bytes: int = RESERVED_BYTES) -> None:
        self._directory = directory
        self._reserved = reserved_bytes
        self._seen = 0

    def take(self, size: int) -> None:
        """Have room for so many bytes, or an OSError as the system's own; others may be faster all the same."""
        if self._seen < size:
            found = os.statvfs(self._directory)
            free = found.f_bavail * found.f_frsize - self._reserved
            if found.f_blocks and free < size:  # file systems without blocks do not say
                kept = f"{self._reserved >> 20} MB are kept for other things than records"
                raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {kept}", str(self._directory))
            self._seen = max(size, min(free, _LOOK_EVERY_BYTES))
        self._seen -= size
