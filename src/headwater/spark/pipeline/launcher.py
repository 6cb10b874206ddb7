"""Builds a query's plan and sink, and starts it from its checkpoint.

Everything a query needs to continue after a crash is below the app's data directory: its checkpoint
(`checkpoints/<query>`) and the store with its results.
"""

import shutil
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructField, StructType

from headwater.app import App, Query, SinkQuery, Topic, View
from headwater.change import CHANGE
from headwater.clock import Clock
from headwater.errors import ConflictError, InvalidError
from headwater.record import EARLIEST, TopicPartition
from headwater.sink import Guarantee, Stream
from headwater.spark.definition.definition import keep_partitions, read_definition, write_definition
from headwater.spark.definition.differences import Difference, check_definition, continue_hint
from headwater.spark.kernels.spool import Spool
from headwater.spark.kernels.watermark_sources import METADATA_COLUMNS
from headwater.spark.lanes.batch_log import MARK as LANE_MARK
from headwater.spark.lanes.batch_log import is_lane
from headwater.spark.lanes.lanes import Lanes
from headwater.spark.lanes.member import LaneQuery, Member, MemberPlan
from headwater.spark.lanes.steps.blueprint import NotDrawableError
from headwater.spark.pipeline.batch_sinks import BatchSink, ExternalSink, ViewSink
from headwater.spark.pipeline.dead_letters import DEAD_LETTER_TRIGGER, DeadLetterSink
from headwater.spark.pipeline.plan import APPEND, UPDATE, Plan, draw_query, plan_query
from headwater.spark.pipeline.running_queries import Launch, RunningQueries
from headwater.spark.pipeline.settings import PipelineSettings
from headwater.spark.source.checkpoint import has_begun, last_done, run_of
from headwater.spark.source.decoding import bad_records
from headwater.spark.source.exclusions import Exclusions, exclusions_of
from headwater.spark.source.offsets import Offsets, from_json
from headwater.spark.source.topic_reads import read_stream
from headwater.spark.source.wake_ups import FILE as WAKE_UPS_FILE
from headwater.spark.source.wake_ups import WakeUps
from headwater.store.pipelines.generations import Generation, Generations
from headwater.store.shapes import CHANGES_KEPT, Access, ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore
from headwater.transmit.client.client import Client

_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"

VIEW_TRIGGER = "500 milliseconds"


