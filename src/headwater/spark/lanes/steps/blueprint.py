"""The blueprint of a query: what its function computes between topics and operators, drawn without running it.

A query's function is called once, with DataFrames that stand for its topics, and every operator returns a
DataFrame that stands for its output. These placeholders are empty streams. So a blueprint has the operators in
order, with the steps of Spark before each, and the steps after the last ones. A batch then runs the steps over
real rows (`stage_plan`), and the kernels of the operators in the driver (`operator_steps`).

A query can be drawn if every step of Spark treats each row by itself, because a lane gives it the rows of one
batch only. A query that uses stateful operators of Spark's own, other streams, or the time of Spark's batches is
run by Spark as a streaming query (`NotDrawableError`).
"""

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructType

from headwater.app import Query, Topic
from headwater.process.kernel import Now, OperatorKernel
from headwater.spark.kernels.frames import empty_like, spark_schema
from headwater.spark.kernels.times import Times
from headwater.spark.lanes.steps.stage_plan import placeholder
from headwater.spark.session.scala import items
from headwater.spark.source.decoding import mark_event_time, record_schema, row_schema

_BY_ROW = {
    "ArrowEvalPython", "BatchEvalPython", "CTERelationDef", "CTERelationRef", "Expand", "Filter", "Generate",
    "LogicalRDD", "MapInArrow", "MapInPandas", "PythonMapInArrow", "Project", "ResolvedHint", "Subquery",
    "SubqueryAlias", "TypedFilter", "Union", "View", "WithCTE",
}  # fmt: skip
"""Spark's steps that treat each row of a stream by itself, in one task or in many."""

_STATIC_SIDES = {"INNER": (0, 1), "CROSS": (0, 1), "LEFT OUTER": (1,), "LEFT SEMI": (1,), "LEFT ANTI": (1,)} | {
    "RIGHT OUTER": (0,)
}
"""The sides of a join that may be a table which is not a stream; the other one is the stream."""


class NotDrawableError(Exception):
    """A query needs a streaming query of Spark's; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnOperator:
    """An operator: its kernel, the steps that compute its input, and its place among the others.

    `rows` are the input's rows; `leaves` are the topics and operators they come from, `topics` all topics before
    it, and `held_by` those whose watermarks it follows. `leaf` stands for its output, which queries that have the
    same operator share, and `mark` is a name that only they have. `level` is 0 if it needs no other operator's
    output.
    """

    name: str
    kernel: OperatorKernel
    by: tuple[str, ...]
    rows: DataFrame
    arriving: pl.Schema
    hints: tuple[str, ...]
    combined: pl.DataFrame
    output: pa.Schema
    output_type: StructType
    watermark_column: str | None
    leaf: int
    leaves: frozenset[int]
    topics: frozenset[str]
    held_by: frozenset[int]
    uses_clock: bool
    hold: int
    level: int
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(slots=True)
class Blueprint:
    """The operators of a query and its result, which comes from the placeholders `leaves`.

    `topics` are its topics by the number of their placeholder.
    """

    topics: dict[int, Topic]
    operators: list[DrawnOperator]
    rows: DataFrame
    leaves: frozenset[int]
    number: int = field(default_factory=itertools.count().__next__)
    """A number of its own, by which plans are kept."""

    @property
    def level(self) -> int:
        """The level of the result: the number of operators that come one after the other before it."""
        return max((operator.level + 1 for operator in self.operators), default=0)


class Drawings:
    """The placeholders of all queries of an app: one for each topic, and one for each operator.

    An operator of one query is the same as that of another if both have the same kernel over the same steps of
    Spark. Then they have the same placeholder, and a lane computes it once for both (`sharing`).
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._schemas: dict[Topic, StructType] = {}
        self._topics: dict[Topic, tuple[DataFrame, int]] = {}
        self._operators: dict[bytes, list[tuple[DrawnOperator, DataFrame]]] = {}

    def schema(self, topic: Topic) -> StructType:
        """Return the schema of a topic's rows."""
        if topic not in self._schemas:
            self._schemas[topic] = row_schema(topic, record_schema())
        return self._schemas[topic]

    def topic(self, topic: Topic) -> tuple[DataFrame, int]:
        """Return the placeholder of a topic's rows, and its number."""
        if topic not in self._topics:
            self._topics[topic] = placeholder(self._spark, self.schema(topic))
        return self._topics[topic]

    def operator(
        self, description: bytes, rows: DataFrame, draw: Callable[[int], DrawnOperator], output: StructType
    ) -> tuple[DrawnOperator, DataFrame]:
        """Return an operator and the placeholder of its output: one that is known, or else a new one."""
        known, plan = self._operators.setdefault(description, []), _analyzed(rows)
        for operator, stands_for_output in known:
            if operator.rows.columns == rows.columns and _analyzed(operator.rows).sameResult(plan):
                return operator, stands_for_output
        stands_for_output, leaf = placeholder(self._spark, output)
        known.append((draw(leaf), stands_for_output))
        return known[-1]


