"""Operators for `df.transform(...)`: what `process` describes, run by Spark.

Where Spark's own operator has the same meaning, it is used; else a kernel is run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.aggregates.aggregates import Aggregate, Function, count
from headwater.process.device_clocks import ClockKernel, DeviceClocks
from headwater.process.durations import micros
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.placement import BEGINNING_OF_TIME, END_OF_TIME
from headwater.process.windows.triggers import Default, Trigger
from headwater.process.windows.windowing import EVENT_TIME_COLUMN, PANE_COLUMNS, Mode, Windowing
from headwater.process.windows.windows import Global, Hopping, Tumbling, Window, offset_micros
from headwater.spark.kernels.frames import empty_like
from headwater.spark.kernels.query_context import current_query
from headwater.spark.kernels.runner import Times, run_kernel
from headwater.spark.kernels.watermark_sources import SOURCE, WATERMARK, inputs_of
from headwater.spark.source.decoding import (
    BY_PARTITION_KEY,
    DELAY_KEY,
    EVENT_TIME_KEY,
    IDLE_KEY,
    estimate_of,
    event_time_of,
)

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
    as long as events for it arrive, however late, and its state is kept for ever; `what` then also takes a Column
    with any aggregate of Spark's, such as `F.stddev("amount")`. With `when`, `how` or `lateness`, or where Spark
    has no such window or aggregate, the rows are *changes*: panes that the trigger fires, with `event_time`,
    `timing` (early, on_time, late), `pane`, `nonspeculative_pane`, `is_final`, `trigger`, and
    `_change`: 1 for a row that is put, -1 for one that is taken back. Changes can be windowed again. A window is
    let go when the watermark has passed its end by `lateness`; what comes for it then is in the late ledger.
    """
    columns = {name: value for name, value in what.items() if isinstance(value, Column)}
    windowing = Windowing(
        what={**what, **dict.fromkeys(columns, count())},
        where=where,
        when=Default() if when is None else when,
        how=Mode.ACCUMULATING if how is None else how,
        by=tuple(by),
        lateness=lateness,
    )
    asked = when is not None or how is not None or lateness is not None
    if not asked and _is_native(windowing):
        return lambda events: _native(events, windowing, columns)
    _refuse_columns(columns, windowing, asked)
    return lambda events: _changes(events, windowing)


def correct_clocks(
    *, device: str, sent: str, received: str, memory: str = "1 hour"
) -> Callable[[DataFrame], DataFrame]:
    """Move event times from the devices' clocks to ours.

    `sent` is when a row was sent, by the clock of its `device`, as the event time is; `received` is when it came,
    by ours. How far a clock is off is estimated from what came of the device within `memory`, and is shown in the
    column `clock_offset`, in microseconds.
    """

    def apply(events: DataFrame) -> DataFrame:
        event = event_time_of(events)
        clocks = DeviceClocks(device=device, event=event, sent=sent, received=received, memory=memory)
        missing = [name for name in (device, sent, received) if name not in events.columns]
        if missing:
            raise InvalidError(
                f"correct_clocks: there is no column {', '.join(map(repr, missing))}; the columns are "
                f"{', '.join(events.columns)}"
            )
        names = (event, sent, received)
        micros = {name: F.unix_micros(F.col(name).cast("timestamp")) for name in names}
        rows = events.withColumns(micros)
        kernel = ClockKernel.of(clocks, empty_like(rows.schema).schema)
        current_query().meanings.append({"name": "correct_clocks", "by": [device], "memory": memory})
        moved = run_kernel(rows, kernel, by=[device], kind="clocks")
        times = {name: F.timestamp_micros(name) for name in names}
        return moved.withColumns(times).withMetadata(event, events.schema[event].metadata)

    return apply


# -- Spark's own ----------------------------------------------------------------------------------------------


def _is_native(windowing: Windowing) -> bool:
    where = windowing.where
    if where.by_clock or not isinstance(where, Tumbling | Hopping | Global):
        return False
    # Spark takes no gaps between windows.
    if isinstance(where, Hopping) and micros(where.period) > micros(where.size):
        return False
    return all(isinstance(a, Aggregate) and a.function in _FUNCTIONS for a in windowing.what.values())


