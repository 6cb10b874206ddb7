"""`hw.windowed`: aggregates of windows, computed by Spark's own operator or by a kernel.

Without `when`, `how` and `lateness`, for windows and aggregates that Spark has, results are *plain*: the current
row of each window, never discarded. Spark's own operator computes them, or, where it cannot, a kernel that
computes the same: over changes, which Spark's aggregates cannot retract; in a stream that has other operators,
to which Spark cannot pass on the rows of its aggregates; and in a stream whose rows may have no event time, which
Spark would leave out without counting them.

Everything else is panes, which `WindowedKernel` emits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import TimestampType

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.aggregates.aggregates import Aggregate, Function, check_mapping, count
from headwater.process.aggregates.folds import check_aggregates
from headwater.process.durations import micros
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.placement import BEGINNING_OF_TIME, END_OF_TIME
from headwater.process.windows.triggers import Default, EveryBatch, Trigger
from headwater.process.windows.windowing import EVENT_TIME_COLUMN, PANE_COLUMNS, Mode, Windowing
from headwater.process.windows.windows import Global, Hopping, Tumbling, Window, offset_micros
from headwater.spark.kernels.attach import INPUTS, OutputTiming, attach, describe, event_time_marks
from headwater.spark.kernels.change_lineage import with_change
from headwater.spark.kernels.column_names import column, with_metadata
from headwater.spark.kernels.query_context import current_query
from headwater.spark.kernels.times import Times
from headwater.spark.kernels.watermark_sources import SOURCE, WATERMARK
from headwater.spark.operators.null_times import may_lack_time
from headwater.spark.operators.timing import kernel_schema, micros_of, timing_of
from headwater.spark.source.decoding import event_time_of

WINDOW = "window"
FOREVER = "1000000 days"
"""The lateness of plain results, which are never discarded."""
_SPAN = {"window_start", "window_end"}

_FUNCTIONS: dict[Function, Callable[[Column], Column]] = {
    Function.COUNT: F.count,
    Function.SUM: F.sum,
    Function.MEAN: F.mean,
    Function.MIN: F.min,
    Function.MAX: F.max,
}


def windowed(
    *,
    what: Mapping[str, Any],
    where: Window,
    when: Trigger | None = None,
    how: Mode | None = None,
    by: Sequence[str] = (),
    lateness: str | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Aggregate the events of each window and group.

    The result has the columns `by`, then `window` (a struct of `start` and `end`), then those of `what`. The event
    time is the one declared with the topic.

    With `what`, `where` and `by` alone, for windows and aggregates that Spark has itself, a window's row changes
    as long as events for it arrive, however late, and its state is never discarded. These rows have no event time.
    If Spark computes them, `what` also accepts a Column with any aggregate of Spark's, such as
    `F.stddev("amount")`; in a stream, Spark does so if the query has no other operator and its input no changes.
    A stream to which a union or an outer join of Spark's adds rows without an event time then has to leave them
    out: `.where("at IS NOT NULL")`.

    With `when`, `how` or `lateness`, or where Spark has no such window or aggregate, the rows are *changes*: panes
    that the trigger fires, with `event_time`,
    `timing` (early, on_time, late), `pane`, `nonspeculative_pane`, `is_final`, `trigger`, and
    `_change`: 1 for a row that is inserted, -1 for one that is retracted. Changes can be windowed again. A window
    is discarded when the watermark reaches its end plus `lateness`; rows that arrive for it later go to the late
    ledger.

    Without `how`, the mode is RETRACTING if `events` are changes and for sessions, because results of windows that
    exist no more must be removed; else ACCUMULATING. Sessions and sliding windows over changes accept no other
    mode than RETRACTING, and windows by processing time (except Global) no changes.
    """
    check_mapping("windowed", what)
    columns = {name: value for name, value in what.items() if isinstance(value, Column)}
    windowing = Windowing(
        what={**what, **dict.fromkeys(columns, count())},
        where=where,
        when=Default() if when is None else when,
        how=how,
        by=tuple(by),
        lateness=lateness,
    )
    needs_kernel = when is not None or how is not None or lateness is not None
    if not needs_kernel and _is_native(windowing):
        return lambda events: _plain(events, windowing, columns)
    _refuse_columns(columns, windowing, needs_kernel)
    return lambda events: _changes(events, windowing)


