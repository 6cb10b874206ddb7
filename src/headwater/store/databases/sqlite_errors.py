"""Errors of SQLite: transient ones, such as a full disk, and those that a statement's values have caused."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.errors import UnavailableError

_TRANSIENT = {
    sqlite3.SQLITE_BUSY: ("another process has been writing to it for too long", "find the process with `fuser`"),
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space"),
}

_OF_VALUES = {
    sqlite3.SQLITE_ERROR,  # The statement, such as a table that does not exist.
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_RANGE,
}


def is_failure(error: Exception) -> bool:
    """Return whether an error is a failure of the database, and not of a statement or its values."""
    code = getattr(error, "sqlite_errorcode", None)  # None if Python's module found it, such as an unknown type.
    return isinstance(error, sqlite3.Error) and code is not None and code & 0xFF not in _OF_VALUES


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
