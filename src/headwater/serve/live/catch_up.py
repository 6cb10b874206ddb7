"""How long a pipeline takes to be up to date, from how far it was behind after each of its last batches. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

BATCHES_LOOKED_AT = 10
"""Enough to even out single batches, few enough to notice soon when the rate changes."""

_GROWING = 3
_SOON_S = 3.0
"""A batch or two: who reads in batches is always that far behind, now a little more and now a little less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogSample:
    """How many records a pipeline had not read after a batch, and how many a second that batch worked off."""

    at_ms: int
    behind_records: int
    rows_per_second: float | None = None


def catch_up_seconds(standings: Sequence[BacklogSample], *, passed_s: float = 0.0) -> float | None:
    """Seconds until nothing is left to read, at the net rate of the last batches; None if it is not getting there.

    What arrives meanwhile is counted: the net rate is how fast the backlog shrinks since it was largest. Where it
    has not shrunk yet, or is small, it is told how long the work takes that is there; while it grows and grows,
    nothing. `passed_s` is how long the pipeline has run since its last batch; what takes longer than was told is
    about to end.
    """
    if not standings:
        return None
    looked_at = standings[-BATCHES_LOOKED_AT:]
    told_s = _told_after(looked_at)
    if told_s is None:
        return None
    return max(told_s - passed_s, min(told_s, _SOON_S))


def _told_after(looked_at: Sequence[BacklogSample]) -> float | None:
    """What was to be told when the last batch ended."""
    last = looked_at[-1]
    if last.behind_records == 0:
        return 0.0
    rate = next((s.rows_per_second for s in reversed(looked_at) if s.rows_per_second), None)
    work_s = None if rate is None else last.behind_records / rate
    if work_s is not None and work_s <= _SOON_S:
        return work_s
    peak = max(looked_at, key=lambda standing: (standing.behind_records, standing.at_ms))
    worked_off, elapsed_ms = peak.behind_records - last.behind_records, last.at_ms - peak.at_ms
    if worked_off > 0 and elapsed_ms > 0:
        return last.behind_records * elapsed_ms / worked_off / 1000
    return None if _grows(looked_at) else work_s


def _grows(standings: Sequence[BacklogSample]) -> bool:
    counts = [standing.behind_records for standing in standings[-_GROWING:]]
    return len(counts) == _GROWING and counts == sorted(set(counts))
