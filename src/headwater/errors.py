"""A handful of errors, named by what the reader should do about them.

A message says what was attempted, on what, what was found, and the next step; lower case, values in `repr`.
A command prints the message (and the hint) and ends with `exit_code`; it shows no traceback for these.
"""

from collections.abc import Sequence


class HeadwaterError(Exception):
    """Anything we raise on purpose; `hint` is the next step where the message has no room for it."""

    retriable = False
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class InvalidError(HeadwaterError):
    """The call is wrong: fix the arguments, the file or the settings."""

    exit_code = 2


class RefusedError(InvalidError):
    """A place for results does not take a row: mend the row, or the place, or leave it out.

    `rows` are the places of such rows in their batch, where it is known which they are.
    """

    def __init__(self, message: str, *, hint: str | None = None, rows: Sequence[int] = ()) -> None:
        super().__init__(message, hint=hint)
        self.rows = tuple(rows)


class ConflictError(HeadwaterError):
    """Somebody else holds it or has changed it: read again, then retry or stop the other one."""


class UnavailableError(HeadwaterError):
    """It is not there now: retry later."""

    retriable = True


class CorruptError(HeadwaterError):
    """Stored data is damaged; the message names the file and the place."""


class ClosedError(HeadwaterError):
    """The thing was closed before the call."""


class InternalError(HeadwaterError):
    """Our own mistake: please report it."""
