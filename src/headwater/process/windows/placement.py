"""Placement: the bounds of the windows that rows belong to, as expressions over columns.

Every kind of window (`windows`) has its case in `with_windows`.
"""

from collections.abc import Sequence

import polars as pl

from headwater.errors import InternalError
from headwater.process.durations import micros
from headwater.process.windows.columns import END, NEW_END, NEW_START, SESSION, START
from headwater.process.windows.windows import Global, Hopping, Session, Sliding, Tumbling, Window, offset_micros

# The range that both Python's and Spark's calendars support: year 1 to year 9999. It begins a day later, because
# Python cannot convert the first day to local time.
BEGINNING_OF_TIME, END_OF_TIME = -62_135_424_000_000_000, 253_402_214_400_000_000


def with_windows(rows: pl.DataFrame, where: Window, time: pl.Expr) -> pl.DataFrame:
    """Add the bounds of each row's windows; a row in several windows is repeated.

    Sessions and sliding windows begin as the window of one row; the final window depends on the other rows.
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
        case _:
            raise InternalError(f"cannot place rows in {where!r}: add its bounds to placement.with_windows")


EARLIEST, LATEST = -(2**61), 2**61
"""The event times that windows accept: a sum of a time and a few durations does not overflow."""


def has_place(where: Window, time: pl.Expr) -> pl.Expr:
    """Select the rows whose time is known and in the range that windows accept; the global window has all rows."""
    return pl.lit(True) if where.is_single else time.is_between(EARLIEST, LATEST).fill_null(False)


def is_in_gap(where: Window, time: pl.Expr) -> pl.Expr | None:
    """Select the rows that are between two windows; None if there are no gaps between windows."""
    if not isinstance(where, Hopping) or micros(where.period) <= micros(where.size):
        return None
    return (time - offset_micros(where.offset)) % micros(where.period) >= micros(where.size)


def _with_hops(rows: pl.DataFrame, where: Hopping, time: pl.Expr) -> pl.DataFrame:
    size, period = micros(where.size), micros(where.period)
    last = time - (time - offset_micros(where.offset)) % period
    starts = [last - back * period for back in range(-(-size // period))]
    placed = rows.with_columns(time.alias("_row_time"), pl.concat_list(starts).alias(START)).explode(START)
    # The earliest start may be a whole size back; with gaps between windows, even the latest may be.
    placed = placed.filter(pl.col(START) + size > pl.col("_row_time"))
    return placed.with_columns((pl.col(START) + size).alias(END)).drop("_row_time")


def with_sessions(spans: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Add the bounds of the session that each span is part of.

    Spans that overlap are one session. Spans that only touch are not, because their events are a whole gap apart.
    """
    ordered = spans.sort(*by, START, maintain_order=True)
    reach = pl.col(END).cum_max().shift(1)
    reach = reach.over(list(by)) if by else reach
    number = (pl.col(START) >= reach).fill_null(True).cum_sum()
    numbered = ordered.with_columns(number.alias(SESSION))
    return numbered.with_columns(
        pl.col(START).min().over(SESSION).alias(NEW_START),
        pl.col(END).max().over(SESSION).alias(NEW_END),
    )
