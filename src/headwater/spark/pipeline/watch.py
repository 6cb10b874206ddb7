"""Watches over the queries that were started: notes what each batch did, starts again what failed."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from headwater.clock import Clock
from headwater.errors import HeadwaterError, InvalidError, UnavailableError
from headwater.spark.pipeline.failures import PAUSE_MAX_S, Failure, Retries, read_failure
from headwater.spark.pipeline.plan import first_line
from headwater.spark.pipeline.poison import Isolation
from headwater.spark.session.jvm import died, java_exit
from headwater.spark.source.offsets import Offsets, from_json
from headwater.store.facts import FactKind, FactStore
from headwater.store.generations import MARK
from headwater.transmit.client.client import LATEST, Client

Starter = Callable[[], StreamingQuery]


class QueryRecovery(Protocol):
    """What can be done about a query that fails over and over."""

    def isolate(self, name: str, failure: Failure) -> Isolation | None:
        """Begin to look for the rows on which its function fails; None where it has none of the user's."""

    def restart(self, name: str) -> None:
        """Launch it again, without the rows that were found."""

    def give_up(self, name: str, reason: str) -> bool:
        """Whether the rest can go on without it."""


@dataclass(slots=True)
class _Watched:
    """A query across its restarts; `read_before` counts the rows of those that failed and have a successor."""

    start: Starter
    query: StreamingQuery
    due: float | None = None
    isolation: Isolation | None = None
    noted: str | None = None
    read_before: int = 0

    @property
    def rows_read(self) -> int:
        return self.read_before + sum(progress.numInputRows for progress in self.query.recentProgress)


class Watch:
    """The queries of a pipeline, by name, running or not."""

    def __init__(
        self, facts: FactStore, servers: str, clock: Clock, left_out: Callable[[], Mapping[str, int]]
    ) -> None:
        """`left_out` tells how many records each query leaves out."""
        self._facts = facts
        self._servers = servers
        self._clock = clock
        self._left_out = left_out
        self._retries = Retries()
        self._watched: dict[str, _Watched] = {}

    def launch(self, name: str, start: Starter) -> None:
        """Start a query, and again whenever it fails."""
        self.tell(name, {"state": "starting"})
        before = self._watched.get(name)
        try:
            self._watched[name] = _Watched(start, start(), read_before=before.rows_read if before else 0)
        except PySparkException as error:
            raise InvalidError(f"cannot start query {name!r}: {first_line(error)}") from error

    def query(self, name: str) -> StreamingQuery | None:
        """A query that was started, running or not."""
        return self._watched[name].query if name in self._watched else None

    def forget(self, name: str) -> None:
        """Stop a query and let go of it, if it is there."""
        watched = self._watched.pop(name, None)
        if watched is not None:
            watched.query.stop()
        if MARK in name:
            self._facts.forget(name)

    def stop(self) -> None:
        """Stop all between batches, as far as Spark can."""
        code = java_exit()
        for name, watched in self._watched.items():
            if watched.isolation is not None:
                watched.isolation.stop()
            if code is not None:
                self.tell(name, {"state": "waiting", "error": str(died(code))})
                continue
            was_active = watched.query.isActive
            watched.query.stop()
            if was_active:
                self.tell(name, {"state": "stopped"})

    @property
    def settled(self) -> bool:
        """Whether nothing runs and nothing is to be started again."""
        return not any(w.due is not None or w.isolation or w.query.isActive for w in self._watched.values())

    def rows_read(self) -> dict[str, int]:
        """How many records each query has read since the start."""
        return {name: watched.rows_read for name, watched in self._watched.items()}

    def note_progress(self) -> None:
        """Record what the queries have done since the last call."""
        for name, watched in self._watched.items():
            progress = watched.query.lastProgress
            if progress is not None and progress.json != watched.noted:
                watched.noted = progress.json
                left_out = {"leftOutRecords": self._left_out().get(name.partition(MARK)[0], 0)}
                self.tell(name, self._fact(watched.query, progress) | left_out)

    def tend_failures(self, mender: QueryRecovery) -> None:
        """Start failed queries again after a pause; raise for one that cannot be mended."""
        for name, watched in list(self._watched.items()):
            if watched.isolation is not None:
                self._tend_isolation(name, watched, watched.isolation, mender)
            elif watched.due is not None:
                if self._clock.monotonic() >= watched.due:
                    watched.read_before, watched.due = watched.rows_read, None
                    watched.query = watched.start()
            elif (error := watched.query.exception()) is not None:
                self._tend_failure(name, watched, read_failure(str(error)), mender)

    def _tend_failure(self, name: str, watched: _Watched, failure: Failure, mender: QueryRecovery) -> None:
        pause = self._retries.pause(name, failure, progressed=watched.query.lastProgress is not None)
        if pause is not None:
            self.tell(name, {"state": "waiting", "error": failure.reason})
            watched.due = self._clock.monotonic() + pause
            return
        watched.isolation = mender.isolate(name, failure) if failure.of_a_row else None
        if watched.isolation is None:
            self._give_up(name, failure, failure.reason, mender)

    def _tend_isolation(self, name: str, watched: _Watched, isolation: Isolation, mender: QueryRecovery) -> None:
        """Start the query again when its poison rows are out of the way; give it up if there are none."""
        if not isolation.done:
            return
        watched.isolation = None
        try:
            isolation.result()
        except UnavailableError:
            watched.due = self._clock.monotonic() + PAUSE_MAX_S
        except HeadwaterError as error:
            reason = f"{isolation.failure.reason} (poison rows were looked for: {error})"
            self._give_up(name, isolation.failure, reason, mender)
        else:
            self._retries.forgive(name)
            mender.restart(name)

    def _give_up(self, name: str, failure: Failure, reason: str, mender: QueryRecovery) -> None:
        self.tell(name, {"state": "failed", "error": failure.reason})
        if not mender.give_up(name, reason):
            hint = "mend the cause and start again: it goes on where it was"
            raise HeadwaterError(f"query {name!r} failed: {reason}", hint=hint)

    def tell(self, query: str, body: dict[str, Any]) -> None:
        """Note a fact about a query."""
        self._facts.add(query, body, at_ms=self._clock.now_ms())

    def tell_operators(self, query: str, body: dict[str, Any]) -> None:
        """Note a fact about the stateful operators of a query."""
        self._facts.add(query, body, at_ms=self._clock.now_ms(), kind=FactKind.OPERATORS)

    def _fact(self, query: StreamingQuery, progress: Any) -> dict[str, Any]:
        return {
            "state": "running" if query.isActive else "stopped",
            "batchId": progress.batchId,
            "numInputRows": progress.numInputRows,
            "inputRowsPerSecond": progress.inputRowsPerSecond,
            "processedRowsPerSecond": progress.processedRowsPerSecond,
            "durationMs": dict(progress.durationMs),
            "behindRecords": self._behind(progress.sources),
            "sources": [
                {"startOffset": _offsets(source.startOffset), "endOffset": _offsets(source.endOffset)}
                for source in progress.sources
            ],
            "error": None,
        }

    def _behind(self, sources: Iterable[Any]) -> int | None:
        """How many records are in the log that the query has not read; None while the log cannot be asked."""
        read: Offsets = {}
        for source in sources:
            read.update(from_json(_offsets(source.endOffset)))
        try:
            with Client(self._servers) as client:
                latest = client.offsets(read, LATEST)
        except UnavailableError:
            return None
        return sum(max(0, latest[tp] - offset) for tp, offset in read.items())


def _offsets(text: Any) -> dict[str, dict[str, int]]:
    return json.loads(text) if isinstance(text, str) else text or {}