class Drafting:
    """Takes the operators of one query while its function is called."""

    def __init__(self, drawings: Drawings) -> None:
        self._drawings = drawings
        self.topics: dict[int, Topic] = {}
        self.operators: list[DrawnOperator] = []

    def topic(self, topic: Topic) -> DataFrame:
        """Return a DataFrame that stands for the rows of a topic."""
        rows, leaf = self._drawings.topic(topic)
        self.topics[leaf] = topic
        return mark_event_time(rows, topic)

    def finish(self, query: Query, rows: DataFrame) -> Blueprint:
        """Return the blueprint of a query whose function has returned `rows`.

        Raises NotDrawableError if a step of Spark's does not treat each row by itself.
        """
        for topic in query.topics:
            _check_types(self._drawings.schema(topic))
        blueprint = Blueprint(self.topics, self.operators, rows, self.leaves(rows))
        _check_drawable(blueprint)
        return blueprint

    def leaves(self, rows: DataFrame) -> frozenset[int]:
        """Return the placeholders in the plan of rows."""
        return frozenset(
            node.rdd().id()
            for node in _nodes(_analyzed(rows))
            if node.nodeName() == "LogicalRDD" and node.isStreaming()
        )

    def add(
        self,
        rows: DataFrame,
        kernel: OperatorKernel,
        *,
        by: Sequence[str],
        times: Times,
        times_in: Mapping[str, str],
        kind: str,
        hold: int,
    ) -> DataFrame:
        """Add an operator, and return a DataFrame that stands for its output."""
        arriving = empty_like(rows.schema)
        hints = tuple(name for name in (times.watermark, times.clock, times.source) if name is not None)
        combined = kernel.combine(arriving.drop(hints), Now())
        schema = spark_schema(kernel.step(kernel.initial(), combined, Now()).output)
        for name in times_in.values():
            schema = StructType([*schema.fields]).add(name, LongType())
        leaves = self.leaves(rows)
        below = [operator for operator in self.operators if operator.leaf in leaves]
        topics = {self.topics[leaf].name for leaf in leaves if leaf in self.topics}
        description = cloudpickle.dumps((kernel, tuple(by), times, dict(times_in), kind, hold))  # type: ignore[no-untyped-call]
        operator, output = self._drawings.operator(
            description,
            rows,
            lambda leaf: DrawnOperator(
                name=kind,
                kernel=kernel,
                by=tuple(by),
                rows=rows,
                arriving=arriving.schema,
                hints=hints,
                combined=combined,
                output=to_arrow_schema(schema, timezone="UTC"),
                output_type=schema,
                watermark_column=times_in.get("watermark"),
                leaf=leaf,
                leaves=leaves,
                topics=frozenset(topics).union(*(operator.topics for operator in below)),
                held_by=times.leaves if times.event_time or times.watermark else frozenset(),
                uses_clock=times.processing_time,
                hold=hold,
                level=max((operator.level for operator in below), default=-1) + 1,
            ),
            schema,
        )
        self.operators.append(replace(operator, name=f"{kind}-{len(self.operators)}"))
        return output


def _check_drawable(blueprint: Blueprint) -> None:
    known = {*blueprint.topics, *(operator.leaf for operator in blueprint.operators)}
    for rows in (*(operator.rows for operator in blueprint.operators), blueprint.rows):
        _check_steps(rows, known)
    unmarked = {operator.leaf for operator in blueprint.operators if operator.watermark_column is None}
    if any(operator.held_by & unmarked for operator in blueprint.operators):
        raise NotDrawableError("its watermark depends on the rows of an operator, as after hw.correct_clocks")
    _check_types(blueprint.rows.schema)


def _check_steps(rows: DataFrame, known: set[int]) -> None:
    plan = _analyzed(rows)
    if plan.containsPattern(_pattern(rows, "CURRENT_LIKE")):
        raise NotDrawableError("it uses the current time of Spark's batches")
    if plan.containsPattern(_pattern(rows, "EXPRESSION_WITH_RANDOM_SEED")):
        # The plan of a lane has one seed, so every batch would get the same numbers.
        raise NotDrawableError("it uses random numbers, of which Spark has to choose others for every batch")
    for node in _nodes(plan):
        name = node.nodeName()
        if name == "LogicalRDD" and node.isStreaming() and node.rdd().id() not in known:
            raise NotDrawableError("it reads another stream")
        if name == "Join" and node.isStreaming():
            sides = [child.isStreaming() for child in items(node.children())]
            static = _STATIC_SIDES.get(node.joinType().sql(), ())
            if all(sides) or sides.index(False) not in static:
                raise NotDrawableError("it joins streams with Spark's own join")
        elif node.isStreaming() and name not in _BY_ROW:
            raise NotDrawableError(f"it uses Spark's {name}")
        if any(query.isStreaming() for query in items(node.subqueries())):
            raise NotDrawableError("it has a subquery over a stream")


def _check_types(schema: StructType) -> None:
    try:
        to_arrow_schema(schema, timezone="UTC")
    except Exception as error:
        raise NotDrawableError(f"a column has a type that Arrow does not have: {error}") from error


def _analyzed(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()


def _pattern(rows: DataFrame, name: str) -> Any:
    jvm = rows.sparkSession._jvm
    assert jvm is not None
    return getattr(jvm.org.apache.spark.sql.catalyst.trees.TreePattern, name)()


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in items(plan.children()):
        yield from _nodes(child)
