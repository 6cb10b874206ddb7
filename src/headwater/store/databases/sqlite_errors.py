"""Transient errors of SQLite: another process holds the file, or the disk is full."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.errors import UnavailableError

_TRANSIENT = {
    sqlite3.SQLITE_BUSY: ("another process has been writing to it for too long", "find the process with `fuser`"),
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space"),
}


@contextmanager
def transient_errors(path: Path) -> Iterator[None]:
    """Raise transient SQLite errors as UnavailableError, which callers retry indefinitely."""
    try:
        yield
    except sqlite3.OperationalError as error:
        found = _TRANSIENT.get(error.sqlite_errorcode & 0xFF)
        if found is None:
            raise
        reason, hint = found
        raise UnavailableError(f"cannot write to {str(path)!r}: {reason} ({error})", hint=hint) from error
