"""`hw.windowed`: aggregates of windows, computed by Spark's own operator or by a kernel.

Spark's own operator is used where it computes the same; otherwise `WindowedKernel` is run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.aggregates.aggregates import Aggregate, Function, check_mapping, count
from headwater.process.aggregates.folds import check_aggregates
from headwater.process.durations import micros
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.placement import BEGINNING_OF_TIME, END_OF_TIME
from headwater.process.windows.triggers import Default, Trigger
from headwater.process.windows.windowing import EVENT_TIME_COLUMN, PANE_COLUMNS, Mode, Windowing
from headwater.process.windows.windows import Global, Hopping, Tumbling, Window, offset_micros
from headwater.spark.kernels.attach import OutputTiming, attach, describe
from headwater.spark.kernels.query_context import current_query
from headwater.spark.kernels.runner import Times
from headwater.spark.kernels.watermark_sources import SOURCE, WATERMARK
from headwater.spark.operators.timing import kernel_schema, timing_of
from headwater.spark.source.decoding import EVENT_TIME_KEY, event_time_of

WINDOW = "window"
_SPAN = {"window_start", "window_end"}

_FUNCTIONS: dict[Function, Callable[[str], Column]] = {
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
    as long as events for it arrive, however late, and its state is never discarded; `what` then also accepts a
    Column with any aggregate of Spark's, such as `F.stddev("amount")`. With `when`, `how` or `lateness`, or where
    Spark has no such window or aggregate, the rows are *changes*: panes that the trigger fires, with `event_time`,
    `timing` (early, on_time, late), `pane`, `nonspeculative_pane`, `is_final`, `trigger`, and
    `_change`: 1 for a row that is inserted, -1 for one that is retracted. Changes can be windowed again. A window
    is discarded when the watermark has passed its end by `lateness`; rows that arrive for it later go to the late
    ledger.
    """
    check_mapping("windowed", what)
    columns = {name: value for name, value in what.items() if isinstance(value, Column)}
    windowing = Windowing(
        what={**what, **dict.fromkeys(columns, count())},
        where=where,
        when=Default() if when is None else when,
        how=Mode.ACCUMULATING if how is None else how,
        by=tuple(by),
        lateness=lateness,
    )
    needs_kernel = when is not None or how is not None or lateness is not None
    if not needs_kernel and _is_native(windowing):
        return lambda events: _native(events, windowing, columns)
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


def _native(events: DataFrame, windowing: Windowing, columns: Mapping[str, Column]) -> DataFrame:
    if CHANGE in events.columns:
        _refuse_columns(columns, windowing, needs_kernel=True)
        return _changes(events, windowing)  # Spark's aggregates cannot retract.
    # Spark would sum texts as numbers.
    check_aggregates("windowed", windowing.what, _schema(events, windowing))
    parts = _parts(windowing) | {"what": {**windowing.what, **columns}}
    current_query().descriptions.append({"name": "windowed", **parts})
    results = [
        columns.get(name, _FUNCTIONS[a.function](a.column or "*")).alias(name)
        for name, a in windowing.what.items()
    ]
    where, by = windowing.where, windowing.by
    if isinstance(where, Global):
        ends = (F.timestamp_micros(F.lit(end)) for end in (BEGINNING_OF_TIME, END_OF_TIME))
        span = F.struct(*(end.alias(name) for end, name in zip(ends, ("start", "end"), strict=True)))
        return events.groupBy(*by).agg(*results).select(*by, span.alias(WINDOW), *windowing.what)
    assert isinstance(where, Tumbling | Hopping)
    period = where.period if isinstance(where, Hopping) else where.size
    shift = _interval(offset_micros(where.offset))
    time = events[event_time_of(events)]
    window = F.window(time, _interval(micros(where.size)), _interval(micros(period)), shift).alias(WINDOW)
    return events.groupBy(*by, window).agg(*results).select(*by, WINDOW, *windowing.what)


def _interval(duration: int) -> str:
    # Spark's finest unit is the microsecond.
    return f"{duration} microseconds"


# -- by a kernel ----------------------------------------------------------------------------------------------


def _changes(events: DataFrame, windowing: Windowing) -> DataFrame:
    rows, times = _timed(events, windowing)
    kernel = WindowedKernel.of(_at(windowing, times.event_time), _schema(rows, windowing))
    needs_clock = windowing.needs_clock or times.idle_after is not None
    changes = attach(
        rows,
        kernel,
        describe("windowed", kernel, _parts(windowing)),
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
        *windowing.by, span.alias(WINDOW), *windowing.what, moment, *PANE_COLUMNS, CHANGE, WATERMARK
    )
    return chosen.withMetadata(EVENT_TIME_COLUMN, {EVENT_TIME_KEY: True})


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
    taken = _SPAN & set(events.columns)
    if taken:
        raise InvalidError(f"windowed: the rows have a column {', '.join(sorted(taken))}; rename it")
    if windowing.where.by_clock:
        return events.drop(WATERMARK, SOURCE), Times()
    name = event_time_of(events)
    rows = events.withColumn(name, F.unix_micros(F.col(name).cast("timestamp")))
    return rows, timing_of(events).row_times()


def _at(windowing: Windowing, event_time: str | None) -> Windowing:
    if event_time is None:
        return windowing
    return replace(windowing, time=event_time)
