"""Operators over the groups of a DataFrame whose rows may be taken back; what comes out are changes.

Each is a function of a DataFrame, and so can be given to `df.transform(...)`.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.durations import micros
from headwater.process.tables.aggregate import AggregateKernel
from headwater.process.tables.ranking import RankingKernel, RankLateness, RankOrder
from headwater.spark.kernels.watermark_sources import INPUTS_KEY, SOURCE, WATERMARK
from headwater.spark.operators.tables import Timing, kernel_schema, only, run_over, timing_of
from headwater.spark.source.decoding import EVENT_TIME_KEY, IDLE_KEY

Names = str | Sequence[str]


def aggregate(rows: DataFrame, *, what: Mapping[str, Any], by: Names = ()) -> DataFrame:
    """Compute aggregates of each group, over all rows that are there: without windows, and without end.

    Counts and sums go down when rows are taken back, minima and maxima recover, and a group without rows is gone.
    """
    names = _names(by)
    rows = only(rows, [*names, *(one.column for one in what.values())])
    kernel = AggregateKernel.of(what, names, kernel_schema(rows), timing_of(rows).event_time)
    return run_over(rows, kernel, by=names, kind="aggregate", meaning={"what": what})


def top(rows: DataFrame, n: int, *, order: Names, by: Names = (), rank: str | None = None) -> DataFrame:
    """The first n rows of each group, by columns such as `"price desc"`; `rank` names a column for the place.

    A row that is pushed out is taken back, and comes again when one before it goes. Of equal rows the one that
    came first is first.
    """
    names = _names(by)
    kernel = RankingKernel.top(n, names, RankOrder.read(order), kernel_schema(rows), rank)
    meaning = {"n": n, "order": _names(order), "rank": rank}
    return run_over(rows, kernel, by=names, kind="top", meaning=meaning)


def deduplicate(
    rows: DataFrame, *, key: Names = (), keep: Literal["first", "last"] = "first", order: Names = ()
) -> DataFrame:
    """One row of each key, the first or the last one; without `key`, each row once.

    They are ordered by the columns of `order`, or by event time, or, where there is none, by arrival. If an
    earlier row comes later, it takes the place of the one that came out.
    """
    if keep not in ("first", "last"):
        raise InvalidError(f"deduplicate: `keep` is 'first' or 'last', not {keep!r}")
    time = timing_of(rows).event_time
    names = _names(key) or [name for name in rows.columns if name not in (CHANGE, WATERMARK, SOURCE)]
    by_time = [time] if time is not None and key else []
    chosen = RankOrder.read(_names(order) or by_time)
    kernel = RankingKernel.top(1, names, chosen if keep == "first" else chosen.reversed, kernel_schema(rows))
    meaning = {"keep": keep, "order": list(chosen.columns)}
    return run_over(rows, kernel, by=names, kind="deduplicate", meaning=meaning)


def rolling(
    rows: DataFrame,
    *,
    last: int,
    what: Mapping[str, Any],
    by: Names = (),
    order: Names = (),
    lateness: str | None = None,
) -> DataFrame:
    """Each row with aggregates of it and those before it in its group, `last` in all.

    They are ordered by the columns of `order`, or by event time. A row that comes between others, or is taken
    back, changes what was said of those behind it, so all are remembered. With `lateness`, and ordered by event
    time first, only those are that are not further behind the watermark, and as many before them as a window
    needs; what comes later is in the late ledger.
    """
    time = timing_of(rows).event_time
    names, ordered = _names(by), _names(order) or ([] if time is None else [time])
    if not ordered:
        raise InvalidError("rolling: the rows have no event time; say by which columns they are ordered: `order=`")
    chosen, late = RankOrder.read(ordered), None
    if lateness is not None:
        if time is None or chosen.columns[0] != time or chosen.descending[0]:
            raise InvalidError(
                f"rolling: with `lateness` rows are ordered by their event time first, not by {ordered[0]!r}: "
                "only then it is known which of them can still get others before them; leave out one of the two"
            )
        late = RankLateness(time, micros(lateness))
    kernel = RankingKernel.rolling(last, what, names, chosen, kernel_schema(rows), late)
    meaning = {"last": last, "what": what, "order": ordered, "lateness": lateness}
    hold = 0 if late is None else late.duration
    return run_over(rows, kernel, by=names, kind="rolling", meaning=meaning, hold=hold)


def union(first: DataFrame, *others: DataFrame) -> DataFrame:
    """The rows of several DataFrames with the same columns, changes or not, as changes of one.

    A row that several have is there several times; `hw.deduplicate` makes one of it. Where all have their event
    time in the same column, so has the result, and the watermark is the least of theirs; else it has none.
    """
    sides = (first, *others)
    timings = [timing_of(rows) for rows in sides]
    if any(timing.estimate is not None for timing in timings):
        raise InvalidError(
            "union: a topic with a `watermark` function of its own cannot be united with others; declare it with "
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
                f"union: not all sides have a column {', '.join(sorted(different))}; select the same of each"
            )
    both = reduce(lambda one, other: one.unionByName(other), parts)
    if time is None:
        return both
    marks: dict[str, bool | int] = {EVENT_TIME_KEY: True, INPUTS_KEY: inputs}
    idles = [timing.idle_after for timing in timings]
    if None not in idles:  # Where one must be waited for, it must be waited for.
        marks[IDLE_KEY] = max(idle for idle in idles if idle is not None)
    return both.withMetadata(time, marks)


def _as_changes(rows: DataFrame, timing: Timing, first: int | None) -> DataFrame:
    """Rows with `_change`; and with what they say of the watermark, unless they are the `first` of no input."""
    change = F.col(CHANGE).cast("tinyint") if CHANGE in rows.columns else F.lit(1).cast("tinyint")
    unmarked = rows if timing.event_time is None else rows.withMetadata(timing.event_time, {})
    changes = unmarked.withColumn(CHANGE, change)
    if first is None or timing.mark is None:
        return changes.drop(WATERMARK, SOURCE)
    return changes.withColumns({WATERMARK: timing.mark.cast("long"), SOURCE: timing.source(first)})


def _names(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
