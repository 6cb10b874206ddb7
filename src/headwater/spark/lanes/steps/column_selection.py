"""Computes steps that only choose, rename and nest columns, in Arrow and without Spark.

Most stages of an app are such steps: `select` and `drop` by users, and conversions of times and windows by
operators. In a small batch, Spark needs several milliseconds for a stage, and Arrow well below one.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.spark.session.scala import items

ColumnOf = Callable[[pa.Table], pa.ChunkedArray]
"""Computes a column of the result from the rows of the placeholder."""

_MICROS, _TIME = pa.int64(), pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """The steps of a stage over one placeholder, `leaf`."""

    leaf: int
    arrow: pa.Schema
    """The types of its rows, whose columns are numbered (`stage_plan.numbered`)."""
    _columns: tuple[ColumnOf, ...]

    @classmethod
    def of(cls, rows: DataFrame, leaves: Collection[int], unused: Collection[str] = ()) -> Self | None:
        """Return the steps that compute rows from a placeholder; None if Spark has to run them.

        The columns `unused` are null, whatever the steps are.
        """
        plan = rows._jdf.queryExecution().optimizedPlan()
        output, projects = plan.output(), []
        while plan.nodeName() == "Project":
            projects.append(plan.projectList())
            plan = plan.child()
        if plan.nodeName() != "LogicalRDD" or int(plan.rdd().id()) not in leaves:
            return None
        known: dict[int, ColumnOf | None] = {_id(each): _place(at) for at, each in enumerate(items(plan.output()))}
        for project in reversed(projects):
            known = {_id(each): _column(each, known) for each in items(project)}
        arrow = _arrow(output)
        columns = [
            _nulls(field.type) if name in unused else known[_id(each)]
            for name, field, each in zip(rows.columns, arrow, items(output), strict=True)
        ]
        computed = tuple(column for column in columns if column is not None)
        if len(computed) < len(columns):
            return None
        selection = cls(int(plan.rdd().id()), arrow, computed)
        try:
            selection.run(_arrow(plan.output()).empty_table())
        except pa.ArrowException:  # Arrow does not convert these types.
            return None
        return selection

    def run(self, rows: pa.Table) -> pa.Table:
        """Compute the result from the rows of the placeholder."""
        columns = [column(rows) for column in self._columns]
        kinds = zip(columns, self.arrow.types, strict=True)  # They may differ in the names of inner fields.
        columns = [column if column.type == kind else column.cast(kind) for column, kind in kinds]
        return pa.Table.from_arrays(columns, schema=self.arrow)


def _column(expression: Any, known: Mapping[int, ColumnOf | None]) -> ColumnOf | None:
    """Return the function for an expression of Spark's; None if it does more than to choose, rename and nest."""
    match expression.getClass().getSimpleName():
        case "AttributeReference":
            return known[_id(expression)]
        case "Alias":
            return _column(expression.child(), known)
        case "UnixMicros":
            return _cast(_column(expression.child(), known), _MICROS)
        case "MicrosToTimestamp":  # Times are microseconds since 1970, in UTC.
            return _cast(_column(expression.child(), known), _TIME)
        case "CreateNamedStruct":
            values = [_column(each, known) for each in items(expression.valExprs())]
            computed = [column for column in values if column is not None]
            fields = list(_arrow_of(json.loads(expression.dataType().json())))
            return _struct(computed, fields) if len(computed) == len(values) else None
        case _:
            return None


def _place(at: int) -> ColumnOf:
    return lambda rows: rows.column(at)


def _cast(column: ColumnOf | None, kind: pa.DataType) -> ColumnOf | None:
    return None if column is None else lambda rows: column(rows).cast(kind)


def _struct(columns: list[ColumnOf], fields: list[pa.Field]) -> ColumnOf:
    def struct(rows: pa.Table) -> pa.ChunkedArray:
        arrays = [column(rows).combine_chunks() for column in columns]
        return pa.chunked_array([pa.StructArray.from_arrays(arrays, fields=fields)])

    return struct


def _nulls(kind: pa.DataType) -> ColumnOf:
    return lambda rows: pa.chunked_array([pa.nulls(rows.num_rows, kind)])


def _arrow(output: Any) -> pa.Schema:
    """Return the types of the columns of a plan, with numbers as names."""
    fields = [
        {
            "name": f"_{number}",
            "type": json.loads(each.dataType().json()),
            "nullable": each.nullable(),
            "metadata": {},
        }
        for number, each in enumerate(items(output))
    ]
    return _arrow_of({"type": "struct", "fields": fields})


def _arrow_of(struct: dict[str, Any]) -> pa.Schema:
    return to_arrow_schema(StructType.fromJson(struct), timezone="UTC")


def _id(expression: Any) -> int:
    return int(expression.exprId().id())
