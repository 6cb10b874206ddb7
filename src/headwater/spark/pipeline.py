"""Runs an app on Spark: a query for each view and each sink, and one for each topic's dead letters.

Everything a query needs to go on after a crash is below the app's data directory: its checkpoint
(`checkpoints/<query>`) and the store with its results.
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructField, StructType

from headwater.app import App, Delivery, Query, Topic, View
from headwater.clock import Clock
from headwater.errors import HeadwaterError, InvalidError, UnavailableError
from headwater.process.windowing import CHANGE
from headwater.record import TopicPartition
from headwater.sink import Stream
from headwater.spark.building import call_function, first_line, read_stream
from headwater.spark.checkpoint import check_checkpoint
from headwater.spark.exclusions import Exclusions, exclusions_of
from headwater.spark.failures import PAUSE_MAX_S, Failure, Retries, read_failure
from headwater.spark.life import died, java_exit, while_java_lives
from headwater.spark.offsets import from_json
from headwater.spark.poison import Ground, Isolation
from headwater.spark.rows import bad_records
from headwater.spark.sink import BESIDE_ROWS, BatchFunction, DeliverySink, dead_letter_sink, view_sink
from headwater.spark.spool import Spool
from headwater.spark.surroundings import surroundings
from headwater.store.columns import Column
from headwater.store.facts import FactStore, Kind
from headwater.store.sqlite import ViewShape, ViewStore
from headwater.transmit.client import LATEST, Client

VIEW_TRIGGER = "500 milliseconds"
DEAD_LETTER_TRIGGER = "2 seconds"
"""Longer, because nobody waits for it and it reads the topic a second time."""

WATCH_EVERY_S = 0.5

UPDATE, APPEND = "update", "append"
"""Spark's own aggregates give new versions of rows; our operators append changes, and Spark chains only those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """Where a pipeline reads from and keeps its things; `once` means to stop at the end of the log."""

    bootstrap_servers: str
    data: Path
    once: bool = False