# -- Spark's own operator -------------------------------------------------------------------------------------


def _is_native(windowing: Windowing) -> bool:
    where = windowing.where
    if where.by_clock or not isinstance(where, Tumbling | Hopping | Global):
        return False
    # Spark allows no gaps between windows.
    if isinstance(where, Hopping) and micros(where.period) > micros(where.size):
        return False
    return all(isinstance(a, Aggregate) and a.function in _FUNCTIONS for a in windowing.what.values())


def _refuse_columns(columns: Mapping[str, Column], windowing: Windowing, needs_kernel: bool) -> None:
    """Raise if a Column is used where a kernel is needed: only Spark's own operator computes Columns."""
    if not columns:
        return
    name = next(iter(columns))
    if needs_kernel:
        why = "with `when`, `how` or `lateness` a window is computed by columnar kernels"
    elif not _is_native(replace(windowing, what={name: count()})):
        why = f"Spark has no windows such as {windowing.where}"
    else:
        others = [n for n, a in windowing.what.items() if n not in columns and a.function not in _FUNCTIONS]
        why = f"{', '.join(map(repr, others))} cannot be computed by Spark together with it"
    raise InvalidError(
        f"windowed: {name!r} is a Spark Column, and {why}; use Headwater's aggregates (hw.sum, hw.quantile, "
        "...) or one of your own with `partial`, `merge` and `result`"
    )


def _plain(events: DataFrame, windowing: Windowing, columns: Mapping[str, Column]) -> DataFrame:
    """Return the current row of each window: by Spark's own operator, or by a kernel where Spark cannot."""
    timing_of(events)
    has_changes = CHANGE in events.columns
    if not has_changes and not (events.isStreaming and _needs_kernel(events, windowing.where)):
        return _native(events, windowing, columns)
    if columns:
        raise InvalidError(
            f"windowed: {next(iter(columns))!r} is a Spark Column, and {_obstacle(events)}; use Headwater's "
            "aggregates (hw.sum, hw.quantile, ...) or one of your own with `partial`, `merge` and `result`"
        )
    panes = _changes(events, replace(windowing, when=EveryBatch(), how=Mode.RETRACTING, lateness=FOREVER))
    return panes.drop(EVENT_TIME_COLUMN, *PANE_COLUMNS, WATERMARK)


def _needs_kernel(events: DataFrame, where: Window) -> bool:
    """Return whether Spark's own operator cannot be used in a stream of rows."""
    # The global window has rows without a time.
    return _runs_kernels() or (not where.is_single and may_lack_time(events))


def _runs_kernels() -> bool:
    query = current_query()
    return query.runs_kernels or bool(query.operators)  # One of the operators runs a kernel, in the latter case.


def _obstacle(events: DataFrame) -> str:
    """Return why Spark cannot compute a Column."""
    if CHANGE in events.columns:
        return "the input has changes, so Spark cannot compute it"
    if _runs_kernels():
        return "the query has other operators, so Spark cannot compute it in a stream"
    return (
        "a union or an outer join adds rows without an event time, which Spark would leave out without counting "
        f"them; leave them out before, with .where(F.col({event_time_of(events)!r}).isNotNull()), if you want that"
    )


