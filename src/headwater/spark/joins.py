"""`hw.join`: two DataFrames become one, whatever changes on either side.

Both sides travel as one DataFrame, see `headwater.process.sides`, and say themselves of which source each row
is, see `headwater.spark.inputs`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import InvalidError
from headwater.process.joining import JoinKernel
from headwater.process.sides import LEFT, RIGHT, SIDE, TIME, How, Sides, key_type, read_how
from headwater.process.windowing import CHANGE
from headwater.spark.inputs import source_number
from headwater.spark.operators import WATERMARK
from headwater.spark.stateful import Times, run_kernel
from headwater.spark.tables import kernel_schema, note_meaning, timing_of, with_event_time

_MARK, _SOURCE = "_mark", "_source"


def join(
    left: DataFrame,
    right: DataFrame,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    how: str = "inner",
) -> DataFrame:
    """Join two tables that both change, on equal keys or a foreign key.

    `on` names columns of both sides, or maps those of the left one to those of the right one. The result are
    changes: what a change on either side adds to the join and takes back from it. `how` is inner, left, right,
    full, semi or anti. Rows without `_change` are all put.
    """
    kind = read_how(how)
    kernel = JoinKernel.of(on, kind, kernel_schema(left), kernel_schema(right))
    return _run(left, right, kernel, kernel.sides, meaning={"on": dict(kernel.sides.pairs), "how": kind})


def _run(left: DataFrame, right: DataFrame, kernel: Any, sides: Sides, *, meaning: dict[str, Any]) -> DataFrame:
    if left.isStreaming != right.isStreaming:
        raise InvalidError(
            "join: one side is a stream and the other is not; read both as streams or both as batches"
        )
    timings = [timing_of(side) for side in (left, right)]
    marked = [timing for timing in timings if timing.mark is not None]
    note_meaning(kernel, "join", meaning)
    rows = _side(left, right, sides, 0).unionAll(_side(right, left, sides, 1))
    times = Times()
    if marked:
        idles = [timing.idle_after for timing in marked]
        # Where one side must be waited for, it must be waited for.
        idle = None if None in idles else max(idle for idle in idles if idle is not None)
        times = Times(
            watermark=_MARK, source=_SOURCE, inputs=len(marked), idle_after=idle, processing_time=idle is not None
        )
    else:
        rows = rows.drop(_MARK, _SOURCE)
    told = {"watermark": WATERMARK} if marked else {}
    result = run_kernel(rows, kernel, by=sides.keys, times=times, told=told, kind="join")
    first, second = timings
    name = second.event_time if sides.how is How.RIGHT else first.event_time
    return with_event_time(result, name)


def _side(rows: DataFrame, other: DataFrame, sides: Sides, number: int) -> DataFrame:
    """The rows of one side as both travel."""
    timing = timing_of(rows)
    mine, others = (_columns(frame) for frame in (rows, other))
    row = F.struct(*mine)
    kind = other.select(F.struct(*others).alias("row")).schema["row"].dataType
    structs = [row, F.lit(None).cast(kind)] if number == 0 else [F.lit(None).cast(kind), row]
    change = F.col(CHANGE).cast("tinyint") if CHANGE in rows.columns else F.lit(1).cast("tinyint")
    time = F.lit(None).cast("long")
    if timing.event_time is not None:
        time = F.unix_micros(F.col(f"`{timing.event_time}`").cast("timestamp"))
    return rows.select(
        F.lit(number).cast("tinyint").alias(SIDE),
        *_keys(rows, sides, number),
        structs[0].alias(LEFT),
        structs[1].alias(RIGHT),
        time.alias(TIME),
        change.alias(CHANGE),
        (F.lit(None) if timing.mark is None else timing.mark).cast("long").alias(_MARK),
        source_number(number, one=timing.is_told).alias(_SOURCE),
    )


def _columns(rows: DataFrame) -> list[Column]:
    return [F.col(f"`{name}`") for name in rows.columns if name not in (CHANGE, WATERMARK)]


def _keys(rows: DataFrame, sides: Sides, number: int) -> list[Column]:
    keys = []
    for name, pair in zip(sides.keys, sides.pairs, strict=True):
        value = F.col(f"`{pair[number]}`")
        left, right = sides.left[pair[0]], sides.right[pair[1]]
        if left != right:
            assert key_type(pair[0], left, pair[1], right).is_integer()
            value = value.cast("long")
        keys.append(value.alias(name))
    return keys
