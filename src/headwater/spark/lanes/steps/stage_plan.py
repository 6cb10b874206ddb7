"""Runs steps of Spark over the rows of a batch, with a physical plan that is made once.

Spark analyses, optimizes and plans a query for every micro-batch, which takes longer than to process a few hundred
rows. A `StagePlan` keeps the physical plan of a DataFrame over placeholders (`blueprint`). For each batch the
placeholders are replaced by scans of the batch's rows, which copies the nodes above them, and the plan is run.

Small batches run without generated code, in one task, and their rows go from and to the driver as Arrow bytes;
several stages run as one job (`union_of`). Large batches run in as many tasks as their rows have
partitions.
"""

import shutil
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_TAG = "_tag"
_LENGTH = struct.Struct(">i")
_NARROW = {"CoalesceExec", "ExpandExec", "FilterExec", "GenerateExec", "ProjectExec", "UnionExec"}

_COMMON = {
    # A placeholder is a stream, of which every batch is processed here.
    "spark.sql.streaming.unsupportedOperationCheck": "false",
    # It would plan each batch again.
    "spark.sql.adaptive.enabled": "false",
}
_SMALL = {
    **_COMMON,
    # The rows of a small batch stay in the driver, however wide they are.
    "spark.sql.execution.arrow.localRelationThreshold": str(2**31 - 1),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.leafNodeDefaultParallelism": "1",
}

_ARROW_ROWS_MAX, _ARROW_BYTES_MAX = 1 << 20, 1 << 30


def placeholder(spark: SparkSession, schema: StructType, *, streaming: bool = True) -> tuple[DataFrame, int]:
    """Return an empty DataFrame that stands for rows to come, and the number by which it is found in a plan."""
    session, jvm = spark._jsparkSession, spark._jvm
    assert jvm is not None
    row = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.InternalRow")
    nothing = session.sparkContext().emptyRDD(jvm.scala.reflect.ClassTag.apply(row))
    frame = session.internalCreateDataFrame(nothing, session.parseDataType(schema.json()), streaming)
    return DataFrame(frame, spark), int(nothing.id())


