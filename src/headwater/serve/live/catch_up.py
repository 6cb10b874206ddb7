"""Estimate how long a pipeline needs to catch up, from its lag after each of its last batches. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

BATCHES_USED = 10
"""Number of batches used: enough to average over single batches, few enough to follow a change of the rate."""

_GROWING = 3
_SOON_S = 3.0
"""One or two batches: the lag of a pipeline that reads in batches always varies by that much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The number of unread records after a batch, and the records per second that the batch processed."""

    at_ms: int
    behind_records: int
    rows_per_second: float | None = None


def catch_up_seconds(backlogs: Sequence[Backlog], *, passed_s: float = 0.0) -> float | None:
    """Return the seconds until no record is left to read, or None if the backlog does not shrink.

    The estimate uses the net rate of the last batches, which includes the records that arrive meanwhile: the speed
    at which the backlog has shrunk since its peak. If it has not shrunk yet, or is small, the estimate is the time
    to process the records that are there; if it grows from batch to batch, there is no estimate. `passed_s` is the
    time that the pipeline has run since its last batch; a batch that takes longer than estimated is about to end.
    """
    if not backlogs:
        return None
    estimate_s = _estimate(backlogs[-BATCHES_USED:])
    if estimate_s is None:
        return None
    return max(estimate_s - passed_s, min(estimate_s, _SOON_S))


def _estimate(backlogs: Sequence[Backlog]) -> float | None:
    """Return the estimate as of the end of the last batch."""
    last = backlogs[-1]
    if last.behind_records == 0:
        return 0.0
    rate = next((b.rows_per_second for b in reversed(backlogs) if b.rows_per_second), None)
    work_s = None if rate is None else last.behind_records / rate
    if work_s is not None and work_s <= _SOON_S:
        return work_s
    peak = max(backlogs, key=lambda backlog: (backlog.behind_records, backlog.at_ms))
    worked_off, elapsed_ms = peak.behind_records - last.behind_records, last.at_ms - peak.at_ms
    if worked_off > 0 and elapsed_ms > 0:
        return last.behind_records * elapsed_ms / worked_off / 1000
    return None if _grows(backlogs) else work_s


def _grows(backlogs: Sequence[Backlog]) -> bool:
    counts = [backlog.behind_records for backlog in backlogs[-_GROWING:]]
    return len(counts) == _GROWING and counts == sorted(set(counts))
