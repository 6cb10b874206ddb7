"""Builds a query's DataFrame: reads its topics and calls its function, which is the user's.

The same function returns a stream or, for a computation over all records in the log, a bounded DataFrame.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headwater.app import Query, Topic
from headwater.errors import HeadwaterError, InvalidError
from headwater.spark.definition.definition import Definition, define
from headwater.spark.kernels.change_lineage import changes_of, check_change_type
from headwater.spark.kernels.query_context import query_context
from headwater.spark.kernels.spool import Spool
from headwater.spark.pipeline.failures import first_line
from headwater.spark.source.decoding import good_rows
from headwater.spark.source.exclusions import Exclusions
from headwater.spark.source.offsets import BOOTSTRAP, ISOLATION, READ_COMMITTED, Range, read_options, to_json
from headwater.spark.source.source import COLUMNS, HeadwaterSource, read_range
from headwater.store.pipelines.generations import Starting
from headwater.transmit.records.to_arrow import SCHEMA

OFFSETS_PER_TRIGGER_MAX = 500_000
"""Limits the memory of a batch; large enough to process a backlog at full speed."""

LOCAL_RECORDS_MAX = 20_000

_TIMED_BY_SPARK = ("EventTimeWatermark", "FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState")
"""Nodes of a plan that need Spark's batches without data."""

UPDATE, APPEND = "update", "append"
"""Spark's own aggregates update rows; our operators append changes, and Spark chains only in append mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A query as Spark runs it: its DataFrame, its output mode and its definition.

    `wakes_itself` means that its sources start a batch when the processing time requires one (`source.wake_ups`),
    so Spark need not run batches without data.
    """

    query: Query
    rows: DataFrame
    mode: str
    definition: Definition
    wakes_itself: bool = False


class ReadTopic(Protocol):
    """Reads a topic as a DataFrame."""

    def __call__(
        self, topic: Topic, *, every_partition: bool = False, wake_ups: Path | None = None
    ) -> DataFrame: ...


def plan_query(query: Query, read: ReadTopic, spool: Spool, wake_ups: Path) -> Plan:
    """Call the query's function on streams; raise InvalidError for a mistake in it.

    `wake_ups` is the file in which its sources find the next wake-up, if it needs any.
    """
    with query_context(spool) as context:
        rows, mode = call_function(query, read), UPDATE
    wakes_itself = False
    if context.operators:
        # Only now it is known that operators run kernels, which need every partition for their watermark. Spark
        # cannot pass rows of its own aggregates to them, so `windowed` runs kernels throughout.
        again = partial(read, every_partition=True)
        with query_context(spool, runs_kernels=True) as context:
            rows, mode = call_function(query, again), APPEND
        if wakes_itself := _wakes_itself(rows, context.clocks):
            with query_context(spool, runs_kernels=True) as context:
                rows = call_function(query, partial(again, wake_ups=wake_ups))
        _refuse_spark_aggregates(query, rows)
    if not rows.isStreaming:
        raise InvalidError(
            f"cannot build {query.kind} {query.name!r}: its function must return a streaming DataFrame"
        )
    definition = define(query, rows, context.descriptions)
    return Plan(query=query, rows=rows, mode=mode, definition=definition, wakes_itself=wakes_itself)


def _refuse_spark_aggregates(query: Query, rows: DataFrame) -> None:
    """Raise InvalidError if a stream with operators also has an aggregate of Spark's that never ends a group."""
    for node in _nodes(rows._jdf.queryExecution().analyzed()):
        is_aggregate = node.nodeName() in ("Aggregate", "Distinct") and node.isStreaming()
        if is_aggregate and not any(below.nodeName() == "EventTimeWatermark" for below in _nodes(node)):
            raise InvalidError(
                f"cannot build {query.kind} {query.name!r}: in a stream, Spark cannot combine an aggregate of its "
                "own (groupBy, distinct) with operators of Headwater; use hw.aggregate or hw.deduplicate instead"
            )


