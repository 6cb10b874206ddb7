"""The registry of an app's queries: what each was launched with, its StreamingQuery, and the facts it reports.

`Watch`, `Rebuilds` and `Pipeline` all work on this registry and know each other only through it.
"""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from headwater.app import Query
from headwater.clock import Clock
from headwater.errors import HeadwaterError, InvalidError, UnavailableError
from headwater.record import LATEST
from headwater.spark.lanes.member import LaneQuery
from headwater.spark.pipeline.failures import Failure, first_line
from headwater.spark.session.jvm import died, java_exit
from headwater.spark.source.offsets import WOKEN, Offsets, from_json
from headwater.store.pipelines.facts import FactKind, FactStore
from headwater.store.pipelines.generations import MARK, Generation
from headwater.transmit.client.client import Client

if TYPE_CHECKING:
    from headwater.spark.pipeline.batch_sinks import BatchSink
    from headwater.spark.source.exclusions import Exclusions

StartQuery = Callable[[], StreamingQuery | LaneQuery]


class RunningIsolation(Protocol):
    """A search for the records on which a query fails, in a thread of its own; see `poison.Isolation`."""

    failure: Failure

    @property
    def done(self) -> bool: ...

    def result(self) -> int: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Launch:
    """The arguments with which a view or a sink query was launched, to launch it again."""

    query: Query
    generation: Generation
    sink: "BatchSink"
    exclusions: "Exclusions"


@dataclass(slots=True)
class RunningQuery:
    """A query across its restarts, running or not. A dead-letter query has no `launch`."""

    start: StartQuery
    streaming: StreamingQuery | LaneQuery
    launch: Launch | None = None
    restart_at: float | None = None
    """Monotonic time of the next attempt, after a failure."""
    isolation: RunningIsolation | None = None
    """The search for the records on which it fails, while that runs."""
    suspended: HeadwaterError | None = None
    """The reason why it is not tried again, after repeated failures."""
    reported_progress: str | None = None
    looked_at: float = 0.0
    """Monotonic time of the last look at how far it is behind, while a batch takes long."""
    rows_read: int = 0
    """Rows that it has read, across its restarts, up to the last call of `count_rows`."""
    counted_until: str = ""
    """Start of the last trigger that is counted in `rows_read`."""

    def count_rows(self) -> int:
        """Add the rows of new batches, and return `rows_read`. Spark keeps the last 100 batches: call it often."""
        for progress in self.streaming.recentProgress:
            if progress.timestamp > self.counted_until:
                self.counted_until = progress.timestamp
                self.rows_read += progress.numInputRows
        return self.rows_read

    @property
    def is_settled(self) -> bool:
        """True if it does not run and will not be started again."""
        return self.restart_at is None and self.isolation is None and not self.streaming.isActive


