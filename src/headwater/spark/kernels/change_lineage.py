"""Retractions as a property of a DataFrame: follows `_change` through the steps between two operators.

Every operator marks the column `_change` of its output with metadata: its name, and whether it may retract rows.
`changes_of` reads Spark's plan of a DataFrame from the top down to the nearest operators. A step that loses the
column, or that would count retracted rows as inserted ones, is refused.

Steps that treat each row by itself are allowed, and so are those that use `_change` themselves: a condition or an
expression with it, or an aggregate of it. After such a step `_change` can be left out.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ByteType, IntegerType, LongType, ShortType

from headwater.change import CHANGE
from headwater.errors import InvalidError

MARK_KEY = "headwater.change"
"""Metadata of the column `_change`: the operator whose output it is, and whether that retracts rows."""

STEP_TEXT_MAX = 120

_BY_ROW = {
    "ArrowEvalPython", "BatchEvalPython", "CTERelationDef", "CollectMetrics", "EventTimeWatermark", "Expand",
    "Filter", "Generate", "Project", "RebalancePartitions", "Repartition", "RepartitionByExpression",
    "ResolvedHint", "Sort", "Subquery", "SubqueryAlias", "TypedFilter", "UpdateEventTimeWatermarkColumn", "View",
    "WithCTE",
}  # fmt: skip
"""Spark's steps that treat each row by itself."""

_PASS_ON = {
    "Aggregate": "use hw.aggregate instead of groupBy",
    "Deduplicate": "use hw.deduplicate instead of dropDuplicates or distinct",
    "DeduplicateWithinWatermark": "use hw.deduplicate instead of dropDuplicatesWithinWatermark",
    "Distinct": "use hw.deduplicate instead of distinct",
    "Except": "use hw.join(..., how='anti')",
    "Except All": "use hw.join(..., how='anti')",
    "GlobalLimit": "use hw.top instead of limit",
    "Intersect": "use hw.join(..., how='semi')",
    "Intersect All": "use hw.join(..., how='semi')",
    "Join": "use hw.join, which corrects its result",
    "LocalLimit": "use hw.top instead of limit",
    "Union": "use unionByName or hw.union, so that '_change' stays in its column",
    "Window": "use hw.top or hw.rolling instead of a window function",
}
_OTHERWISE = "apply it before the operator, or to the rows of a view"
_IN_FUNCTION = "return '_change' from that function, as it is in the rows that it gets"
_FUNCTIONS = re.compile(r"(FlatMap|Map|TransformWith|CoGroup|ScriptTransformation)\w*")

_SUBQUERY = "join the rows with hw.join(..., how='semi')"

