"""Describes what Spark computes, from the analyzed plan of a DataFrame: its stateful operators, and the steps
(filters and computed columns) between them.

A description depends on what the program computes and on nothing else: not on the ids of Spark's expressions, the
order of filters, the names of intermediate columns, columns that nothing uses, or the session's settings. Columns
are inlined down to those of the topic (`PhysicalOperation`), so a function that is rewritten with the same meaning
is described by the same text.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headwater.spark.definition.code_prints import print_of_pickled
from headwater.spark.definition.window_words import name_windows
from headwater.spark.kernels.watermark_sources import METADATA_COLUMNS
from headwater.spark.session.scala import items

Described = dict[str, Any]

COLUMNS, WHERE, OTHERS, FUNCTIONS = "columns", "where", "others", "functions"
STEPS = "steps"
"""Part of the description of a stateful operator of Spark's own."""

_SEGMENT = {"Project", "Filter"}
_GROUPINGS = {"Deduplicate": "dropDuplicates", "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark"}
_HEADWATER = "TransformWithStateInPySpark"
_ARBITRARY = {"FlatMapGroupsInPandasWithState", _HEADWATER, "FlatMapGroupsWithState", "TransformWithState"}
_SEPARATOR = "\x01"
_DECODED = "_headwater_row"
_MISFIT = "_headwater_misfit"
_COLUMN_OF_ROW = re.compile(rf"{_DECODED}\.(?:`([^`]*)`|(\w+))")
_PLAIN_FIELD = re.compile(
    rf"(?:{_DECODED}#\d+\.)?(?P<name>.+?)(?:#\d+L?(?:-T\d+ms)?)?(?: AS (?P=name)#\d+L?(?:-T\d+ms)?)?", re.DOTALL
)
_SEED = re.compile(r"\b(randn?|uuid|random)\(-?\d+L?\)")


