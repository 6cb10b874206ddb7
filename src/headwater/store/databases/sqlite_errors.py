"""What passes by itself when SQLite cannot write: another process holds the file, or the disk is full."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.errors import UnavailableError

_PASSING = {
    sqlite3.SQLITE_BUSY: ("another process has been writing to it for too long", "`fuser` names the process"),
    sqlite3.SQLITE_FULL: ("the disk is full", "make room"),
}


@contextmanager
def waits_for_room(path: Path) -> Iterator[None]:
    """Have what passes by itself raised as an UnavailableError, for which queries are tried again without end."""
    try:
        yield
    except sqlite3.OperationalError as error:
        found = _PASSING.get(error.sqlite_errorcode & 0xFF)
        if found is None:
            raise
        reason, hint = found
        raise UnavailableError(f"cannot write to {str(path)!r}: {reason} ({error})", hint=hint) from error
