"""A lock that allows only one process to use a folder."""

import errno
import fcntl
import os
from pathlib import Path

from headwater.errors import ConflictError, InvalidError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # reported where the program can wait for space


class FolderLock:
    """Held until `release`; the operating system releases it when the process dies."""

    def __init__(self, folder: Path, name: str, *, holder: str) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise
            raise InvalidError(
                f"cannot use data directory {str(folder)!r}: {error.strerror}",
                hint="choose a directory that you can write to with --data",
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = os.read(self._fd, 32).decode(errors="replace").strip()
            os.close(self._fd)
            raise ConflictError(
                f"cannot open data directory {str(folder)!r}: another {holder} is running there"
                + (f" (process {process})" if process else ""),
                hint=f"use that {holder}, stop it, or choose another directory with --data",
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        os.close(self._fd)