class PlanReader:
    """Reads the analyzed plans of one session."""

    def __init__(self, spark: SparkSession) -> None:
        assert spark._jvm is not None
        self._seq = spark._jvm.PythonUtils.toSeq
        catalyst = spark._jvm.org.apache.spark.sql.catalyst
        self._project = catalyst.plans.logical.Project
        self._segment = catalyst.planning.PhysicalOperation.unapply
        self._without_aliases = catalyst.analysis.EliminateSubqueryAliases.apply
        self._optimize = spark._jsparkSession.sessionState().optimizer().execute
        self._udf = catalyst.trees.TreePattern.PYTHON_UDF()

    def steps(self, rows: DataFrame, used: Sequence[str] | None = None) -> Described:
        """Describe the steps from the topics, or from the last stateful operators, to the columns `used`."""
        return self._steps_of([self._plan(rows)], used)

    def native(self, rows: DataFrame) -> list[Described]:
        """Describe the stateful operators of Spark's own, from the result to the topics."""
        return list(self._native(self._plan(rows), self._joined(rows)))

    def _plan(self, rows: DataFrame) -> Any:
        return self._without_aliases(rows._jdf.queryExecution().analyzed())

    def _steps_of(self, plans: Sequence[Any], used: Sequence[str] | None = None) -> Described:
        found: Described = {COLUMNS: {}, WHERE: [], OTHERS: [], FUNCTIONS: {}}
        for plan in plans:
            self._add_steps(plan, found, used)
        return _tidy(found)

    # -- steps ------------------------------------------------------------------------------------------------

    def _add_steps(self, plan: Any, found: Described, used: Sequence[str] | None) -> None:
        fields, filters, leaf = self._cut(plan)
        names = dict.fromkeys(METADATA_COLUMNS)
        for field, text in zip(items(fields), fields.mkString(_SEPARATOR).split(_SEPARATOR), strict=False):
            if (plain := _PLAIN_FIELD.fullmatch(text)) and " AS " not in plain["name"]:
                continue
            name = field.name()
            if name not in names and (used is None or name in used):
                self._note(field, found)
                if (value := _text(field)) != name and not _is_of_operator(name, value):
                    while name in found[COLUMNS]:
                        name += "'"
                    found[COLUMNS][name] = value
        for condition in items(filters):
            if _MISFIT not in (text := _text(condition)):
                self._note(condition, found)
                found[WHERE].append(text)
        if leaf.nodeName() in _SEGMENT and not _is_decoding(leaf) and not leaf.fastEquals(plan):
            self._add_steps(
                leaf, found, None
            )  # An expensive column that is used twice, which Spark does not inline.
        else:
            self._add_leaf(leaf, found)

    def _add_leaf(self, leaf: Any, found: Described) -> None:
        """Add a node that is neither a projection nor a filter, and the steps below it."""
        children = items(leaf.children())
        if not children or _is_decoding(leaf) or _is_stateful(leaf):
            return
        expressions = items(leaf.expressions())
        for expression in expressions:
            self._note(expression, found)
        found[OTHERS].append(_node_text(leaf, expressions))
        for child in children:
            self._add_steps(child, found, None)

    def _note(self, expression: Any, found: Described) -> None:
        """Add the Python functions in an expression."""
        if expression.containsPattern(self._udf):
            for function in _python_functions(expression):
                printed = print_of_pickled(function.func().command().mkString(","))
                name = function.name()
                while found[FUNCTIONS].get(name, printed) != printed:  # Two functions of the same name.
                    name += "'"
                found[FUNCTIONS][name] = printed

    # -- stateful operators -----------------------------------------------------------------------------------

    def _native(self, plan: Any, joined: list[str]) -> Iterator[Described]:
        if not plan.isStreaming():
            return
        name = plan.nodeName()
        children = items(plan.children())
        if name == "Aggregate":
            yield self._aggregate(plan)
        elif name in _GROUPINGS:
            yield self._grouping(_GROUPINGS[name], plan.keys(), children[0])
        elif name == "Distinct":
            yield self._grouping("distinct", plan.output(), children[0])
        elif name == "Join" and all(child.isStreaming() for child in children):
            kept = joined.pop(0) if joined else ""
            yield {
                "name": "join",
                "how": plan.joinType().sql().lower(),
                "on": _condition(plan),
                "rows": kept,
                STEPS: self._steps_of(children),
            }
        for child in children:
            yield from self._native(child, joined)

    def _aggregate(self, plan: Any) -> Described:
        """Describe a grouping by what its state consists of: its keys, and its functions with their buffers."""
        child = plan.child()
        results = [one for one in items(plan.aggregateExpressions()) if _is_function(one)]
        described: Described = {
            "name": "groupBy",
            "by": self._inlined(items(plan.groupingExpressions()), child),
            "what": self._inlined(results, child, types=False),
            "state": [kind for one in results for kind in _buffers(one)],
        }
        described[STEPS] = self._steps_of([child], used=())
        _, _, leaf = self._cut(child)
        if leaf.nodeName() == "Expand":
            described["windows"] = _node_text(leaf, items(leaf.expressions()))
        return described

    def _grouping(self, name: str, keys: Any, child: Any) -> Described:
        return {"name": name, "by": self._inlined(items(keys), child), STEPS: self._steps_of([child])}

    def _inlined(self, expressions: Iterable[Any], child: Any, *, types: bool = True) -> list[str]:
        """Return the texts of expressions over a plan, with computed columns replaced by their expressions."""
        found = []
        for one in expressions:
            kind = f" {one.dataType().simpleString()}" if types else ""
            if one.getClass().getSimpleName() in ("AttributeReference", "Alias"):
                (one,) = items(self._cut(self._project(self._seq([one]), child))[0])
            text = _text(one)
            found.append(text if text.startswith(("time window", "session window")) else text + kind)
        return found

    def _cut(self, plan: Any) -> tuple[Any, Any, Any]:
        """Return the computed columns and the filters at the top of a plan, and the node below them."""
        found = self._segment(plan).get()
        return found._1(), found._2(), found._3()

    def _joined(self, rows: DataFrame) -> list[str]:
        """Return the columns that each join of streams keeps: those that Spark's optimizer leaves."""
        if "Join" not in rows._jdf.queryExecution().analyzed().toString():
            return []
        return list(_join_rows(self._optimize(self._plan(rows))))


