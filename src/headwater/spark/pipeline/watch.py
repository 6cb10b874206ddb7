"""Watches the running queries: reports what each batch did, and decides what to do about failed queries.

A failed query is retried after a pause, which `Watch` does itself. Where more is needed it returns a decision
(`Isolate`, `Relaunch`, `Suspend`), which `Pipeline` carries out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException

from headwater.clock import Clock
from headwater.errors import HeadwaterError, UnavailableError
from headwater.spark.lanes.member import LaneQuery
from headwater.spark.pipeline.failures import PAUSE_MAX_S, Failure, Retries, failure_of, first_line
from headwater.spark.pipeline.poison_search import EveryRecordFailsError
from headwater.spark.pipeline.running_queries import (
    RunningIsolation,
    RunningQueries,
    RunningQuery,
    offsets_read,
    parse_offsets,
    records_behind,
)

LONG_BATCH_S = 5.0
"""Time of a batch after which the lag is reported again and again until it ends."""

FIX = "fix the cause and start the app again: the query continues from its checkpoint"


@dataclass(frozen=True, slots=True)
class Isolate:
    """Search for the records on which a query fails, or whose rows its sink refuses."""

    name: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Launch a query again without the records that were found."""

    name: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Stop retrying a query; the others go on."""

    name: str
    reason: str
    hint: str = FIX


Decision = Isolate | Relaunch | Suspend

Announce = Callable[[str], None]
"""Shows the user one line about a query that has failed."""

CountDropped = Callable[[str], dict[str, int]]
"""Returns how many rows and records of a query are not in its result, by the name of the number in facts."""


class Watch:
    """Looks at all queries with each call of `report_progress` and `check_failures`."""

    def __init__(
        self,
        queries: RunningQueries,
        servers: str,
        clock: Clock,
        announce: Announce = lambda _: None,
        count_dropped: CountDropped = lambda _: {},
    ) -> None:
        self._queries = queries
        self._servers = servers
        self._clock = clock
        self._announce = announce
        self._count_dropped = count_dropped
        self._retries = Retries()

    def report_progress(self) -> None:
        """Report the last batch of each query that has finished one since the last call."""
        for name, running in self._queries:
            while isinstance(running.streaming, LaneQuery) and running.streaming.news:
                self._announce(f"query {name} {running.streaming.news.popleft()}")
            running.count_rows()
            progress = running.streaming.lastProgress
            if progress is not None and progress.json != running.reported_progress:
                running.reported_progress = progress.json
                self._queries.report(name, {**self._progress_fact(running, progress), **self._count_dropped(name)})
            elif isinstance(running.streaming, LaneQuery) and progress is not None:
                self._report_lag(name, running, running.streaming, progress)

    def check_failures(self) -> list[Decision]:
        """Restart the failed queries whose pause is over; return what else has to be done about failed ones."""
        decisions: list[Decision | None] = []
        for name, running in self._queries:
            if running.suspended is not None:
                continue
            if running.isolation is not None:
                decisions.append(self._check_isolation(name, running, running.isolation))
            elif running.restart_at is not None:
                if self._clock.monotonic() >= running.restart_at:
                    decisions.append(self._restart(name))
            elif (error := running.streaming.exception()) is not None:
                decisions.append(self._check_failure(name, running, failure_of(error)))
        return [decision for decision in decisions if decision is not None]

    def forgive(self, name: str) -> None:
        """Reset the failures of a query, which is started again."""
        self._retries.forgive(name)

    def suspend(self, name: str, error: HeadwaterError) -> Suspend:
        """Report and announce that a query is suspended, and return the decision."""
        return self._suspend(name, str(error), error.hint)

    def _restart(self, name: str) -> Decision | None:
        try:
            self._queries.restart(name)
        except PySparkException as error:
            return self._suspend(name, first_line(error))
        except (HeadwaterError, OSError) as error:
            failure = failure_of(error)
            if not failure.transient:
                return self._suspend(name, failure.reason, getattr(error, "hint", None))
            self._queries[name].restart_at = self._clock.monotonic() + PAUSE_MAX_S
        return None

    def _check_failure(self, name: str, running: RunningQuery, failure: Failure) -> Decision | None:
        pause = self._retries.pause(name, failure, progressed=bool(running.streaming.recentProgress))
        if pause is not None:
            self._queries.report(name, {"state": "waiting", "error": failure.reason})
            running.restart_at = self._clock.monotonic() + pause
            self._announce(f"query {name} failed, next try in {pause:.0f} s: {failure.reason}")
            return None
        # A dead-letter query runs no function of the user's, so no record can make it fail.
        if failure.of_a_row and running.launch is not None:
            self._announce(f"query {name} failed again: searching for the records that cause it: {failure.reason}")
            return Isolate(name, failure)
        return self._suspend(name, failure.reason)

    def _check_isolation(self, name: str, running: RunningQuery, isolation: RunningIsolation) -> Decision | None:
        """Relaunch a query whose poison rows were found; give it up if there are none."""
        if not isolation.done:
            return None
        running.isolation = None
        try:
            found = isolation.result()
        except UnavailableError as error:
            running.restart_at = self._clock.monotonic() + PAUSE_MAX_S
            self._announce(f"query {name}: the search is repeated in {PAUSE_MAX_S:.0f} s: {error}")
            return None
        except EveryRecordFailsError as error:
            return self.suspend(name, error)
        except HeadwaterError as error:
            reason = f"{isolation.failure.reason} (the search for poison rows failed: {error})"
            return self._suspend(name, reason)
        self._retries.forgive(name)
        self._announce(
            f"query {name} continues without {found} record{'s' if found > 1 else ''} on which it fails; see "
            "`headwater deadletter list`"
        )
        return Relaunch(name)

    def _suspend(self, name: str, reason: str, hint: str | None = None) -> Suspend:
        self._queries.report(name, {"state": "suspended", "error": reason})
        self._announce(
            f"query {name} is suspended, the others go on: {reason}; when the cause is fixed: "
            f"`headwater pipeline resume {name}`"
        )
        return Suspend(name, reason, hint or FIX)

    def _report_lag(self, name: str, running: RunningQuery, streaming: LaneQuery, progress: Any) -> None:
        """Report how far a query is behind while a batch takes long; its last report is of the batch before."""
        now, since = self._clock.monotonic(), streaming.busy_since
        if since is None or now < max(since, running.looked_at) + LONG_BATCH_S:
            return
        running.looked_at = now
        behind = records_behind(self._servers, offsets_read(progress))
        self._queries.report(name, {"state": "running", "behindRecords": behind})

    def _progress_fact(self, running: RunningQuery, progress: Any) -> dict[str, Any]:
        return {
            "state": "running" if running.streaming.isActive else "stopped",
            "batchId": progress.batchId,
            "numInputRows": progress.numInputRows,
            "inputRowsPerSecond": progress.inputRowsPerSecond,
            "processedRowsPerSecond": progress.processedRowsPerSecond,
            "durationMs": dict(progress.durationMs),
            "behindRecords": records_behind(self._servers, offsets_read(progress)),
            "sources": [
                {
                    "startOffset": parse_offsets(source.startOffset),
                    "endOffset": parse_offsets(source.endOffset),
                }
                for source in progress.sources
            ],
            "error": None,
            "leftOutRecords": 0 if running.launch is None else len(running.launch.exclusions),
        }
