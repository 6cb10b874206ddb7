"""Failed queries: what Spark says of one, in a line, and whether starting it again makes sense.

A query goes on from its checkpoint, and its sink skips what it has, so a second try can do no harm. Most failures
of a long-running query pass by themselves: a worker was killed, a disk was full for a moment, the log was away.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

from headwater import errors

TRIES_MAX = 4
"""In a row, without a batch in between. What fails as often is no accident."""

PAUSE_S, PAUSE_MAX_S = 1.0, 30.0

_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|database or disk is full")
"""Passes when somebody makes room, however long that takes; said by the system, Java, Python and SQLite."""

_TOO_BUSY = re.compile(r"Python worker failed to connect back")
"""Spark gives a worker ten seconds to start, whatever else the machine does, and asks for one of each query."""

_RAISED = re.compile(r"[A-Za-z_][\w.]*: .")
"""The last line of a Python traceback; the ones before it are indented."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a query ended; `error` is the class of ours that says so, if it was one of ours."""

    reason: str
    error: type[errors.HeadwaterError] | None = None

    @property
    def final(self) -> bool:
        """Whether it would fail in the same way for ever."""
        return self.error is not None and not (self.error.retriable or self.of_a_row)

    @property
    def of_a_row(self) -> bool:
        """Whether it may be a single row that makes it fail; of ours, each says what it is."""
        return self.error is None or self.refused

    @property
    def refused(self) -> bool:
        """Whether it is the place for the results that does not take a row."""
        return self.error is not None and issubclass(self.error, errors.RefusedError)

    @property
    def passing(self) -> bool:
        """Whether it is known to pass, however long that takes."""
        return self.error is not None and self.error.retriable


class Retries:
    """How often each query has failed in a row, and so when it may try again."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}

    def pause(self, query: str, failure: Failure, *, progressed: bool) -> float | None:
        """Seconds to wait before the query is started again; None where it is given up.

        `progressed` says that a batch was finished since the last start.
        """
        failed = 1 if progressed else self._failures.get(query, 0) + 1
        self._failures[query] = failed
        if failure.final or (failed >= TRIES_MAX and not failure.passing):
            return None
        return min(PAUSE_S * 2.0 ** (failed - 1), PAUSE_MAX_S)

    def forgive(self, query: str) -> None:
        """Begin to count anew: what made it fail was found and is out of the way."""
        self._failures.pop(query, None)


def lack_of_room(text: str) -> str | None:
    """The line that says that a disk is full, if one does."""
    return next((line.strip() for line in text.splitlines() if _NO_ROOM.search(line)), None)


def read_failure(text: str) -> Failure:
    """The line that says what went wrong, out of the tracebacks of two languages that Spark wraps around it."""
    words, _, _ = text.partition("=== Streaming Query ===")
    lines = [line for line in words.splitlines() if line.strip()]
    for line in lines:
        if lack_of_room(line) or _TOO_BUSY.search(line):
            return Failure(line.strip(), errors.UnavailableError)
    raised = [line for before, line in pairwise(lines) if before.startswith("  ") and _RAISED.match(line)]
    if not raised:
        return Failure(lines[0].strip() if lines else "no reason was given")
    kind, _, reason = raised[-1].partition(": ")
    ours = getattr(errors, kind.rpartition(".")[2], None) if kind.startswith("headwater.") else None
    return Failure(raised[-1]) if ours is None else Failure(reason, ours)
