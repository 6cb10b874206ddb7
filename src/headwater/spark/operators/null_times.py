"""Finds out whether rows may have no event time.

A topic's own event time is never null: a record without it is a dead letter. Spark drops the mark of the event
time from a column that is computed from it, so among the rows that have the mark, only those of Spark's unions and
outer joins can lack the time, until a filter such as `at IS NOT NULL` leaves out the rows that do.
"""

import json
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headwater.spark.session.scala import items
from headwater.spark.source.decoding import EVENT_TIME_KEY

_NULLABLE_SIDES = {"LEFT OUTER": (1,), "RIGHT OUTER": (0,), "FULL OUTER": (0, 1)}
"""The sides of a join whose columns may be null in the result."""


def may_lack_time(rows: DataFrame) -> bool:
    """Return whether the event time of some rows may be null."""
    return _may_be_null(rows._jdf.queryExecution().analyzed())


def _may_be_null(node: Any) -> bool:
    children = items(node.children())
    match node.nodeName():
        case "Filter":
            if _excludes_null(node, _marked(node)):
                return False
        case "Union":
            place = _marked(node)[0]
            if not all(place in _marked(child) for child in children):
                return True
        case "Join":
            nullable = _NULLABLE_SIDES.get(node.joinType().sql(), ())
            if any(_marked(children[side]) for side in nullable):
                return True
    return any(_may_be_null(child) for child in children if _marked(child))


def _excludes_null(node: Any, places: list[int]) -> bool:
    """Return whether Spark infers from the conditions of a filter that columns are not null."""
    output, constraints = node.output(), node.constraints().iterator()
    known = set()
    while constraints.hasNext():
        constraint = constraints.next()
        if constraint.nodeName() == "IsNotNull" and constraint.child().nodeName() == "AttributeReference":
            known.add(constraint.child().exprId().id())
    return all(output.apply(place).exprId().id() in known for place in places)


def _marked(node: Any) -> list[int]:
    """Return the places of the columns of a step that are marked as event time."""
    fields = StructType.fromJson(_json(node)).fields
    return [
        place
        for place, field in enumerate(fields)
        if field.metadata.get(EVENT_TIME_KEY) and not isinstance(field.dataType, StructType)
    ]


def _json(node: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.schema().json())
    return found