def _native(events: DataFrame, windowing: Windowing, columns: Mapping[str, Column]) -> DataFrame:
    # Spark would sum texts as numbers.
    check_aggregates("windowed", windowing.what, _schema(events, windowing))
    parts = _parts(windowing.over(changes=False)) | {"what": {**windowing.what, **columns}}
    current_query().descriptions.append({"name": "windowed", **parts, INPUTS: (events,)})
    results = [
        (columns[name] if name in columns else _spark_aggregate(a)).alias(name)
        for name, a in windowing.what.items()
    ]
    where, by, names = windowing.where, [*map(column, windowing.by)], [*map(column, windowing.what)]
    if isinstance(where, Global):
        ends = (F.timestamp_micros(F.lit(end)) for end in (BEGINNING_OF_TIME, END_OF_TIME))
        span = F.struct(*(end.alias(name) for end, name in zip(ends, ("start", "end"), strict=True)))
        return events.groupBy(*by).agg(*results).select(*by, span.alias(WINDOW), *names)
    assert isinstance(where, Tumbling | Hopping)
    period = where.period if isinstance(where, Hopping) else where.size
    shift = _interval(offset_micros(where.offset))
    name = event_time_of(events)
    kind = events.schema[name].dataType
    time = column(name) if isinstance(kind, TimestampType) else F.timestamp_micros(micros_of(name, kind))
    window = F.window(time, _interval(micros(where.size)), _interval(micros(period)), shift).alias(WINDOW)
    return events.groupBy(*by, window).agg(*results).select(*by, WINDOW, *names)


def _spark_aggregate(aggregate: Any) -> Column:
    return _FUNCTIONS[aggregate.function](F.lit(1) if aggregate.column is None else column(aggregate.column))


def _interval(duration: int) -> str:
    # Spark's finest unit is the microsecond.
    return f"{duration} microseconds"


# -- by a kernel ----------------------------------------------------------------------------------------------


def _changes(events: DataFrame, windowing: Windowing) -> DataFrame:
    windowing = windowing.over(changes=CHANGE in events.columns)
    rows, times = _timed(events, windowing)
    kernel = WindowedKernel.of(_at(windowing, times.event_time), _schema(rows, windowing))
    needs_clock = windowing.needs_clock or times.idle_after is not None
    changes = attach(
        rows,
        kernel,
        describe("windowed", kernel, _parts(windowing), events),
        by=windowing.by,
        kind="windowed",
        times=replace(times, processing_time=needs_clock),
        output=OutputTiming(has_watermark=True),
    )
    span = F.struct(
        F.timestamp_micros("window_start").alias("start"), F.timestamp_micros("window_end").alias("end")
    )
    moment = F.timestamp_micros(EVENT_TIME_COLUMN).alias(EVENT_TIME_COLUMN)
    chosen = changes.select(
        *map(column, windowing.by),
        span.alias(WINDOW),
        *map(column, windowing.what),
        moment,
        *PANE_COLUMNS,
        CHANGE,
        WATERMARK,
    )
    return with_metadata(chosen, EVENT_TIME_COLUMN, event_time_marks("windowed", has_watermark=True))


def _schema(rows: DataFrame, windowing: Windowing) -> pl.Schema:
    """Return the schema in which the kernel sees rows; other columns are only in the late ledger."""
    return kernel_schema(rows, [*windowing.by, *(aggregate.column for aggregate in windowing.what.values())])


def _parts(windowing: Windowing) -> dict[str, Any]:
    """Return the arguments of `windowed`, as they are kept with the checkpoint."""
    return {
        "what": windowing.what,
        "where": windowing.where,
        "when": windowing.when,
        "how": windowing.how,
        "by": windowing.by,
        "lateness": windowing.lateness,
    }


def _timed(events: DataFrame, windowing: Windowing) -> tuple[DataFrame, Times]:
    """Return the rows with their event time in microseconds, which kernels use, and their times."""
    timing = timing_of(events)
    taken = _SPAN & set(events.columns)
    if taken:
        raise InvalidError(f"windowed: the rows have a column {', '.join(sorted(taken))}; rename it")
    if windowing.where.by_clock:
        return with_change(events).drop(WATERMARK, SOURCE), Times()
    rows = with_change(events).withColumn(event_time_of(events), timing.event_micros)
    return rows, timing.row_times()


def _at(windowing: Windowing, event_time: str | None) -> Windowing:
    if event_time is None:
        return windowing
    return replace(windowing, time=event_time)