class QueryLauncher:
    """Launches the queries of an app into the registry of running queries."""

    def __init__(
        self,
        app: App,
        spark: SparkSession,
        store: ViewStore,
        queries: RunningQueries,
        settings: PipelineSettings,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._app = app
        self._spark = spark
        self._store = store
        self._queries = queries
        self._settings = settings
        self._generations = Generations(store)
        self._exclusions: dict[str, Exclusions] = {}
        self._external_sinks: dict[str, ExternalSink] = {}
        self.notes: list[str] = []
        """Changes with which queries continue, in words."""

    @cached_property
    def _lanes(self) -> Lanes | None:
        """The lanes of the app; None on a cluster, where the driver must not process all rows."""
        if not str(self._spark.sparkContext.master).startswith("local"):
            return None
        servers, once = self._settings.bootstrap_servers, self._settings.once
        return Lanes(self._spark, self._store, servers, self._clock, once=once)

    def load_exclusions(self) -> None:
        """Read which records each query leaves out; needed before anything is planned."""
        for query in self._app.queries:
            self._exclusions[query.name] = exclusions_of(
                self._settings.data, self._app.name, query, self._settings.bootstrap_servers
            )

    def left_out(self) -> dict[str, int]:
        """Return how many records each query leaves out because its function fails on them."""
        return {name: len(exclusions) for name, exclusions in self._exclusions.items()}

    def plan(self, query: Query, generation: Generation | None = None) -> Plan:
        """Plan a query with its current generation, or with the given one."""
        generation = generation or self._generations.current(query.name)
        folder = self._settings.checkpoint(generation.name)
        reason = "it runs apart from the other queries"
        if self._lanes is not None and query.pipeline is None and is_lane(folder):
            try:
                return draw_query(query, self._lanes.drawings, self._spool(query))
            except (InvalidError, NotDrawableError) as error:
                reason = str(error)  # A mistake of the user's is raised again below.
        exclusions = self._exclusions[generation.query]

        def read(topic: Topic, *, every_partition: bool = False, wake_ups: Path | None = None) -> DataFrame:
            return read_stream(
                self._spark,
                topic,
                self._settings.bootstrap_servers,
                every_partition=every_partition,
                wake_ups=wake_ups,
                starting=generation.starting,
                left_out=exclusions.options(topic.name),
            )

        plan = plan_query(query, read, self._spool(query), self._wake_up_file(generation))
        _check_left(query, folder, reason)
        return plan

    def check_definition(self, plan: Plan, generation: Generation) -> list[Difference]:
        """Return how a query differs from its checkpoint; ConflictError if it cannot continue from there.

        A checkpoint from which nothing was written yet holds nothing to continue: it is deleted if the query has
        changed.
        """
        folder = self._settings.checkpoint(generation.name)
        if not has_begun(folder):
            return []
        try:
            return check_definition(plan.query, read_definition(folder), plan.definition)
        except ConflictError:
            if not self._wrote_nothing(plan.query, folder):
                raise
            shutil.rmtree(folder)
            return []

    def save_definition(self, plan: Plan, generation: Generation, differences: Sequence[Difference]) -> None:
        """Save a query's definition with its checkpoint, and report the differences from the one before."""
        folder = self._settings.checkpoint(generation.name)
        for difference in differences:
            note = f"continues with a change that {difference.effect}: {difference}"
            self._queries.report(plan.query.name, {"state": "starting", "note": note})
            self.notes.append(f"{plan.query.kind} {plan.query.name} {note}")
        was = read_definition(folder) if has_begun(folder) else None
        write_definition(folder, keep_partitions(was, plan.definition))

    def make_sink(self, plan: Plan, generation: Generation) -> BatchSink:
        """Make a query's sink: open its external sink, or declare its view in the store."""
        query, spool = plan.query, self._spool(plan.query)
        wake_ups = WakeUps(self._wake_up_file(generation)) if plan.wakes_itself else None
        if isinstance(query, SinkQuery):
            stream = Stream(
                query=f"{self._app.name}.{query.name}",
                schema=_arrow_schema(plan.rows),
                key=query.key,
                changes=CHANGE in plan.rows.columns,
                servers=self._settings.bootstrap_servers,
                continues=generation.continues,
            )
            report = self._queries.report_operators
            if (before := self._external_sinks.pop(query.name, None)) is not None:
                before.close()
            sink = ExternalSink(query, stream, self._store, spool, report, wake_ups=wake_ups)
            self._external_sinks[query.name] = sink
            sink.open()
            return sink
        assert isinstance(query, View)
        checkpoint = self._settings.checkpoint(generation.name)
        _check_store(self._store, query, checkpoint)
        self._store.declare(_shape(query, plan.rows), _access(query))
        return ViewSink(
            self._store,
            query,
            spool,
            self._queries.report_operators,
            checkpoint=checkpoint,
            continues=generation.continues,
            wake_ups=wake_ups,
        )

    def start(self, plan: Plan, sink: BatchSink, generation: Generation) -> None:
        """Start a query from the checkpoint of a generation."""
        name = plan.query.name
        launch = Launch(plan.query, generation, sink, self._exclusions[generation.query])
        if plan.blueprint is not None:
            self._queries.launch(name, partial(self._join_lane, plan, sink, generation), launch)
            return
        writer = self._writer(name, generation.name, plan.rows, plan.mode, VIEW_TRIGGER)
        # Our operators need no batches without data for the watermark, which moves in the batch that brings it. In
        # a run that is to end, Spark must not run them: those for the processing time never end.
        empty_batches = not (plan.wakes_itself or (self._settings.once and plan.mode == APPEND))
        self._queries.launch(name, partial(self._begin, writer.foreachBatch(sink), empty_batches), launch)

    def start_query(self, query: Query, generation: Generation) -> None:
        """Plan a query and start it from the checkpoint of a generation, into the rows of the query's name."""
        plan = self.plan(query, generation)
        differences = self.check_definition(plan, generation)
        sink = self.make_sink(plan, generation)
        self.save_definition(plan, generation, differences)
        self.start(plan, sink, generation)

    def release(self) -> None:
        """Let the queries in lanes begin, when all that are to begin together were started."""
        if self._lanes is not None:
            self._lanes.release()

    def start_dead_letters(self, topic: Topic) -> None:
        """Start the query that writes a topic's unmatched records to its dead-letter topic."""
        name, servers = topic.dead_letters, self._settings.bootstrap_servers
        sink = DeadLetterSink(self._store, topic, servers, self._clock)
        if self._lanes is not None and is_lane(self._settings.checkpoint(name)):
            self._queries.launch(name, partial(self._join_dead_letters, topic, sink))
            return
        unmatched = bad_records(read_stream(self._spark, topic, servers), topic)
        writer = self._writer(name, name, unmatched, UPDATE, DEAD_LETTER_TRIGGER)
        self._queries.launch(name, partial(self._begin, writer.foreachBatch(sink), True))

    def _join_lane(self, plan: Plan, sink: BatchSink, generation: Generation) -> LaneQuery:
        """Start a query from its checkpoint in a lane."""
        assert self._lanes is not None
        query, exclusions = plan.query, self._exclusions[generation.query]
        work = MemberPlan(
            name=query.name,
            topics=query.topics,
            blueprint=plan.blueprint,
            left_out={topic.name: exclusions.left_out(topic.name) for topic in query.topics},
            # Requests to servers of others, which may take long.
            is_slow=isinstance(query, SinkQuery) and query.to.guarantee is Guarantee.AT_LEAST_ONCE,
        )
        folder = self._settings.checkpoint(generation.name)
        return self._lanes.start(Member(work, folder, sink, self._starting(query.topics, generation)))

    def _join_dead_letters(self, topic: Topic, sink: DeadLetterSink) -> LaneQuery:
        assert self._lanes is not None
        name = topic.dead_letters
        starting = self._starting([topic], Generation(query=name))
        work = MemberPlan(name=name, topics=(topic,))
        return self._lanes.start(Member(work, self._settings.checkpoint(name), sink, starting))

    def _starting(self, topics: Sequence[Topic], generation: Generation) -> Offsets:
        """Return where a query begins: at its first records, or at the offsets of its generation."""
        with Client(self._settings.bootstrap_servers, read_committed=True) as client:
            found = client.topics([topic.name for topic in topics])
            partitions = [TopicPartition(name, n) for name, info in found.items() for n in info.leaders]
            earliest = client.offsets(partitions, EARLIEST)
        given = from_json(generation.starting or {})
        # Who continues with empty state does so after records that were deleted meanwhile.
        return {tp: max(first, given.get(tp, first)) for tp, first in earliest.items()}

    def relaunch(self, launch: Launch) -> None:
        """Launch a query again, without the records that it leaves out by now."""
        self.start(self.plan(launch.query, launch.generation), launch.sink, launch.generation)

    def stop_lanes(self) -> None:
        """Stop the queries in lanes, those of a lane after the same batch."""
        if "_lanes" in self.__dict__ and self._lanes is not None:
            self._lanes.close()

    def close(self) -> None:
        """Stop the lanes and close the external sinks."""
        self.stop_lanes()
        for sink in self._external_sinks.values():
            sink.close()

    def _wrote_nothing(self, query: Query, folder: Path) -> bool:
        """Return whether no batch of a checkpoint was written; of a sink, only its destination knows that."""
        progress = self._store.progress(query.name)
        is_written = progress is not None and progress.run == run_of(folder)
        return isinstance(query, View) and last_done(folder) < 0 and not is_written

    def _spool(self, query: Query) -> Spool:
        return Spool(str(self._settings.data / "spool" / query.name))

    def _wake_up_file(self, generation: Generation) -> Path:
        return self._settings.checkpoint(generation.name) / WAKE_UPS_FILE

    def _writer(self, name: str, generation: str, rows: DataFrame, mode: str, interval: str) -> DataStreamWriter:
        writer = (
            rows.writeStream.queryName(name)
            .outputMode(mode)
            .option("checkpointLocation", str(self._settings.checkpoint(generation)))
        )
        if self._settings.once:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=interval)

    def _begin(self, writer: DataStreamWriter, empty_batches: bool) -> StreamingQuery:
        before = self._spark.conf.get(_EMPTY_BATCHES)
        self._spark.conf.set(_EMPTY_BATCHES, str(empty_batches).lower())
        try:
            return writer.start()  # It copies the session's settings as they are now.
        finally:
            self._spark.conf.set(_EMPTY_BATCHES, before or "true")