class LaneSession:
    """A copy of an app's session with the settings for stages; small batches have one of their own."""

    def __init__(self, spark: SparkSession, *, small: bool) -> None:
        self.spark = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
        for name, value in (_SMALL if small else _COMMON).items():
            self.spark.conf.set(name, value)
        assert spark._jvm is not None
        jvm = self._jvm = spark._jvm
        sql = jvm.org.apache.spark.sql
        self._java = self.spark._jsparkSession
        self._activate = sql.classic.SparkSession.setActiveSession
        self._execution = getattr(getattr(sql.execution, "QueryExecution$"), "MODULE$")
        self._arrow = getattr(getattr(sql.execution.arrow, "ArrowConverters$"), "MODULE$")
        self._none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        self._seq = jvm.PythonUtils.toSeq
        self._write = jvm.org.apache.spark.api.python.PythonRDD.writeIteratorToStream
        self._stream, self._data = jvm.java.io.FileOutputStream, jvm.java.io.DataOutputStream
        self._task = getattr(getattr(jvm.org.apache.spark, "TaskContext$"), "MODULE$").empty
        self._read_batches = jvm.PythonSQLUtils.readArrowStreamFromFile
        self.no_local_rows = self._seq([])
        self._folder = tempfile.mkdtemp(prefix="headwater-lane-")
        self.close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        """Removes its temporary files."""
        self._local_scan = sql.execution.LocalTableScanExec
        self._scan = sql.execution.RDDScanExec

    def _path(self) -> str:
        """Return the path of a file for rows on their way to and from Java, one for each thread."""
        return f"{self._folder}/{threading.get_ident()}"

    @cached_property
    def _preparations(self) -> Any:
        return self._execution.preparations(self._java, self._none, False)

    def activate(self) -> None:
        """Make this the session of the current thread: nodes of plans look for its settings when they are made.

        Much of PySpark activates another one, `createDataFrame` for example.
        """
        self._activate(self._java)

    def local_rows(self, table: pa.Table, schema_json: str) -> Any:
        """Return rows of a table as Java objects."""
        path = self._path()
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        batches = self._read_batches(path)
        return self._arrow.toDataFrame(batches, schema_json, self._java).logicalPlan().data()

    def no_rows(self) -> Any:
        """Return an RDD without rows, for `StagePlan.frame`."""
        row = self._jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.InternalRow")
        return self._java.sparkContext().emptyRDD(self._jvm.scala.reflect.ClassTag.apply(row))

    def table(self, rows: DataFrame) -> pa.Table:
        """Compute rows; their times are in UTC, whatever the time zone of the session is."""
        return rows.toArrow().cast(to_arrow_schema(rows.schema, timezone="UTC"))

    def local_scan(self, leaf: Any, rows: Any) -> Any:
        """Return a scan of rows in the driver in place of a placeholder's."""
        return self._local_scan(leaf.output(), rows, self._none, False)

    def scan(self, leaf: Any, rows: Any) -> Any:
        """Return a scan of an RDD in place of a placeholder's."""
        return self._scan(
            leaf.output(), rows, "ExistingRDD", leaf.outputPartitioning(), leaf.outputOrdering(), self._none
        )

    def with_children(self, node: Any, children: Sequence[Any]) -> Any:
        return node.withNewChildren(self._seq(list(children)))

    def collected(self, plan: Any, schema: Any, arrow: pa.Schema, *, is_narrow: bool) -> pa.Table:
        """Run a plan and return its rows, with times in UTC.

        A plan that `is_narrow` has one task without Python, and is run in this thread: a job would take longer.
        """
        ready = self._prepared(plan)
        parts = []
        if is_narrow:
            rdd = ready.execute()
            parts = rdd.partitions()
        if len(parts) == 1:
            rows = rdd.iterator(parts[0], self._task())
        else:  # Also if there are no rows, hence no tasks.
            rows = ready.executeCollectIterator()._2()
        found = self._arrow.toBatchWithSchemaIterator(
            rows, schema, _ARROW_ROWS_MAX, _ARROW_BYTES_MAX, "UTC", False, False
        )
        # In a file: Py4J would decode an array of bytes one by one.
        path = self._path()
        out = self._stream(path)
        self._write(found, self._data(out))
        out.close()
        tables = list(_streams(Path(path).read_bytes()))
        return pa.concat_tables(tables) if tables else arrow.empty_table()

    def frame(self, plan: Any, schema: Any) -> DataFrame:
        """Return a DataFrame of the rows of a plan."""
        rows = self._prepared(plan).execute()
        return DataFrame(self._java.internalCreateDataFrame(rows, schema, False), self.spark)

    def _prepared(self, plan: Any) -> Any:
        return self._execution.prepareForExecution(self._preparations, plan)


@dataclass(frozen=True)
class SmallRows:
    """Rows of a placeholder in a small batch, which Java gets when it needs them."""

    table: pa.Table
    schema_json: str
    session: LaneSession

    @cached_property
    def java(self) -> Any:
        """The rows as Java objects."""
        return self.session.local_rows(self.table, self.schema_json)


@dataclass(frozen=True, slots=True)
class _Node:
    """A node of a physical plan with the nodes below it that lead to placeholders."""

    java: Any
    children: tuple["_Node", ...] = ()
    leaf: int | None = None
    """The number of the placeholder, if it is the scan of one."""
    is_fixed: bool = False
    """True if no placeholder is below it: a table that is not a stream."""