_IDENTITIES = re.compile(r"#\d+L?")


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows that have a column `_change`, and the operator that added it; None for rows of a source.

    `used` means that a step after the operator has used the column for more than to pass it on.
    """

    operator: str | None
    retracts: bool
    used: bool = False

    @property
    def is_unsafe(self) -> bool:
        """True if a step that ignores `_change` would give a wrong result."""
        return self.retracts and not self.used

    def __str__(self) -> str:
        return "the column '_change'" if self.operator is None else f"hw.{self.operator}"


class LostChangesError(InvalidError):
    """A step has lost the column `_change`, or would count retracted rows as inserted ones."""

    def __init__(self, changes: Changes, step: str, *, is_dropped: bool, way_out: str) -> None:
        self.changes, self.step, self.is_dropped, self.way_out = changes, step, is_dropped, way_out
        super().__init__(
            f"the step {step!r} would count rows that {changes} retracts as inserted ones: {way_out}"
            if not is_dropped
            else lost_columns_message([CHANGE], str(changes), step)
        )


def lost_columns_message(names: Sequence[str], origin: str, step: str) -> str:
    """Return the message for columns that a step has dropped."""
    reasons = []
    if CHANGE in names:
        reasons.append("retracted rows would count as inserted ones")
    if len(names) > (CHANGE in names):
        reasons.append("other rows would be late")
    shown = ", ".join(map(repr, names))
    return (
        f"the step {step!r} drops {shown} of {origin}, and without {'it' if len(names) == 1 else 'them'} "
        f"{' and '.join(reasons)}: keep {shown} in that `select`"
    )


# -- the column -----------------------------------------------------------------------------------------------


def mark_of(changes: Changes) -> dict[str, Any]:
    """Return the metadata of a column `_change`."""
    return {MARK_KEY: {"operator": changes.operator, "retracts": changes.retracts}}


def change_of(rows: DataFrame) -> Column:
    """Return the column `_change` of rows as tinyint: 1 if it is null or missing, as these rows are inserted."""
    inserted = F.lit(1).cast("tinyint")
    if CHANGE not in rows.columns:
        return inserted.alias(CHANGE, metadata=mark_of(Changes(None, retracts=False)))
    changes = changes_of(rows) or Changes(None, retracts=True)
    return F.coalesce(F.col(CHANGE).cast("tinyint"), inserted).alias(CHANGE, metadata=mark_of(changes))


def with_change(rows: DataFrame) -> DataFrame:
    """Return rows without nulls in `_change`, if they have that column."""
    return rows.withColumn(CHANGE, change_of(rows)) if CHANGE in rows.columns else rows


def check_change_type(rows: DataFrame) -> None:
    """Raise InvalidError if rows have a column `_change` that is not an integer."""
    if CHANGE not in rows.columns:
        return
    kind = rows.schema[CHANGE].dataType
    if not isinstance(kind, ByteType | ShortType | IntegerType | LongType):
        raise InvalidError(
            f"the column {CHANGE!r} is {kind.simpleString()}, expected an integer: 1 inserts the row, -1 retracts "
            "it; cast it, or rename it if it means something else"
        )


# -- the plan -------------------------------------------------------------------------------------------------


def changes_of(rows: DataFrame) -> Changes | None:
    """Return whether rows are changes; raise LostChangesError if a step has lost that they are."""
    return _changes(rows._jdf.queryExecution().analyzed())


def dropping_step(rows: DataFrame, name: str) -> str:
    """Return the text of the step of a DataFrame that has dropped a column."""
    node = rows._jdf.queryExecution().analyzed()
    while (children := _sequence(node.children())) and name not in _columns(children[0]):
        node = children[0]
    return _text(node)


def _changes(node: Any) -> Changes | None:
    columns, children = _columns(node), _sequence(node.children())
    mark = _mark(columns)
    if mark is not None and not any(_mark(_columns(child)) == mark for child in children):
        return mark  # An operator's output: its input was checked when it was attached.
    if not children:
        return Changes(None, retracts=True) if CHANGE in columns else None
    for query in _sequence(node.subqueries()):
        found = _changes(query)
        if found is not None and found.is_unsafe:
            raise LostChangesError(found, _text(node), is_dropped=False, way_out=_SUBQUERY)
    return _after(node, columns, [_changes(child) for child in children])


def _after(node: Any, columns: Mapping[str, Any], below: Sequence[Changes | None]) -> Changes | None:
    """Return whether the rows of a step are changes, from whether its inputs are."""
    kind = node.nodeName()
    made = Changes(None, retracts=True) if CHANGE in columns else None
    if kind == "WithCTE":
        return below[-1]
    known = [changes for changes in below if changes is not None]
    first = next((changes for changes in known if changes.is_unsafe), known[0] if known else None)
    if first is None:
        return made
    if kind in ("Aggregate", "Filter", "Project", "Window") and _computes_with_change(node):
        first = replace(first, used=True)
    if kind == "Union":
        _check_union(node, below)
    elif kind == "Join":
        _check_join(node, below)
    elif first.is_unsafe and kind not in _BY_ROW and (made is None or not _FUNCTIONS.fullmatch(kind)):
        way_out = _IN_FUNCTION if _FUNCTIONS.fullmatch(kind) else _PASS_ON.get(kind, _OTHERWISE)
        raise LostChangesError(first, _text(node), is_dropped=False, way_out=way_out)
    if made is None:
        if first.is_unsafe:
            raise LostChangesError(first, _text(node), is_dropped=True, way_out="")
        return None
    is_new = kind == "Aggregate" or _FUNCTIONS.fullmatch(kind) or (kind == "Project" and _replaces_change(node))
    return made if is_new else first


def _check_union(node: Any, below: Sequence[Changes | None]) -> None:
    """Raise if the rows of an input have `_change` in another column than the union has."""
    names = _names(node)
    for child, changes in zip(_sequence(node.children()), below, strict=True):
        if changes is None or not changes.is_unsafe:
            continue
        if CHANGE not in names or _names(child).index(CHANGE) != names.index(CHANGE):
            raise LostChangesError(changes, _text(node), is_dropped=False, way_out=_PASS_ON["Union"])


def _check_join(node: Any, below: Sequence[Changes | None]) -> None:
    """Raise unless each row of the one side that changes is joined by itself, with rows that do not change."""
    left, right = (changes is not None and changes.is_unsafe for changes in below)
    kind = node.joinType().sql()
    allowed = {
        "INNER": not (left and right),
        "CROSS": not (left and right),
        "LEFT OUTER": not right,
        "RIGHT OUTER": not left,
        "LEFT SEMI": not right,
        "LEFT ANTI": not right,
    }
    if not allowed.get(kind, not (left or right)):
        changes = below[1] if right else below[0]
        assert changes is not None
        raise LostChangesError(changes, _text(node), is_dropped=False, way_out=_PASS_ON["Join"])


def _computes_with_change(node: Any) -> bool:
    """Return whether an expression of a step uses `_change` for more than to pass it on or to rename it."""
    return any(
        CHANGE in {attribute.name() for attribute in _sequence(expression.references().toSeq())}
        for expression in _sequence(node.expressions())
        if not _is_plain(expression)
    )


def _replaces_change(node: Any) -> bool:
    """Return whether a projection computes a new column `_change`."""
    return any(e.name() == CHANGE and not _is_plain(e) for e in _sequence(node.projectList()))


def _is_plain(expression: Any) -> bool:
    """Return whether an expression is a column, also under another name, or a column that an operator marked."""
    kind = expression.getClass().getSimpleName()
    if kind == "Alias":
        return MARK_KEY in expression.metadata().json() or _is_plain(expression.child())
    return bool(kind == "AttributeReference")


def _columns(node: Any) -> dict[str, Any]:
    """Return the columns of a step's rows, with their metadata."""
    return {field["name"]: field["metadata"] for field in json.loads(node.schema().json())["fields"]}


def _names(node: Any) -> list[str]:
    return [attribute.name() for attribute in _sequence(node.output())]


def _mark(columns: Mapping[str, Any]) -> Changes | None:
    mark = columns.get(CHANGE, {}).get(MARK_KEY)
    return None if mark is None else Changes(mark.get("operator"), bool(mark["retracts"]))


def _text(node: Any) -> str:
    text = _IDENTITIES.sub("", node.simpleString(25))
    return text if len(text) <= STEP_TEXT_MAX else f"{text[:STEP_TEXT_MAX]}..."


def _sequence(found: Any) -> list[Any]:
    return [found.apply(number) for number in range(found.size())]