def _check_left(query: Query, folder: Path, reason: str) -> None:
    """Raise ConflictError if a query that Spark is to run has a checkpoint of a lane."""
    if has_begun(folder) and (folder / LANE_MARK).exists():
        raise ConflictError(
            f"cannot continue {query.kind} {query.name!r}: {reason} now, so Spark has to run it as a query of its "
            "own, and that cannot continue from its checkpoint",
            hint=continue_hint(query, is_view=isinstance(query, View)),
        )


def _shape(view: View, rows: DataFrame) -> ViewShape:
    return ViewShape(
        name=view.name,
        key=view.key,
        columns=tuple(
            Column(f.name, f.dataType.simpleString()) for f in rows.schema.fields if f.name not in METADATA_COLUMNS
        ),
    )


def _check_store(store: ViewStore, view: View, checkpoint: Path) -> None:
    """Raise ConflictError if the store does not have the batches of the checkpoint: the view would have gaps."""
    progress = store.progress(view.name)
    if last_done(checkpoint) >= 0 and (progress is None or progress.run != run_of(checkpoint)):
        raise ConflictError(
            f"cannot continue view {view.name!r}: its checkpoint is ahead of the store at "
            f"{store.reading().location}: the missing batches were written to a different store",
            hint=f"use the store that has them, or recompute the view: headwater rebuild {view.name} --from start",
        )


def _access(view: View) -> Access:
    kept = CHANGES_KEPT if view.history is None else view.history
    return Access(indexes=view.indexes, search=view.search, history=kept)


def _arrow_schema(rows: DataFrame) -> pa.Schema:
    fields = [StructField(f.name, f.dataType) for f in rows.schema.fields if f.name not in METADATA_COLUMNS]
    return to_arrow_schema(StructType(fields), timezone="UTC")