@contextmanager
def neutral_settings(spark: SparkSession) -> Iterator[None]:
    """Make the texts of expressions independent of the session: Spark writes times in the session's time zone."""
    zone = "spark.sql.session.timeZone"
    before = spark.conf.get(zone)
    spark.conf.set(zone, "UTC")
    try:
        yield
    finally:
        spark.conf.set(zone, before or "UTC")


def _join_rows(plan: Any) -> Iterator[str]:
    children = items(plan.children())
    if plan.nodeName() == "Join" and all(child.isStreaming() for child in children):
        yield "; ".join(child.schema().simpleString().removeprefix("struct")[1:-1] for child in children)
    for child in children:
        yield from _join_rows(child)


def _condition(join: Any) -> str:
    """Return the condition of a join, without the names that the user has given to its sides."""
    if not join.condition().isDefined():
        return "true"
    text = _text(join.condition().get())
    for side, rows in (("left", join.left()), ("right", join.right())):
        for alias in {column.qualifier().mkString(".") for column in items(rows.output())} - {""}:
            text = text.replace(f"{alias}.", f"{side}.")
    return text


def _is_stateful(node: Any) -> bool:
    name = node.nodeName()
    if not node.isStreaming():
        return False
    if name == "MapInArrow":  # An operator of Headwater unpacks its output.
        return bool(node.child().nodeName() == _HEADWATER)
    if name == "Join":
        return all(child.isStreaming() for child in items(node.children()))
    return name in {"Aggregate", "Distinct", *_GROUPINGS, *_ARBITRARY}


def _is_of_operator(name: str, text: str) -> bool:
    """Return whether Headwater's operators compute a column of their output so, to convert times."""
    return text == f"timestamp_micros({name})" or text.startswith("struct(timestamp_micros(")


def _is_decoding(node: Any) -> bool:
    return node.nodeName() == "Filter" and _MISFIT in node.condition().sql()


def _is_function(expression: Any) -> bool:
    return any(True for _ in _functions(expression))


def _functions(expression: Any) -> Iterator[Any]:
    """Yield the aggregate functions in an expression."""
    if expression.getClass().getSimpleName() == "AggregateExpression":
        yield expression.aggregateFunction()
        return
    for child in items(expression.children()):
        yield from _functions(child)


def _buffers(expression: Any) -> Iterator[str]:
    """Yield the types of the values that Spark keeps for the aggregate functions in an expression."""
    for function in _functions(expression):
        kinds = [buffer.dataType().simpleString() for buffer in items(function.aggBufferAttributes())]
        if kinds == ["binary"]:  # Objects, whose encoding depends on the type of their input.
            kinds = [child.dataType().simpleString() for child in items(function.children())]
        yield from kinds


def _python_functions(expression: Any) -> Iterator[Any]:
    if expression.getClass().getSimpleName() == "PythonUDF":
        yield expression
    for child in items(expression.children()):
        yield from _python_functions(child)


def _node_text(node: Any, expressions: Sequence[Any]) -> str:
    name = node.nodeName()
    if name == "EventTimeWatermark":
        return f"withWatermark({_text(expressions[0])}, {node.delay().toString()})"
    if name == "Union":
        return f"union of {node.children().size()} inputs"
    windows = [text for text in map(_text, expressions) if "time window" in text]
    if name == "Expand" and windows:
        return windows[0]
    return f"{name}({', '.join(map(_text, expressions))})"


def _text(expression: Any) -> str:
    """Return an expression as SQL, without the names by which Headwater refers to a topic's columns."""
    if expression.getClass().getSimpleName() == "Alias":
        expression = expression.child()
    text = _COLUMN_OF_ROW.sub(lambda found: found[1] or found[2], expression.sql())
    return name_windows(_SEED.sub(r"\1()", text))


def _tidy(found: Described) -> Described:
    """Drop what is empty, and what the order of steps must not change."""
    found[WHERE] = sorted(set(found[WHERE]))
    return {name: part for name, part in found.items() if part}
