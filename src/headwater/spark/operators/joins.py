"""`hw.join`: joins two DataFrames, and corrects the result when either side changes.

Both sides are sent to the kernel as one DataFrame (see `headwater.process.tables.sides`), in which a column names
the source of each row (see `headwater.spark.kernels.watermark_sources`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.durations import micros
from headwater.process.tables.as_of_join import GONE, AsOfKernel, NowKernel
from headwater.process.tables.interval_join import IntervalKernel, read_within
from headwater.process.tables.sides import LEFT, RIGHT, SIDE, SIDES, TIME, How, Sides, key_type, pairs_of, read_how
from headwater.process.tables.table_join import JoinKernel
from headwater.process.windows.windows import Time
from headwater.spark.kernels.attach import OutputTiming, attach, describe
from headwater.spark.kernels.change_lineage import change_of, changes_of
from headwater.spark.kernels.column_names import column
from headwater.spark.kernels.watermark_sources import METADATA_COLUMNS, SOURCE
from headwater.spark.operators.side_input import SideInput
from headwater.spark.operators.timing import MARK, Timing, kernel_schema, mark_times, select_used, timing_of
from headwater.spark.source.decoding import event_time_of

On = str | Sequence[str] | Mapping[str, str]


def join(
    left: DataFrame,
    right: DataFrame | SideInput,
    *,
    on: On,
    how: str = "inner",
    within: str | tuple[str, str] | None = None,
    as_of: Time | None = None,
    lateness: str | None = None,
    deleted: str | None = None,
) -> DataFrame:
    """Join two DataFrames that both change, on equal keys; the result is changes.

    `on` names columns of both sides, or maps those of the left one to those of the right one. `how` is inner,
    left, right, full, semi or anti. Rows without `_change` are inserts.

    - By default both sides are tables, and all their rows are kept.
    - `within` joins two streams: the right row's event time is between the left row's and `"1 hour"` after it, or
      between two bounds around it, such as `("-5 minutes", "1 hour")`. An unmatched row is emitted, and rows are
      discarded, when the watermark (the minimum of both sides) has passed the bounds.
    - `as_of=hw.EVENT_TIME` joins a stream with the history of a table: with the row that its key had at the
      event's time. `deleted` is a condition in SQL for rows of the history from which on the key has no row.
    - `as_of=hw.PROCESSING_TIME` joins a stream with the rows that the table has when a row arrives.

    The right side can be a bounded table outside the log, `hw.SideInput`, which is loaded again when it changes.

    With `within` and `as_of`, `lateness` is how far rows may lag the watermark: for that long rows are kept and
    results are corrected. Rows that arrive later go to the late ledger.
    """
    kind = read_how(how)
    right = right.read(left) if isinstance(right, SideInput) else right
    _check_options(within, as_of, lateness, deleted)
    if kind in (How.SEMI, How.ANTI) and deleted is None:
        # The output has no other columns of the right side, so rows that differ only in those count as one.
        right = select_used(right, [name for _, name in pairs_of(on)])
    left = _unless_retracted(left) if as_of is Time.PROCESSING else left
    schemas = kernel_schema(left), kernel_schema(right)
    late = micros(lateness) if lateness else 0
    parts: dict[str, Any] = {"how": kind, "within": within, "as of": as_of, "lateness": lateness}
    timings = timing_of(left), timing_of(right)
    if within is not None:
        _check_times(left, right)
        bounds = read_within(within)
        interval = IntervalKernel.of(on, kind, *schemas, bounds=bounds, lateness=late)
        return _run(left, right, interval, interval.sides, timings=timings, parts=parts, hold=interval.hold)
    if as_of is Time.EVENT:
        _check_times(left, right)
        history = AsOfKernel.of(on, kind, *schemas, lateness=late)
        gone = F.lit(False) if deleted is None else F.expr(deleted)
        parts |= {} if deleted is None else {"deleted": deleted}
        # A table often has no changes for long, and must not hold the stream back.
        stream, table = timings
        timings = stream, Timing(event_time=table.event_time, event_type=table.event_type, ignored=True)
        return _run(
            left, right, history, history.sides, timings=timings, parts=parts, hold=history.hold, gone=gone
        )
    if as_of is Time.PROCESSING:
        now = NowKernel.of(on, kind, *schemas)
        timings = timings[0], Timing()
        return _run(left, right, now, now.sides, timings=timings, parts=parts)
    tables = JoinKernel.of(on, kind, *schemas)
    return _run(left, right, tables, tables.sides, timings=timings, parts=parts)


def _check_options(within: Any, as_of: Time | None, lateness: str | None, deleted: str | None) -> None:
    if within is not None and as_of is not None:
        raise InvalidError(
            "join: `within` joins two streams and `as_of` a stream with a table; leave out one of them"
        )
    if within is None and as_of is not Time.EVENT and lateness is not None:
        raise InvalidError(
            "join: `lateness` has no effect without `within` or `as_of=hw.EVENT_TIME`; leave it out"
        )
    if as_of is not Time.EVENT and deleted is not None:
        raise InvalidError("join: `deleted` is for `as_of=hw.EVENT_TIME`; for other joins see hw.table")


def _unless_retracted(rows: DataFrame) -> DataFrame:
    """Return changes that are never retracted, such as discarding panes, as rows like any other."""
    changes = changes_of(rows)
    return rows if changes is None or changes.retracts else rows.drop(CHANGE)


def _check_times(left: DataFrame, right: DataFrame) -> None:
    for side, rows in (("left", left), ("right", right)):
        try:
            event_time_of(rows)
        except InvalidError as error:
            raise InvalidError(f"join: on the {side} side {error}") from None


def _run(
    left: DataFrame,
    right: DataFrame,
    kernel: Any,
    sides: Sides,
    *,
    timings: tuple[Timing, Timing],
    parts: dict[str, Any],
    hold: int = 0,
    gone: Column | None = None,
) -> DataFrame:
    if left.isStreaming != right.isStreaming:
        raise InvalidError(
            "join: one side is a stream and the other is not; read both as streams or both as batches"
        )
    first = _side(left, right, sides, timings[0], None if gone is None else F.lit(None))
    rows = first.unionAll(_side(right, left, sides, timings[1], gone, of=RIGHT, first=timings[0].inputs))
    kept = timings[1] if sides.how is How.RIGHT else timings[0]
    has_watermark = any(timing.mark is not None for timing in timings)
    return attach(
        rows if has_watermark else rows.drop(MARK, SOURCE),
        kernel,
        describe("join", kernel, {"on": dict(sides.pairs), **parts}, left, right),
        by=sides.keys,
        kind="join",
        times=mark_times(*timings),
        output=OutputTiming(event_time=kept.event_time, has_watermark=has_watermark, hold=hold),
    )


def _side(
    rows: DataFrame,
    other: DataFrame,
    sides: Sides,
    timing: Timing,
    gone: Column | None,
    *,
    of: str = LEFT,
    first: int = 0,
) -> DataFrame:
    """Return the rows of one side in the columns that both share; `first` is the number of its first input."""
    number = SIDES.index(of)
    kind = other.select(F.struct(*_columns(other)).alias("row")).schema["row"].dataType
    structs = [F.struct(*_columns(rows)), F.lit(None).cast(kind)]
    left, right = structs if number == 0 else reversed(structs)
    return rows.select(
        F.lit(number).cast("tinyint").alias(SIDE),
        *_keys(sides, number),
        left.alias(LEFT),
        right.alias(RIGHT),
        timing.event_micros.alias(TIME),
        change_of(rows),
        *([] if gone is None else [gone.cast("boolean").alias(GONE)]),
        (F.lit(None) if timing.mark is None else timing.mark).cast("long").alias(MARK),
        timing.source(first).alias(SOURCE),
    )


def _columns(rows: DataFrame) -> list[Column]:
    return [column(name) for name in rows.columns if name not in METADATA_COLUMNS]


def _keys(sides: Sides, number: int) -> list[Column]:
    keys = []
    for name, pair in zip(sides.keys, sides.pairs, strict=True):
        value = column(pair[number])
        left, right = sides.left[pair[0]], sides.right[pair[1]]
        if left != right:
            assert key_type(pair[0], left, pair[1], right).is_integer()
            value = value.cast("long")
        keys.append(value.alias(name))
    return keys
