"""Runs an app on Spark: a query for each view and each sink, and one for each topic's dead letters.

Everything a query needs to go on after a crash is below the app's data directory: its checkpoint
(`checkpoints/<query>`) and the store with its results.
"""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructField, StructType

from headwater.app import App, Query, SinkQuery, Topic, View
from headwater.change import CHANGE
from headwater.clock import Clock
from headwater.errors import ConflictError
from headwater.sink import Stream
from headwater.spark.kernels.spool import Spool
from headwater.spark.pipeline.batch_sinks import BESIDE_ROWS, BatchSink, ExternalSink, ViewSink
from headwater.spark.pipeline.checkpoint import check_checkpoint, last_done, run_of
from headwater.spark.pipeline.dead_letters import DEAD_LETTER_TRIGGER, dead_letter_sink, read_unmatched
from headwater.spark.pipeline.definition import (
    check_definition,
    keep_partitions,
    read_definition,
    write_definition,
)
from headwater.spark.pipeline.failures import Failure
from headwater.spark.pipeline.plan import APPEND, UPDATE, Plan, plan_query, read_stream
from headwater.spark.pipeline.poison import Isolation, IsolationContext, nowhere
from headwater.spark.pipeline.rebuilds import RebuildContext, Rebuilds
from headwater.spark.pipeline.watch import Watch
from headwater.spark.session.jvm import died, java_exit, while_java_lives
from headwater.spark.source.exclusions import Exclusions, exclusions_of
from headwater.store.columns import Column
from headwater.store.facts import FactStore
from headwater.store.generations import Generation, Generations
from headwater.store.shapes import CHANGES_KEPT, Access, ViewShape
from headwater.store.views import ViewStore

_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"

VIEW_TRIGGER = "500 milliseconds"

WATCH_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """Where a pipeline reads from and keeps its things; `once` means to stop at the end of the log."""

    bootstrap_servers: str
    data: Path
    once: bool = False