class RunningQueries:
    """The queries of a pipeline by name, until they are forgotten."""

    def __init__(self, facts: FactStore, clock: Clock) -> None:
        self._facts = facts
        self._clock = clock
        self._running: dict[str, RunningQuery] = {}

    def launch(self, name: str, start: StartQuery, launch: Launch | None = None) -> None:
        """Start a query, in place of the one with this name if there is one."""
        self.report(name, {"state": "starting"})
        before = self._running.get(name)
        rows_read = 0 if before is None else before.count_rows()
        try:
            self._running[name] = RunningQuery(start, start(), launch, rows_read=rows_read)
        except PySparkException as error:
            raise InvalidError(f"cannot start query {name!r}: {first_line(error)}") from error

    def restart(self, name: str) -> None:
        """Start a failed query again as it was launched."""
        running = self._running[name]
        running.count_rows()
        running.restart_at, running.counted_until = None, ""
        running.streaming = running.start()

    def get(self, name: str) -> RunningQuery | None:
        return self._running.get(name)

    def __getitem__(self, name: str) -> RunningQuery:
        return self._running[name]

    def __iter__(self) -> Iterator[tuple[str, RunningQuery]]:
        """Iterate over a copy: the caller, or another thread, may launch and forget queries meanwhile."""
        return iter(list(self._running.items()))

    @property
    def suspended(self) -> dict[str, HeadwaterError]:
        """The queries that are not tried again, with the reasons."""
        return {name: running.suspended for name, running in self if running.suspended}

    @property
    def are_settled(self) -> bool:
        """True if no query runs or will be started again."""
        return all(running.is_settled for running in self._running.values())

    def rows_read(self) -> dict[str, int]:
        """Return how many records each query has read since the start."""
        return {name: running.count_rows() for name, running in self._running.items()}

    def offsets_read(self) -> dict[str, Offsets]:
        """Return the end offsets of each query's last finished batch."""
        last = {name: running.streaming.lastProgress for name, running in self}
        return {name: offsets_read(progress) for name, progress in last.items() if progress is not None}

    def forget(self, name: str) -> None:
        """Stop a query and drop it from the registry, if it is there; a rebuild's facts are deleted."""
        running = self._running.pop(name, None)
        if running is not None:
            if running.isolation is not None:
                running.isolation.stop()
            running.streaming.stop()
        if MARK in name:
            self._facts.forget(name)

    def stop(self, stop_lanes: Callable[[], None] = lambda: None) -> None:
        """Stop all queries, between batches as far as Spark can; `stop_lanes` stops those of lanes together."""
        code = java_exit()
        active = {name for name, running in self if code is None and running.streaming.isActive}
        if code is None:
            stop_lanes()
        for name, running in self._running.items():
            if running.isolation is not None:
                running.isolation.stop()
            if code is not None:
                self.report(name, {"state": "waiting", "error": str(died(code))})
                continue
            running.streaming.stop()
            if name in active:
                self.report(name, {"state": "stopped"})

    def report(self, query: str, body: dict[str, Any]) -> None:
        """Record a fact about a query."""
        self._facts.add(query, body, at_ms=self._clock.now_ms())

    def report_removed(self, names: Collection[str]) -> None:
        """Report the queries of earlier starts that are not among these: the app no longer has them."""
        for query in self._facts.queries():
            last = self._facts.latest(query)
            if query not in names and MARK not in query and last and last[0].body["state"] != "removed":
                self.report(query, {"state": "removed", "error": None})

    def report_operators(self, query: str, body: dict[str, Any]) -> None:
        """Record a fact about the stateful operators of a query, with the number of rows they ignored so far."""
        before = self._last_operators(query)
        if before.get("run") != body["run"]:
            before = {}
        ignored = int(before.get("ignoredRows", 0))
        if body["batchId"] > before.get("batchId", -1):  # Otherwise it was run again after a crash.
            ignored += sum(operator.get("ignoredRows", 0) for operator in body["operators"].values())
        body = {**body, "ignoredRows": ignored}
        self._facts.add(query, body, at_ms=self._clock.now_ms(), kind=FactKind.OPERATORS)

    def ignored_rows(self, query: str) -> int:
        """Return how many rows the operators of a query have ignored: changes older than the known ones."""
        return int(self._last_operators(query).get("ignoredRows", 0))

    def _last_operators(self, query: str) -> dict[str, Any]:
        found = self._facts.latest(query, kind=FactKind.OPERATORS)
        return found[-1].body if found else {}


def offsets_read(progress: Any) -> Offsets:
    """Return the end offsets of all sources of a batch."""
    read: Offsets = {}
    for source in progress.sources:
        read.update(from_json(parse_offsets(source.endOffset)))
    return read


def parse_offsets(text: Any) -> dict[str, dict[str, int]]:
    """Read the offsets of a source from Spark's progress, without the time of waking; {} for another source."""
    offsets = json.loads(text) if isinstance(text, str) else text
    if not isinstance(offsets, dict):
        return {}
    return {name: each for name, each in offsets.items() if isinstance(each, dict) and name != WOKEN}


def latest_offsets(servers: str, partitions: Offsets) -> Offsets:
    with Client(servers) as client:
        return client.offsets(partitions, LATEST)


def records_behind(servers: str, read: Offsets) -> int | None:
    """Return how many records the log has after these offsets; None if the log is unavailable."""
    try:
        latest = latest_offsets(servers, read)
    except UnavailableError:
        return None
    return sum(max(0, latest[tp] - offset) for tp, offset in read.items())