class StagePlan:
    """The physical plan of a DataFrame over placeholders."""

    def __init__(self, rows: DataFrame, leaves: frozenset[int]) -> None:
        self._root = _read(rows._jdf.queryExecution().sparkPlan(), leaves)
        self.is_narrow = _is_narrow(self._root)
        """True if it has one task that only computes columns in Java."""
        self.arrow = to_arrow_schema(rows.schema, timezone="UTC")
        """The types of its rows."""
        self._schema = rows.sparkSession._jsparkSession.parseDataType(rows.schema.json())

    def run(self, session: LaneSession, rows: Mapping[int, SmallRows | None]) -> pa.Table:
        """Run over the rows of each placeholder, and return the result; None stands for no rows."""
        session.activate()

        def scan(leaf: _Node) -> Any:
            found = rows[_number(leaf)]
            return session.local_scan(leaf.java, session.no_local_rows if found is None else found.java)

        plan = self._filled(session, self._root, scan)
        return session.collected(plan, self._schema, self.arrow, is_narrow=self.is_narrow)

    def frame(self, session: LaneSession, rdds: Mapping[int, Any]) -> DataFrame:
        """Return a DataFrame that runs over the RDD of each placeholder."""
        session.activate()
        plan = self._filled(session, self._root, lambda leaf: session.scan(leaf.java, rdds[_number(leaf)]))
        return session.frame(plan, self._schema)

    def _filled(self, session: LaneSession, node: _Node, scan: Callable[[_Node], Any]) -> Any:
        """Return the plan with each placeholder replaced."""
        if node.leaf is not None:
            return scan(node)
        if node.is_fixed:
            return node.java.clone()
        return session.with_children(node.java, [self._filled(session, child, scan) for child in node.children])


def _streams(data: bytes) -> Iterator[pa.Table]:
    """Yield the tables in Arrow streams, each of which follows its length."""
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        yield pa.ipc.open_stream(pa.py_buffer(data).slice(at, length)).read_all()
        at += length


def _number(leaf: _Node) -> int:
    assert leaf.leaf is not None
    return leaf.leaf


def _read(node: Any, leaves: frozenset[int]) -> _Node:
    if node.getClass().getSimpleName() == "RDDScanExec" and (number := int(node.rdd().id())) in leaves:
        return _Node(node, leaf=number)
    children = node.children()
    found = tuple(_read(children.apply(number), leaves) for number in range(children.size()))
    return _Node(node, found, is_fixed=all(child.is_fixed for child in found))


def _is_narrow(node: _Node) -> bool:
    """Return whether a plan has one task that only computes columns in Java."""
    is_simple = node.leaf is not None or node.java.getClass().getSimpleName() in _NARROW
    return is_simple and all(_is_narrow(child) for child in node.children)


def numbered(rows: DataFrame) -> DataFrame:
    """Name the columns by their numbers: two of them may have the same name, and a name may have a dot."""
    return rows.toDF(*(f"_{number}" for number in range(len(rows.columns))))


def union_of(stages: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of several DataFrames as one, in one task: a number, and a struct column for each."""
    nothing = [F.lit(None).cast(stage.schema).alias(f"_{number}") for number, stage in enumerate(stages)]
    parts = []
    for number, rows in enumerate(stages):
        columns = list(nothing)
        columns[number] = F.struct(*rows.columns).alias(f"_{number}")
        parts.append(rows.select(F.lit(number).alias(_TAG), *columns))
    return reduce(lambda one, other: one.unionAll(other), parts).coalesce(1)


def split(table: pa.Table, number: int) -> list[pa.Table]:
    """Return the rows of each DataFrame of a union."""
    tags = table.column(_TAG)
    found = []
    for n in range(number):
        structs = table.column(f"_{n}").filter(pc.equal(tags, n))
        arrays = [chunk.flatten() for chunk in structs.chunks]
        names = [field.name for field in structs.type]
        columns = [
            pa.chunked_array([chunk[at] for chunk in arrays], structs.type[at].type) for at in range(len(names))
        ]
        found.append(pa.Table.from_arrays(columns, names=names))
    return found