@dataclass(frozen=True, slots=True)
class _Launched:
    """What a query was launched with, to launch it again."""

    query: Query
    generation: Generation
    sink: BatchSink


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
        self._settings = settings
        self._clock = clock
        self._launched: dict[str, _Launched] = {}
        self._exclusions: dict[str, Exclusions] = {}
        self._generations = Generations(store)
        self._watch = Watch(facts, settings.bootstrap_servers, clock, self.left_out)
        around = RebuildContext(
            servers=settings.bootstrap_servers, checkpoints=settings.data / "checkpoints", once=settings.once
        )
        self._rebuilds = Rebuilds(self._watch, self._start_view, app, self._generations, around)

    @while_java_lives()
    def start(self) -> None:
        """Check every query, then start every one; nothing is started if anything is wrong."""
        data, servers = self._settings.data, self._settings.bootstrap_servers
        for query in self._app.queries:
            check_checkpoint(self._checkpoint(self._generations.current(query.name).name), query.name)
            self._exclusions[query.name] = exclusions_of(data, self._app.name, query, servers)
        plans = [self._plan(query) for query in self._app.queries]
        misfits = [(t, read_unmatched(self._spark, t, servers)) for t in self._app.topics if t.schema is not None]
        plans = [plan for plan in plans if self._goes_on(plan)]
        sinks = [self._make_sink(plan) for plan in plans]
        for plan, sink in zip(plans, sinks, strict=True):
            self._start(plan, sink)
        for topic, records in misfits:
            name = topic.dead_letters
            check_checkpoint(self._checkpoint(name), name)
            letters = dead_letter_sink(self._store, topic, self._settings.bootstrap_servers, self._clock)
            writer = self._writer(name, name, records, UPDATE, DEAD_LETTER_TRIGGER)
            self._watch.launch(name, partial(self._begin, writer.foreachBatch(letters), UPDATE))
        self._rebuilds.tend()

    @while_java_lives()
    def run(self, *, until: float | None = None) -> None:
        """Watch over the queries until they end, one is given up, or the monotonic time `until` is reached.

        A query that fails is started again, from where it was; one that fails over and over is given up. Where
        Spark's Java has died, a SparkDiedError says so.
        """
        while True:
            if (code := java_exit()) is not None:
                raise died(code)
            # Asked before failures are tended: a query that ended since then is looked at once more.
            settled = self._watch.settled
            self._watch.note_progress()
            self._watch.tend_failures(self)
            if not self._rebuilds.tend() and settled and self._watch.settled:
                return
            if until is not None and self._clock.monotonic() >= until:
                return
            time.sleep(WATCH_EVERY_S)

    def stop(self) -> None:
        """Stop the queries between batches, as far as Spark can."""
        self._watch.stop()
        for launched in self._launched.values():
            if isinstance(launched.sink, ExternalSink):
                launched.sink.close()

    def rows_read(self) -> dict[str, int]:
        """How many records each query has read since the start."""
        return self._watch.rows_read()

    def left_out(self) -> dict[str, int]:
        """How many records each query leaves out, because its function fails on them."""
        return {name: len(exclusions) for name, exclusions in self._exclusions.items()}

    # -- mending ----------------------------------------------------------------------------------------------

    def isolate(self, name: str, failure: Failure) -> Isolation | None:
        """Begin to look for the rows on which a query's function fails, or that its place does not take; None for
        dead letters, which have none."""
        launched = self._launched.get(name)
        if launched is None:
            return None
        ground = IsolationContext(
            spark=self._spark,
            servers=self._settings.bootstrap_servers,
            checkpoint=self._checkpoint(launched.generation.name),
            starting=launched.generation.starting,
            take=launched.sink.rehearse if failure.refused else nowhere,
        )
        exclusions = self._exclusions[launched.generation.query]
        tell = partial(self._watch.tell, name)
        return Isolation(launched.query, failure, ground, exclusions, self._clock, tell)

    def restart(self, name: str) -> None:
        """Launch a query again, without the rows that are left out by now."""
        launched = self._launched[name]
        self._start(self._plan(launched.query, launched.generation), launched.sink, launched.generation)

    def give_up(self, name: str, reason: str) -> bool:
        """Whether the rest can go on without a query: it was a rebuild."""
        return self._rebuilds.give_up(name, reason)

    # -- building ---------------------------------------------------------------------------------------------

    def _start_view(self, view: View, generation: Generation) -> None:
        """Start a view from the checkpoint of a generation, into the rows of the view's name."""
        plan = self._plan(view, generation)
        self._note_definition(plan, generation)
        self._start(plan, self._make_sink(plan, generation), generation)

    def _records(self, topic: Topic, **how: Any) -> DataFrame:
        return read_stream(self._spark, topic, self._settings.bootstrap_servers, **how)

    def _plan(self, query: Query, generation: Generation | None = None) -> Plan:
        generation = generation or self._generations.current(query.name)
        exclusions = self._exclusions[generation.query]
        read = partial(self._records, starting=generation.starting, exclusions=exclusions)
        return plan_query(query, read, self._spool(query))

    def _spool(self, query: Query) -> Spool:
        return Spool(str(self._settings.data / "spool" / query.name))

    def _goes_on(self, plan: Plan) -> bool:
        """Whether the query can go on from its checkpoint; that it cannot is an error, unless it is rebuilt."""
        generation = self._generations.current(plan.query.name)
        try:
            self._note_definition(plan, generation)
        except ConflictError:
            if plan.query.name in {asked.query for asked in self._generations.rebuilds()}:
                return False
            raise
        return True

    def _note_definition(self, plan: Plan, generation: Generation) -> None:
        folder = self._checkpoint(generation.name)
        for difference in check_definition(folder, plan.query, plan.definition):
            body = {"state": "starting", "note": f"goes on with a change: {difference}"}
            self._watch.tell(plan.query.name, body)
        write_definition(folder, keep_partitions(read_definition(folder), plan.definition))

    def _make_sink(self, plan: Plan, generation: Generation | None = None) -> BatchSink:
        query, spool = plan.query, self._spool(plan.query)
        continues = (generation or self._generations.current(query.name)).continues
        if isinstance(query, SinkQuery):
            stream = Stream(
                query=f"{self._app.name}.{query.name}",
                schema=_arrow_schema(plan.rows),
                key=query.key,
                changes=CHANGE in plan.rows.columns,
                servers=self._settings.bootstrap_servers,
                continues=continues,
            )
            sink = ExternalSink(query, stream, self._store, spool, self._watch.tell_operators)
            sink.open()
            return sink
        assert isinstance(query, View)
        checkpoint = self._checkpoint((generation or self._generations.current(query.name)).name)
        _check_store(self._store, query, checkpoint)
        self._store.declare(_shape(query, plan.rows), _access(query))
        return ViewSink(
            self._store, query, spool, self._watch.tell_operators, checkpoint=checkpoint, continues=continues
        )

    def _start(self, plan: Plan, sink: BatchSink, generation: Generation | None = None) -> None:
        name = plan.query.name
        generation = generation or self._generations.current(name)
        self._launched[name] = _Launched(plan.query, generation, sink)
        writer = self._writer(name, generation.name, plan.rows, plan.mode, VIEW_TRIGGER)
        self._watch.launch(name, partial(self._begin, writer.foreachBatch(sink), plan.mode))

    def _writer(self, name: str, checkpoint: str, rows: DataFrame, mode: str, interval: str) -> DataStreamWriter:
        writer = (
            rows.writeStream.queryName(name)
            .outputMode(mode)
            .option("checkpointLocation", str(self._checkpoint(checkpoint)))
        )
        if self._settings.once:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=interval)

    def _checkpoint(self, name: str) -> Path:
        return self._settings.data / "checkpoints" / name

    def _begin(self, writer: DataStreamWriter, mode: str) -> StreamingQuery:
        # An operator that asks for the time has Spark run batches without data, one after the other. A run that is
        # to end takes none of them; ours need none, since a watermark moves in the batch that brings it.
        endless = self._settings.once and mode == APPEND
        before = self._spark.conf.get(_EMPTY_BATCHES)
        self._spark.conf.set(_EMPTY_BATCHES, str(not endless).lower())
        try:
            return writer.start()  # It takes the session's settings as they are now.
        finally:
            self._spark.conf.set(_EMPTY_BATCHES, before or "true")


def _shape(view: View, rows: DataFrame) -> ViewShape:
    return ViewShape(
        name=view.name,
        key=view.key,
        columns=tuple(
            Column(f.name, f.dataType.simpleString()) for f in rows.schema.fields if f.name not in BESIDE_ROWS
        ),
    )


def _check_store(store: ViewStore, view: View, checkpoint: Path) -> None:
    """A query that goes on behind batches that are in no store would leave a view with holes."""
    progress = store.progress(view.name)
    if last_done(checkpoint) >= 0 and (progress is None or progress.run != run_of(checkpoint)):
        raise ConflictError(
            f"cannot continue view {view.name!r}: its checkpoint has batches of which the store at "
            f"{store.reading().place} knows nothing; they went to another one",
            hint=f"name the store that has them, or compute it anew: headwater rebuild {view.name} --from start",
        )


def _access(view: View) -> Access:
    kept = CHANGES_KEPT if view.history is None else view.history
    return Access(indexes=view.indexes, search=view.search, history=kept)


def _arrow_schema(rows: DataFrame) -> pa.Schema:
    fields = [StructField(f.name, f.dataType) for f in rows.schema.fields if f.name not in BESIDE_ROWS]
    return to_arrow_schema(StructType(fields), timezone="UTC")