def _wakes_itself(rows: DataFrame, clocks: int) -> bool:
    """Return whether a query reads the log, and only its `clocks` operators need batches without data.

    A watermark of Spark's own and a stateful function of the user's need them as well: for these Spark has to run
    batches without data.
    """
    if not clocks:
        return False
    nodes = [(node.nodeName(), node) for node in _nodes(rows._jdf.queryExecution().analyzed())]
    reads_log = any(name == "StreamingRelationV2" and node.sourceName() == "headwater" for name, node in nodes)
    timed = {
        node.functionExpr().resultId().id()  # The same if rows are used twice, in a union for example.
        for name, node in nodes
        if name.startswith("TransformWithState") and node.timeMode().toString() == "ProcessingTime"
    }
    return reads_log and len(timed) == clocks and not any(name.startswith(_TIMED_BY_SPARK) for name, _ in nodes)


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def read_stream(
    spark: SparkSession,
    topic: Topic,
    servers: str,
    *,
    every_partition: bool = False,
    wake_ups: Path | None = None,
    starting: Starting | None = None,
    exclusions: Exclusions | None = None,
) -> DataFrame:
    """Read the records of a topic as a stream, from the first or from the offsets in `starting`."""
    offsets = (starting or {}).get(topic.name)
    _register_source(spark)
    return (
        spark.readStream.format("headwater")
        .options(**_selection(topic, servers))
        .option("startingOffsets", "earliest" if offsets is None else json.dumps({topic.name: offsets}))
        .option("maxOffsetsPerTrigger", str(OFFSETS_PER_TRIGGER_MAX))
        .option("everyPartition", str(every_partition).lower())
        .options(**({} if wake_ups is None else {"wakeUps": str(wake_ups)}))
        .options(**_exclusion_options(exclusions, topic))
        .load()
    )


def read_all(
    spark: SparkSession, topic: Topic, servers: str, *, exclusions: Exclusions | None = None
) -> DataFrame:
    """Read the records that a topic has now."""
    _register_source(spark)
    options = {**_selection(topic, servers), **_exclusion_options(exclusions, topic)}
    return spark.read.format("headwater").options(**options).load()


def read_part(
    spark: SparkSession, topic: Topic, servers: str, ranges: Sequence[Range], exclusions: Mapping[str, str]
) -> DataFrame:
    """Read the records of a topic in these ranges, at most one for each partition, without the excluded ones."""
    options = {**_selection(topic, servers), **exclusions}
    if sum(r.end - r.start for r in ranges) <= LOCAL_RECORDS_MAX:
        # Few records are read here: planning a read by workers takes longer than reading them.
        read = read_options(options, streaming=False)
        batches = [batch for r in ranges for batch in read_range(read, r)]
        # In one partition, as in a task: the function may process rows together.
        return spark.createDataFrame(pa.Table.from_batches(batches, SCHEMA), COLUMNS).coalesce(1)
    _register_source(spark)
    del options["subscribe"]
    options["assign"] = json.dumps({topic.name: [r.partition.partition for r in ranges]})
    options["startingOffsets"] = json.dumps(to_json({r.partition: r.start for r in ranges}))
    options["endingOffsets"] = json.dumps(to_json({r.partition: r.end for r in ranges}))
    return spark.read.format("headwater").options(**options).load()


def _selection(topic: Topic, servers: str) -> dict[str, str]:
    # Records of aborted transactions are not read.
    return {BOOTSTRAP: servers, "subscribe": topic.name, ISOLATION: READ_COMMITTED}


def _exclusion_options(exclusions: Exclusions | None, topic: Topic) -> dict[str, str]:
    return {} if exclusions is None else exclusions.options(topic.name)


def _register_source(spark: SparkSession) -> None:
    # Registered for each load: a source that Spark finds itself shares one map of environment variables between
    # all queries, and a starting query adds to it while another one serializes it ("Task not serializable").
    spark.dataSource.register(HeadwaterSource)


def call_function(query: Query, read: Callable[[Topic], DataFrame]) -> DataFrame:
    """Call the query's function; raise InvalidError with the query's name for a mistake in it."""
    attempt = f"cannot build {query.kind} {query.name!r}"
    try:
        rows = query.function(*(good_rows(read(topic), topic) for topic in query.topics))
    except HeadwaterError as error:
        raise InvalidError(f"{attempt}: {error}", hint=error.hint) from error
    except PySparkException as error:
        raise InvalidError(f"{attempt}: {first_line(error)}") from error
    except Exception as error:
        raise InvalidError(f"{attempt}: {type(error).__name__}: {error} ({_line_of(query, error)})") from error
    if not isinstance(rows, DataFrame):
        raise InvalidError(f"{attempt}: its function must return a streaming DataFrame")
    missing = [name for name in query.key if name not in rows.columns]
    if missing:
        raise InvalidError(
            f"{attempt}: key column {', '.join(map(repr, missing))} is not in its result, "
            f"which has: {', '.join(rows.columns)}"
        )
    try:
        check_change_type(rows)
        changes_of(rows)
    except InvalidError as error:
        raise InvalidError(f"{attempt}: {error}") from error
    return rows


def _line_of(query: Query, error: BaseException) -> str:
    """Return the line of the user's function in which an error was raised."""
    code = query.function.__code__
    line = code.co_firstlineno
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == code.co_filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{Path(code.co_filename).name}, line {line}"
