"""Operators over groups of a DataFrame whose rows may be retracted; their output is changes.

Each is a function of a DataFrame, and so can be passed to `df.transform(...)`.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, IntegralType

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.aggregates.aggregates import check_what
from headwater.process.durations import micros
from headwater.process.kernel import OperatorKernel
from headwater.process.tables.aggregate import AggregateKernel
from headwater.process.tables.ranking import RankingKernel, RankLateness, RankOrder
from headwater.spark.kernels.attach import OutputTiming, attach, describe
from headwater.spark.kernels.change_lineage import Changes, change_of, changes_of, mark_of
from headwater.spark.kernels.column_names import with_metadata
from headwater.spark.kernels.watermark_sources import (
    INPUTS_KEY,
    METADATA_COLUMNS,
    SOURCE,
    WATERMARK,
    watermark_columns,
)
from headwater.spark.operators.timing import (
    Timing,
    common_idle,
    kernel_schema,
    mark_times,
    select_used,
    timing_of,
    with_marks,
)
from headwater.spark.source.decoding import EVENT_TIME_KEY, IDLE_KEY

Names = str | Sequence[str]


def aggregate(rows: DataFrame, *, what: Mapping[str, Any], by: Names = ()) -> DataFrame:
    """Compute aggregates of each group over all its rows, without windows.

    When rows are retracted, counts and sums decrease, minima and maxima are corrected, and a group without rows is
    removed.
    """
    names = _names(by)
    check_what("aggregate", what)
    rows = select_used(rows, [*names, *(one.column for one in what.values())])
    kernel = AggregateKernel.of(what, names, kernel_schema(rows), timing_of(rows).event_time)
    return _attach(rows, kernel, "aggregate", names, {"what": what})


def top(rows: DataFrame, n: int, *, order: Names, by: Names = (), rank: str | None = None) -> DataFrame:
    """Keep the first n rows of each group, by columns such as `"price desc"`; `rank` names a column for the rank.

    A row that drops out of the first n is retracted, and is inserted again when a row before it goes away.

    Rows are ordered as in Spark: nulls first if ascending and last if descending, unless the order says otherwise
    (`"price desc nulls first"`), NaN greater than every number, structs and arrays field by field. Of rows that
    are equal in these columns, the one that arrived first is first. A row that is there several times counts as
    often, where it was inserted first; one that is retracted and inserted again arrives again.
    """
    names, chosen = _names(by), RankOrder.read(order)
    kernel = RankingKernel.top(n, names, chosen, kernel_schema(rows), rank)
    parts = {"n": n, "order": chosen.texts, "rank": rank}
    return _attach(rows, kernel, "top", names, parts)


def deduplicate(
    rows: DataFrame, *, key: Names = (), keep: Literal["first", "last"] = "first", order: Names = ()
) -> DataFrame:
    """Keep one row of each key, the first or the last one; without `key`, keep each distinct row once.

    Rows are ordered by the columns of `order` as in `hw.top`, by default by event time, or by arrival if there is
    none. The last row is the first of the reverse order: of rows that are equal in these columns, the one that
    arrived last. An earlier row that arrives later replaces the one that was emitted.
    """
    if keep not in ("first", "last"):
        raise InvalidError(f"deduplicate: `keep` must be 'first' or 'last', not {keep!r}")
    time = timing_of(rows).event_time
    names = _names(key) or [name for name in rows.columns if name not in METADATA_COLUMNS]
    by_time = [time] if time is not None and key else []
    chosen = RankOrder.read(_names(order) or by_time)
    kernel = RankingKernel.top(1, names, chosen if keep == "first" else chosen.reversed, kernel_schema(rows))
    parts = {"keep": keep, "order": chosen.texts}
    return _attach(rows, kernel, "deduplicate", names, parts)


def rolling(
    rows: DataFrame,
    *,
    last: int,
    what: Mapping[str, Any],
    by: Names = (),
    order: Names = (),
    lateness: str | None = None,
) -> DataFrame:
    """Add to each row the aggregates of the `last` rows of its group up to and including it.

    Rows are ordered by the columns of `order` as in `hw.top`, by default by event time; equal ones are in the
    order of their arrival. The aggregates `first`, `last` and `collect` follow this order. A row that arrives
    between others, or is retracted, changes the results of those after it, so all rows are kept. With `lateness`,
    rows must be ordered by event time first; then only the rows within `lateness` of the watermark are kept, and
    as many before them as their aggregates need. Rows that arrive later go to the late ledger.
    """
    time = timing_of(rows).event_time
    names, ordered = _names(by), _names(order) or ([] if time is None else [time])
    if not ordered:
        raise InvalidError("rolling: the rows have no event time; name the columns to order them by: `order=`")
    chosen, late = RankOrder.read(ordered), None
    if lateness is not None:
        if time is None or chosen.columns[0] != time or chosen.descending[0]:
            raise InvalidError(
                f"rolling: with `lateness` rows must be ordered by their event time first, not by {ordered[0]!r}: "
                "otherwise it is unknown which rows can be discarded; leave out `lateness` or `order`"
            )
        late = RankLateness(time, micros(lateness))
    kernel = RankingKernel.rolling(last, what, names, chosen, kernel_schema(rows), late)
    parts = {"last": last, "what": what, "order": chosen.texts, "lateness": lateness}
    hold = 0 if late is None else late.duration
    return _attach(rows, kernel, "rolling", names, parts, hold=hold)


def union(first: DataFrame, *others: DataFrame) -> DataFrame:
    """Combine several DataFrames with the same columns into one DataFrame of changes; inputs may be changes, too.

    A row that is in several inputs is in the result several times; `hw.deduplicate` keeps one. If all inputs have
    their event time in the same column, the result has it, too, and its watermark is the minimum of theirs;
    otherwise the result has no event time.
    """
    sides = (first, *others)
    timings = [timing_of(rows) for rows in sides]
    if any(timing.estimate is not None for timing in timings):
        raise InvalidError(
            "union: a topic with its own `watermark` function cannot be combined with others; declare it with "
            "`delay` instead"
        )
    times = {timing.event_time for timing in timings}
    time = times.pop() if len(times) == 1 and all(timing.mark is not None for timing in timings) else None
    parts, inputs = [], 0
    for rows, timing in zip(sides, timings, strict=True):
        parts.append(_as_changes(rows, timing, None if time is None else inputs))
        inputs += timing.inputs
    columns = set(parts[0].columns)
    for part in parts[1:]:
        if different := columns ^ set(part.columns):
            raise InvalidError(
                f"union: not all inputs have a column {', '.join(sorted(different))}; select the same columns"
            )
    _check_types(sides)
    both = reduce(lambda one, other: one.unionByName(other), parts)
    retracts = any(changes is not None and changes.retracts for changes in map(changes_of, sides))
    both = with_metadata(both, CHANGE, mark_of(Changes("union", retracts)))
    if time is None:
        return both
    marks: dict[str, Any] = {
        EVENT_TIME_KEY: True,
        INPUTS_KEY: inputs,
        **watermark_columns("union", WATERMARK, SOURCE),
    }
    if (idle_after := common_idle(timings)) is not None:
        marks[IDLE_KEY] = idle_after
    return with_metadata(both, time, marks)


def _check_types(sides: Sequence[DataFrame]) -> None:
    """Raise if a column has types that Spark would convert; integers of different sizes become the larger one."""
    for field in sides[0].schema.fields:
        if field.name in METADATA_COLUMNS:
            continue
        for rows in sides[1:]:
            kinds = field.dataType, rows.schema[field.name].dataType
            if kinds[0].simpleString() != kinds[1].simpleString() and not all(map(_is_integer, kinds)):
                raise InvalidError(
                    f"union: the column {field.name!r} is {kinds[0].simpleString()} in one input and "
                    f"{kinds[1].simpleString()} in another; cast one of them to the other's type"
                )


def _is_integer(kind: DataType) -> bool:
    return isinstance(kind, IntegralType)


def _attach(
    rows: DataFrame,
    kernel: OperatorKernel,
    kind: str,
    by: Sequence[str],
    parts: Mapping[str, Any],
    *,
    hold: int = 0,
) -> DataFrame:
    """Attach a kernel whose output keeps the event time of its rows, if they have one."""
    timing = timing_of(rows)
    return attach(
        with_marks(rows, timing),
        kernel,
        describe(kind, kernel, {"by": list(by), **parts}, rows),
        by=by,
        kind=kind,
        times=mark_times(timing),
        output=OutputTiming(event_time=timing.event_time, has_watermark=timing.mark is not None, hold=hold),
    )


def _as_changes(rows: DataFrame, timing: Timing, first: int | None) -> DataFrame:
    """Add `_change`, and `_watermark` with the source's number unless `first` is None."""
    changes = rows.withColumn(CHANGE, change_of(rows))
    changes = changes if timing.event_time is None else with_metadata(changes, timing.event_time, {})
    if first is None or timing.mark is None:
        return changes.drop(WATERMARK, SOURCE)
    return changes.withColumns({WATERMARK: timing.mark.cast("long"), SOURCE: timing.source(first)})


def _names(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