class Pipeline:
    """The running queries of an app."""

    def __init__(
        self,
        app: App,
        spark: SparkSession,
        store: ViewStore,
        facts: FactStore,
        settings: PipelineSettings,
        clock: Clock,
    ) -> None:
        self._app = app
        self._spark = spark
        self._store = store
        self._facts = facts
        self._settings = settings
        self._clock = clock
        self._queries: dict[str, StreamingQuery] = {}
        self._starters: dict[str, Callable[[], StreamingQuery]] = {}
        self._batch_functions: dict[str, BatchFunction] = {}
        self._retries = Retries()
        self._due: dict[str, float] = {}
        self._exclusions: dict[str, Exclusions] = {}
        self._isolations: dict[str, Isolation] = {}
        self._sinks: list[DeliverySink] = []
        self._noted: dict[str, Any] = {}
        self._read_before: dict[str, int] = {}
        """Rows read by queries that failed and have a successor."""

    def start(self) -> None:
        """Check every view, then start every query; nothing is started if anything is wrong."""
        with while_java_lives():
            self._start_all()

    def _start_all(self) -> None:
        letters = [topic.dead_letters for topic in self._app.topics]
        for name in [*(query.name for query in self._app.queries), *letters]:
            check_checkpoint(self._settings.data / "checkpoints" / name, name)
        data, servers = self._settings.data, self._settings.bootstrap_servers
        self._exclusions = {q.name: exclusions_of(data, self._app.name, q, servers) for q in self._app.queries}
        views = [(view, *self._build(view)) for view in self._app.views]
        deliveries = [(delivery, *self._build(delivery)) for delivery in self._app.deliveries]
        misfits = [(t, bad_records(self._records(t), t)) for t in self._app.topics if t.schema is not None]
        for view, rows, _ in views:
            self._store.declare(_shape(view, rows))
        self._sinks = [self._open_sink(delivery, rows) for delivery, rows, _ in deliveries]
        for view, rows, mode in views:
            sink = view_sink(self._store, view, self._spool(view), partial(self._note, kind=Kind.OPERATORS))
            self._start(view.name, rows, sink, VIEW_TRIGGER, mode)
        for (delivery, rows, mode), outside in zip(deliveries, self._sinks, strict=True):
            self._start(delivery.name, rows, outside, VIEW_TRIGGER, mode)
        for topic, records in misfits:
            sink = dead_letter_sink(self._store, topic, self._settings.bootstrap_servers, self._clock)
            self._start(topic.dead_letters, records, sink, DEAD_LETTER_TRIGGER)

    def run(self, *, until: float | None = None) -> None:
        """Watch over the queries until they end, one is given up, or the monotonic time `until` is reached.

        A query that fails is started again, from where it was; one that fails over and over is given up. Where
        Spark's Java has died, a SparkDiedError says so.
        """
        with while_java_lives():
            self._watch(until)

    def _watch(self, until: float | None) -> None:
        while True:
            if (code := java_exit()) is not None:
                raise died(code)
            # Asked before failures are tended: a query that ended since then is looked at once more.
            settled = not self._mending and not any(query.isActive for query in self._queries.values())
            self.note_progress()
            self._tend_failures()
            if settled and not self._mending:
                return
            if until is not None and self._clock.monotonic() >= until:
                return
            time.sleep(WATCH_EVERY_S)

    def note_progress(self) -> None:
        """Record what the queries have done since the last call."""
        for name, query in self._queries.items():
            progress = query.lastProgress
            if progress is None or progress.json == self._noted.get(name):
                continue
            self._noted[name] = progress.json
            self._facts.add(name, self._fact(name, query, progress), at_ms=self._clock.now_ms())

    def stop(self) -> None:
        """Stop the queries between batches, as far as Spark can."""
        for isolation in self._isolations.values():
            isolation.stop()
        if (code := java_exit()) is not None:
            for name in self._queries:
                self._note(name, {"state": "waiting", "error": str(died(code))})
            self._queries.clear()
        for name, query in self._queries.items():
            was_active = query.isActive
            query.stop()
            if was_active:
                self._facts.add(name, {"state": "stopped"}, at_ms=self._clock.now_ms())
        for sink in self._sinks:
            sink.close()

    def rows_read(self) -> dict[str, int]:
        """How many records each query has read since the start."""
        return {name: self._read_before.get(name, 0) + _rows_read(q) for name, q in self._queries.items()}

    def left_out(self) -> dict[str, int]:
        """How many records each query leaves out, because its function fails on them."""
        return {name: len(exclusions) for name, exclusions in self._exclusions.items()}

    # -- building ---------------------------------------------------------------------------------------------

    def _records(
        self, topic: Topic, *, exclusions: Exclusions | None = None, every_partition: bool = False
    ) -> DataFrame:
        servers = self._settings.bootstrap_servers
        return read_stream(self._spark, topic, servers, exclusions=exclusions, every_partition=every_partition)

    def _spool(self, query: Query) -> Spool:
        return Spool(str(self._settings.data / "spool" / query.name))

    def _open_sink(self, delivery: Delivery, rows: DataFrame) -> DeliverySink:
        fields = [StructField(f.name, f.dataType) for f in rows.schema.fields if f.name not in BESIDE_ROWS]
        stream = Stream(
            query=f"{self._app.name}.{delivery.name}",
            schema=to_arrow_schema(StructType(fields), timezone="UTC"),
            key=delivery.key,
            changes=CHANGE in rows.columns,
            servers=self._settings.bootstrap_servers,
        )
        sink = DeliverySink(
            delivery, stream, self._store, self._spool(delivery), partial(self._note, kind=Kind.OPERATORS)
        )
        sink.open()
        return sink

    def _build(self, query: Query) -> tuple[DataFrame, str]:
        """What the query's function makes, with the output mode it needs."""
        spool = self._spool(query)
        records = partial(self._records, exclusions=self._exclusions[query.name])
        with surroundings(spool) as around:
            rows, mode = call_function(query, records), UPDATE
        if around.operators:
            # Now it is known that there are operators with a watermark, which want to see every partition.
            with surroundings(spool):
                rows, mode = call_function(query, partial(records, every_partition=True)), APPEND
        if not rows.isStreaming:
            raise InvalidError(
                f"cannot build {query.kind} {query.name!r}: its function must return a streaming DataFrame"
            )
        return rows, mode

    def _start(self, name: str, rows: DataFrame, sink: BatchFunction, interval: str, mode: str = UPDATE) -> None:
        self._facts.add(name, {"state": "starting"}, at_ms=self._clock.now_ms())
        writer = (
            rows.writeStream.queryName(name)
            .outputMode(mode)
            .option("checkpointLocation", str(self._settings.data / "checkpoints" / name))
            .foreachBatch(sink)
        )
        if self._settings.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=interval)
        self._batch_functions[name] = sink
        self._starters[name] = partial(self._launch, writer, mode)
        try:
            self._queries[name] = self._starters[name]()
        except PySparkException as error:
            raise InvalidError(f"cannot start query {name!r}: {first_line(error)}") from error

    def _launch(self, writer: DataStreamWriter, mode: str) -> StreamingQuery:
        # An operator that asks for the time has Spark run batches without data, one after the other. A run that is
        # to end takes none of them; ours need none, since a watermark moves in the batch that brings it.
        endless = self._settings.once and mode == APPEND
        self._spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(not endless).lower())
        return writer.start()

    # -- watching ---------------------------------------------------------------------------------------------

    def _note(self, name: str, body: dict[str, Any], kind: Kind = Kind.BATCH) -> None:
        self._facts.add(name, body, at_ms=self._clock.now_ms(), kind=kind)

    def _fact(self, name: str, query: StreamingQuery, progress: Any) -> dict[str, Any]:
        return {
            "state": "running" if query.isActive else "stopped",
            "batchId": progress.batchId,
            "numInputRows": progress.numInputRows,
            "inputRowsPerSecond": progress.inputRowsPerSecond,
            "processedRowsPerSecond": progress.processedRowsPerSecond,
            "durationMs": dict(progress.durationMs),
            "behindRecords": _behind(progress.sources, self._settings.bootstrap_servers),
            "leftOutRecords": len(self._exclusions.get(name, ())),
            "sources": [
                {"startOffset": _offsets(source.startOffset), "endOffset": _offsets(source.endOffset)}
                for source in progress.sources
            ],
            "error": None,
        }

    @property
    def _mending(self) -> bool:
        return bool(self._due or self._isolations)

    def _tend_failures(self) -> None:
        """Start failed queries again after a pause; raise for one that is given up."""
        for name, query in list(self._queries.items()):
            if name in self._isolations:
                self._tend_isolation(name)
                continue
            if name in self._due:
                if self._clock.monotonic() >= self._due[name]:
                    del self._due[name]
                    self._read_before[name] = self._read_before.get(name, 0) + _rows_read(query)
                    self._queries[name] = self._starters[name]()
                continue
            error = query.exception()
            if error is None:
                continue
            failure = read_failure(str(error))
            pause = self._retries.pause(name, failure, progressed=query.lastProgress is not None)
            if pause is not None:
                self._note(name, {"state": "waiting", "error": failure.reason})
                self._due[name] = self._clock.monotonic() + pause
            elif failure.of_a_row and name in self._exclusions:
                self._isolations[name] = self._isolate(name, failure)
            else:
                self._note(name, {"state": "failed", "error": failure.reason})
                raise _given_up(name, failure.reason) from error

    def _isolate(self, name: str, failure: Failure) -> Isolation:
        """Begin to look for the rows on which a query's function fails."""
        (query,) = (query for query in self._app.queries if query.name == name)
        ground = Ground(
            spark=self._spark,
            servers=self._settings.bootstrap_servers,
            checkpoint=self._settings.data / "checkpoints" / name,
        )
        note = partial(self._note, name)
        return Isolation(query, failure, ground, self._exclusions[name], self._clock, note)

    def _tend_isolation(self, name: str) -> None:
        """Start the query again when its poison rows are out of the way; raise if there are none to take out."""
        isolation = self._isolations[name]
        if not isolation.done:
            return
        del self._isolations[name]
        try:
            isolation.result()
        except UnavailableError:
            self._due[name] = self._clock.monotonic() + PAUSE_MAX_S
            return
        except HeadwaterError as error:
            self._note(name, {"state": "failed", "error": isolation.failure.reason})
            raise _given_up(name, f"{isolation.failure.reason} (poison rows were looked for: {error})") from error
        self._retries.forgive(name)
        self._read_before[name] = self._read_before.get(name, 0) + _rows_read(self._queries[name])
        rows, mode = self._build(isolation.query)
        self._start(name, rows, self._batch_functions[name], VIEW_TRIGGER, mode)


def _given_up(name: str, reason: str) -> HeadwaterError:
    hint = "mend the cause and start again: it goes on where it was"
    return HeadwaterError(f"query {name!r} failed: {reason}", hint=hint)


def _behind(sources: Iterable[Any], servers: str) -> int | None:
    """How many records are in the log that a query has not read; None while the log cannot be asked."""
    read: dict[TopicPartition, int] = {}
    for source in sources:
        read.update(from_json(_offsets(source.endOffset)))
    try:
        with Client(servers) as client:
            latest = client.offsets(read, LATEST)
    except UnavailableError:
        return None
    return sum(max(0, latest[tp] - offset) for tp, offset in read.items())


def _rows_read(query: StreamingQuery) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)


def _shape(view: View, rows: DataFrame) -> ViewShape:
    return ViewShape(
        name=view.name,
        key=view.key,
        columns=tuple(
            Column(f.name, f.dataType.simpleString()) for f in rows.schema.fields if f.name not in BESIDE_ROWS
        ),
    )


def _offsets(text: Any) -> dict[str, dict[str, int]]:
    return json.loads(text) if isinstance(text, str) else text or {}
