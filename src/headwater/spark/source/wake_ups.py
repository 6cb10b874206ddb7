"""Wake-ups: the times at which a query needs a batch although no record arrives.

A trigger in processing time fires at a time, and a partition becomes idle at a time. Spark's processing-time mode
would run one empty batch after the other to find out. Instead, Spark runs no batches without data, and the source
starts a batch when one is due:

    each bucket's step reports its next wake-up with its facts (`kernels.step_reports`)
    the sink collects them after each batch and writes the earliest one to a file (`WakeUps`)
    the source reads the file when Spark asks for the latest offsets (`Alarm`); when the time has come, it returns
    offsets with a new time of waking, and Spark starts a batch because the offsets differ

The time of waking is part of the offsets in the checkpoint, so a batch that is run again sees the same one. The
file needs no such care: the first batch after a start is due in any case, since wake-ups may have passed
meanwhile, and it collects the wake-ups of all buckets.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from headwater.clock import Clock
from headwater.files import replacing

FILE = "wake_ups.json"
"""Name of the file in the query's checkpoint folder."""


class WakeUps:
    """Collects the next wake-up of each bucket, in milliseconds since 1970, for the source."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._due: dict[str, int | None] = {}

    def collect(self, batch: int, reported: Mapping[str, int | None]) -> None:
        """Take the wake-ups of the buckets that ran in a batch, and write the earliest of all."""
        # A bucket without input in this batch, of another topic for example, keeps its wake-up.
        self._due.update(reported)
        due = min((at for at in self._due.values() if at is not None), default=None)
        with replacing(self._path) as part:
            part.write_text(json.dumps({"batch": batch, "dueMs": due}))


class Alarm:
    """Decides for a source whether a batch is due; `path` is the file that `WakeUps` writes."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._started = False
        self._answered: str | None = None

    def woken(self, before: int | None, *, once: bool = False) -> int | None:
        """Return the time of waking for the next offsets: `before` if no batch is due, else a later one.

        With `once`, only the first call wakes the query.
        """
        if self._started and (once or not self._is_due()):
            return before
        self._started = True
        return max(self._clock.now_ms(), 0 if before is None else before + 1)

    def _is_due(self) -> bool:
        """Return whether the wake-up in the file has come; True once for each batch that wrote the file."""
        try:
            text = self._path.read_text()
            due = json.loads(text)["dueMs"]
        except (OSError, ValueError, KeyError):
            return False  # The first batch has not written it yet.
        if due is None or text == self._answered or due > self._clock.now_ms():
            return False
        self._answered = text
        return True
