"""Builds a query's DataFrame: reads its topics and calls its function, which is the user's.

The same function returns a stream or, for a computation over all records in the log, a bounded DataFrame.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headwater.app import Query, Topic, View
from headwater.change import CHANGE
from headwater.errors import HeadwaterError, InvalidError
from headwater.spark.definition.definition import Definition, define
from headwater.spark.kernels.change_lineage import changes_of, check_change_type
from headwater.spark.kernels.query_context import query_context
from headwater.spark.kernels.spool import Spool
from headwater.spark.lanes.steps.blueprint import Blueprint, Drafting, Drawings
from headwater.spark.operators.tables import table
from headwater.spark.pipeline.failures import first_line
from headwater.spark.source.decoding import good_rows

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
    blueprint: Blueprint | None = None
    """The operators and steps of the query, if it runs in a lane."""


class ReadTopic(Protocol):
    """Reads a topic as a DataFrame."""

    def __call__(
        self, topic: Topic, *, every_partition: bool = False, wake_ups: Path | None = None
    ) -> DataFrame: ...


def draw_query(query: Query, drawings: Drawings, spool: Spool) -> Plan:
    """Draw a query, to run it in a lane; raise NotDrawableError if only a query of Spark's own can run it."""
    drafting = Drafting(drawings)
    with query_context(spool, runs_kernels=True, drafts=drafting) as context:
        rows = call_function(query, drafting.topic)
    blueprint = drafting.finish(query, rows)
    definition = define(query, rows, context.descriptions)
    return Plan(query=query, rows=rows, mode=APPEND, definition=definition, blueprint=blueprint)


def plan_query(query: Query, read: ReadTopic, spool: Spool, wake_ups: Path) -> Plan:
    """Call the query's function on streams; raise InvalidError for a mistake in it.

    `wake_ups` is the file in which its sources find the next wake-up, if it needs any.
    """
    with query_context(spool) as context:
        rows, mode = call_function(query, good(read)), UPDATE
    wakes_itself = False
    if context.operators:
        # Only now it is known that operators run kernels, which need every partition for their watermark. Spark
        # cannot pass rows of its own aggregates to them, so `windowed` runs kernels throughout.
        again = partial(read, every_partition=True)
        with query_context(spool, runs_kernels=True) as context:
            rows, mode = call_function(query, good(again)), APPEND
        if wakes_itself := _wakes_itself(rows, context.clocks):
            with query_context(spool, runs_kernels=True) as context:
                rows = call_function(query, good(partial(again, wake_ups=wake_ups)))
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


def good(read: Callable[[Topic], DataFrame]) -> Callable[[Topic], DataFrame]:
    """Return a function that reads a topic and returns the rows of the records that match its schema."""
    return lambda topic: good_rows(read(topic), topic)


def call_function(query: Query, rows_of: Callable[[Topic], DataFrame]) -> DataFrame:
    """Call the query's function; raise InvalidError with the query's name for a mistake in it."""
    attempt = f"cannot build {query.kind} {query.name!r}"
    try:
        rows = query.function(*(_input(each, rows_of) for each in query.inputs or query.topics))
    except HeadwaterError as error:
        raise InvalidError(f"{attempt}: {error}", hint=error.hint) from error
    except PySparkException as error:
        raise InvalidError(f"{attempt}: {first_line(error)}") from error
    except Exception as error:
        raise InvalidError(f"{attempt}: {type(error).__name__}: {error} ({_line_of(query, error)})") from error
    if isinstance(rows, Mapping):
        rows = _result(query, rows, attempt)
    elif query.result is not None:
        raise InvalidError(
            f"{attempt}: its function must return a dict of DataFrames, because it has result={query.result!r}"
        )
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


def _result(query: Query, results: Mapping[Any, Any], attempt: str) -> Any:
    """Return the rows of a query whose function returns several DataFrames."""
    names = ", ".join(map(repr, results)) or "none"
    if query.result is None:
        raise InvalidError(
            f"{attempt}: its function returns several results; name one of them: result=... ({names})"
        )
    if query.result not in results:
        raise InvalidError(f"{attempt}: its function returns no result {query.result!r}; it returns: {names}")
    return results[query.result]


def _input(given: Topic | View, rows_of: Callable[[Topic], DataFrame]) -> DataFrame:
    """Return the rows of a topic, or the changes of a view.

    A view whose function retracts the rows that it replaces is read as it is. In any other, a row replaces the one
    with its key, which a table makes a change.
    """
    if isinstance(given, Topic):
        return rows_of(given)
    rows = call_function(given, rows_of)
    changes = changes_of(rows)
    return rows if changes is not None and changes.retracts else table(rows.drop(CHANGE), key=given.key)


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
