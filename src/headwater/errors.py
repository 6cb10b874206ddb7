"""Headwater's errors, one class for each action that a reader can take.

A message states what was attempted, on what, what was found, and the next step; lower case, values in `repr`.
Commands print the message and the hint, exit with `exit_code`, and show no traceback for these errors.
"""

from collections.abc import Sequence


class HeadwaterError(Exception):
    """Base of all errors that Headwater raises; `hint` is the next step if the message does not contain it."""

    retriable = False
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class InvalidError(HeadwaterError):
    """The call is wrong: fix the arguments, the file or the settings."""

    exit_code = 2


class RefusedError(InvalidError):
    """A sink's destination rejects rows: fix the rows or the destination, or exclude the rows.

    `rows` are the indexes of the rejected rows in their batch, if known.
    """

    def __init__(self, message: str, *, hint: str | None = None, rows: Sequence[int] = ()) -> None:
        super().__init__(message, hint=hint)
        self.rows = tuple(rows)


class ConflictError(HeadwaterError):
    """Another process uses or has changed it: read again and retry, or stop the other process."""


class UnavailableError(HeadwaterError):
    """Not available at the moment: retry later."""

    retriable = True


class CorruptError(HeadwaterError):
    """Stored data is damaged; the message names the file and the position."""


class ClosedError(HeadwaterError):
    """The object was closed before the call."""


class InternalError(HeadwaterError):
    """A bug in Headwater: please report it."""