def _refuse_columns(columns: Mapping[str, Column], windowing: Windowing, asked: bool) -> None:
    """A Column can be run by Spark's own operator only."""
    if not columns:
        return
    name = next(iter(columns))
    if asked:
        why = "with `when`, `how` or `lateness` a window is computed by columnar kernels"
    elif not _is_native(replace(windowing, what={name: count()})):
        why = f"Spark has no windows such as {windowing.where}"
    else:
        others = [n for n, a in windowing.what.items() if n not in columns and a.function not in _FUNCTIONS]
        why = f"{', '.join(map(repr, others))} beside it cannot be computed by Spark"
    raise InvalidError(
        f"windowed: {name!r} is a Column of Spark's, and {why}; use Headwater's aggregates (hw.sum, hw.quantile, "
        "...) or one of your own with `partial`, `merge` and `result`"
    )


def _native(events: DataFrame, windowing: Windowing, columns: Mapping[str, Column]) -> DataFrame:
    if CHANGE in events.columns:
        _refuse_columns(columns, windowing, asked=True)
        return _changes(events, windowing)  # Spark's aggregates cannot take anything back.
    current_query().meanings.append(_meaning(windowing) | {"what": {**windowing.what, **columns}})
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
    # Spark counts in microseconds and knows nothing finer.
    return f"{duration} microseconds"


# -- by a kernel ----------------------------------------------------------------------------------------------


def _changes(events: DataFrame, windowing: Windowing) -> DataFrame:
    rows, times = _timed(events, windowing)
    schema = empty_like(rows.drop(WATERMARK, SOURCE).schema).schema
    kernel = WindowedKernel.of(_at(windowing, times.event_time), schema)
    state = {name: str(dict(table.schema)) for name, table in kernel.initial().items()}
    current_query().meanings.append(_meaning(windowing) | {"state": state})
    needs_clock = windowing.needs_clock or times.idle_after is not None
    times = replace(times, processing_time=needs_clock)
    changes = run_kernel(rows, kernel, by=windowing.by, times=times, told={"watermark": WATERMARK})
    span = F.struct(
        F.timestamp_micros("window_start").alias("start"), F.timestamp_micros("window_end").alias("end")
    )
    moment = F.timestamp_micros(EVENT_TIME_COLUMN).alias(EVENT_TIME_COLUMN)
    chosen = changes.select(
        *windowing.by, span.alias(WINDOW), *windowing.what, moment, *PANE_COLUMNS, CHANGE, WATERMARK
    )
    return chosen.withMetadata(EVENT_TIME_COLUMN, {EVENT_TIME_KEY: True})


def _meaning(windowing: Windowing) -> dict[str, Any]:
    """For who has to tell whether a windowing is still the one it was."""
    return {
        "name": "windowed",
        "what": windowing.what,
        "where": windowing.where,
        "when": windowing.when,
        "how": windowing.how,
        "by": windowing.by,
        "lateness": windowing.lateness,
    }


def _timed(events: DataFrame, windowing: Windowing) -> tuple[DataFrame, Times]:
    """The rows with their event time in microseconds, as kernels have it, and what is known of the time."""
    taken = _SPAN & set(events.columns)
    if taken:
        raise InvalidError(f"windowed: the rows have a column {', '.join(sorted(taken))}; rename it")
    if windowing.where.by_clock:
        return events.drop(WATERMARK, SOURCE), Times()
    name = event_time_of(events)
    metadata = events.schema[name].metadata
    rows = events.withColumn(name, F.unix_micros(F.col(name).cast("timestamp")))
    times = Times(
        event_time=name,
        delay=int(metadata.get(DELAY_KEY, 0)),
        idle_after=metadata.get(IDLE_KEY),
        by_partition=bool(metadata.get(BY_PARTITION_KEY)),
        estimate=estimate_of(events, name),
        watermark=WATERMARK if WATERMARK in events.columns else None,
        source=SOURCE if SOURCE in events.columns else None,
        inputs=inputs_of(events, name),
    )
    return rows, times


def _at(windowing: Windowing, event_time: str | None) -> Windowing:
    if event_time is None:
        return windowing
    return replace(windowing, time=event_time)
