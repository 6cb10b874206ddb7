"""Failures of queries: the reason in one line, and whether to retry.

A query continues from its checkpoint, and its sink skips batches that it has, so a retry is always safe. Most
failures of a long-running query are transient: a worker was killed, a disk was full for a moment, the log was
unavailable.
"""

import re
import traceback
from dataclasses import dataclass
from itertools import pairwise

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from headwater import errors

TRIES_MAX = 4
"""Failures in a row, without a finished batch in between, after which a query is not retried."""

PAUSE_S, PAUSE_MAX_S = 1.0, 30.0

_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|database or disk is full")
"""A full disk, as reported by the system, Java, Python and SQLite; retried until space is freed."""

_TOO_BUSY = re.compile(r"Python worker failed to connect back")
"""Spark gives a worker ten seconds to start, however busy the machine is, and starts one for each query."""

_RAISED = re.compile(r"[A-Za-z_][\w.]*: .")
"""The last line of a Python traceback; the lines before it are indented."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a query failed; `error` is the class, if it is one of Headwater's errors."""

    reason: str
    error: type[errors.HeadwaterError] | None = None

    @property
    def final(self) -> bool:
        """True if it would fail in the same way each time."""
        return self.error is not None and not (self.error.retriable or self.of_a_row)

    @property
    def of_a_row(self) -> bool:
        """True if a single row may cause it. Of Headwater's errors, only a refused row does."""
        return self.error is None or self.refused

    @property
    def refused(self) -> bool:
        """True if the sink refused a row."""
        return self.error is not None and issubclass(self.error, errors.RefusedError)

    @property
    def transient(self) -> bool:
        """True if it is transient, however long it lasts."""
        return self.error is not None and self.error.retriable


class Retries:
    """Counts the failures in a row of each query, which determine the pause before a retry."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}

    def pause(self, query: str, failure: Failure, *, progressed: bool) -> float | None:
        """Return the seconds to wait before a retry; None to give up.

        `progressed` means that a batch was finished since the last start.
        """
        failed = 1 if progressed else self._failures.get(query, 0) + 1
        self._failures[query] = failed
        if failure.final or (failed >= TRIES_MAX and not failure.transient):
            return None
        return min(PAUSE_S * 2.0 ** (failed - 1), PAUSE_MAX_S)

    def forgive(self, query: str) -> None:
        """Reset the count of failures: the records that caused them were found and left out."""
        self._failures.pop(query, None)


def disk_full_line(text: str) -> str | None:
    """Return the line that reports a full disk; None if there is none."""
    return next((line.strip() for line in text.splitlines() if _DISK_FULL.search(line)), None)


def read_failure(text: str) -> Failure:
    """Read the reason of a failure from Spark's message, which wraps it in Java's and Python's tracebacks."""
    message, _, _ = text.partition("=== Streaming Query ===")
    lines = [line for line in message.splitlines() if line.strip()]
    for line in lines:
        if disk_full_line(line) or _TOO_BUSY.search(line):
            return Failure(line.strip(), errors.UnavailableError)
    raised = [line for before, line in pairwise(lines) if before.startswith("  ") and _RAISED.match(line)]
    if not raised:
        return Failure(lines[0].strip() if lines else "no reason was given")
    kind, _, reason = raised[-1].partition(": ")
    ours = getattr(errors, kind.rpartition(".")[2], None) if kind.startswith("headwater.") else None
    return Failure(raised[-1]) if ours is None else Failure(reason, ours)


def failure_of(error: BaseException) -> Failure:
    """Return the reason of an error that was raised in the driver, or by Spark."""
    if isinstance(error, errors.HeadwaterError):
        return Failure(str(error), type(error))
    if isinstance(error, PySparkException | Py4JError):
        return read_failure(str(error))
    text = "".join(traceback.format_exception_only(error)).strip()
    line = disk_full_line(text)
    return Failure(text) if line is None else Failure(line, errors.UnavailableError)


def first_line(error: PySparkException) -> str:
    """Return Spark's message without the plan that follows it."""
    message = (error.getMessage() if hasattr(error, "getMessage") else None) or str(error)
    return message.strip().splitlines()[0]
