"""Which windows rows belong to: every kind of window as expressions over columns."""

from collections.abc import Sequence

import polars as pl

from headwater.process.durations import micros
from headwater.process.windows.windows import Global, Hopping, Session, Sliding, Tumbling, Window, offset_micros

START, END = "window_start", "window_end"

# All time, as far as Python's and Spark's calendars both go: year 1 to year 9999. Not from its first day: Python
# cannot make a local time of that.
BEGINNING_OF_TIME, END_OF_TIME = -62_135_424_000_000_000, 253_402_214_400_000_000


def with_windows(rows: pl.DataFrame, where: Window, time: pl.Expr) -> pl.DataFrame:
    """The rows with the bounds of their windows: a row in several windows is there several times.

    Sessions and sliding windows begin as the window of the one row; what they become depends on the others.
    """
    match where:
        case Tumbling():
            size = micros(where.size)
            start = time - (time - offset_micros(where.offset)) % size
            return rows.with_columns(start.alias(START), (start + size).alias(END))
        case Hopping():
            return _with_hops(rows, where, time)
        case Sliding():
            return rows.with_columns((time - micros(where.duration)).alias(START), (time + 1).alias(END))
        case Session():
            return rows.with_columns(time.alias(START), (time + micros(where.gap)).alias(END))
        case Global():
            start, end = pl.lit(BEGINNING_OF_TIME, pl.Int64), pl.lit(END_OF_TIME, pl.Int64)
            return rows.with_columns(start.alias(START), end.alias(END))


def _with_hops(rows: pl.DataFrame, where: Hopping, time: pl.Expr) -> pl.DataFrame:
    size, period = micros(where.size), micros(where.period)
    last = time - (time - offset_micros(where.offset)) % period
    starts = [last - back * period for back in range(-(-size // period))]
    placed = rows.with_columns(time.alias("_moment"), pl.concat_list(starts).alias(START)).explode(START)
    # The last of the starts may lie a whole size back, and with gaps even the first may.
    placed = placed.filter(pl.col(START) + size > pl.col("_moment"))
    return placed.with_columns((pl.col(START) + size).alias(END)).drop("_moment")


def with_sessions(spans: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """The spans with the bounds of the session they are part of, in `_start` and `_end`.

    Spans that overlap are one session; those that only touch are not: between their events lies a whole gap.
    """
    ordered = spans.sort(*by, START, maintain_order=True)
    reach = pl.col(END).cum_max().shift(1)
    reach = reach.over(list(by)) if by else reach
    number = (pl.col(START) >= reach).fill_null(True).cum_sum()
    numbered = ordered.with_columns(number.alias("_session"))
    return numbered.with_columns(
        pl.col(START).min().over("_session").alias("_start"),
        pl.col(END).max().over("_session").alias("_end"),
    )
