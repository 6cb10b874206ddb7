"""The event time and the watermark of a DataFrame, read from the metadata of its columns.

The source marks the event time's column with metadata (`source.decoding`), and an operator adds a column
`_watermark` to its output. `timing_of` reads both. `Timing.row_times` and `mark_times` convert it to the `Times`
with which a kernel is run: the first for a kernel that looks at the event times itself, the second for one whose
rows carry their watermark in a column of its own (`with_marks`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import polars as pl
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, DateType, StructField, StructType, TimestampNTZType, TimestampType

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.watermarks import Estimate
from headwater.spark.kernels.change_lineage import (
    LostChangesError,
    changes_of,
    check_change_type,
    dropping_step,
    lost_columns_message,
    with_change,
)
from headwater.spark.kernels.column_names import check_names, column, quoted
from headwater.spark.kernels.frames import empty_like, spark_schema
from headwater.spark.kernels.query_context import current_query
from headwater.spark.kernels.times import Times
from headwater.spark.kernels.watermark_sources import (
    METADATA_COLUMNS,
    SOURCE,
    SOURCES_MAX,
    WATERMARK,
    inputs_of,
    lost_columns,
    source_number,
)
from headwater.spark.source.decoding import BY_PARTITION_KEY, DELAY_KEY, IDLE_KEY, estimate_of, event_time_field

MARK = "_mark"
"""Column of the watermark of each row, for the operator that the rows go into."""

_DAY = 24 * 60 * 60 * 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The event time and the watermark of a DataFrame's rows.

    `has_watermark` means that an operator added the column `_watermark`; otherwise the watermark is estimated from
    the event times, by `estimate` or with `delay`. Unless `by_partition`, all tasks are one source: there are as
    many tasks of files as there happen to be, and some buckets of an operator may never emit rows. Rows of a
    union, which has several `inputs`, name their source in a column: `has_source`.
    """

    event_time: str | None = None
    event_type: DataType | None = None
    delay: int = 0
    idle_after: int | None = None
    by_partition: bool = False
    estimate: Estimate | None = None
    inputs: int = 1
    has_watermark: bool = False
    has_source: bool = False
    ignored: bool = False
    """The rows do not hold the watermark back: those of a table that a stream is joined with."""
    leaves: frozenset[int] = frozenset()
    """The topics and operators that the rows come from, if the query is drawn (`query_context`)."""

    @property
    def mark(self) -> Column | None:
        """The watermark of each row; None if the rows have none."""
        if self.ignored or not (self.has_watermark or self.event_time):
            return None
        if self.has_watermark:
            return F.col(WATERMARK)
        return self.event_micros - self.delay

    @property
    def event_micros(self) -> Column:
        """The event time of each row in microseconds; null if the rows have none."""
        if self.event_time is None or self.event_type is None:
            return F.lit(None).cast("long")
        return micros_of(self.event_time, self.event_type)

    def source(self, first: int = 0) -> Column:
        """Return the number of each row's source; `first` is the number of this DataFrame's first input."""
        if self.has_source:
            return F.col(SOURCE) + first * SOURCES_MAX
        return source_number(first, one=self.has_watermark or not self.by_partition)

    def row_times(self) -> Times:
        """Return the times for a kernel that looks at the event times of its rows."""
        return Times(
            event_time=self.event_time,
            delay=self.delay,
            idle_after=self.idle_after,
            by_partition=self.by_partition,
            estimate=self.estimate,
            watermark=WATERMARK if self.has_watermark else None,
            source=SOURCE if self.has_source else None,
            inputs=self.inputs,
            leaves=self.leaves,
        )


def micros_of(name: str, kind: DataType) -> Column:
    """Return a column of times as microseconds since 1970, whatever the time zone of the session is."""
    if isinstance(kind, TimestampType):
        return F.unix_micros(column(name))
    if isinstance(kind, TimestampNTZType):  # Its times are in UTC.
        since = F.expr(f"{quoted(name)} - timestamp_ntz'1970-01-01 00:00:00'")
        return (since.cast("decimal(38, 6)") * 1_000_000).cast("long")
    if isinstance(kind, DateType):
        return F.unix_date(column(name)).cast("long") * _DAY
    raise InvalidError(f"the time {name!r} is {kind.simpleString()}, expected timestamp; cast it")


def check_input(rows: DataFrame) -> None:
    """Raise InvalidError if an operator cannot use these rows, or if a step has lost columns that it needs."""
    check_change_type(rows)
    lost, origin = lost_columns(rows)
    try:
        changes_of(rows)
    except LostChangesError as error:
        if not (error.is_dropped and lost):
            raise
        message = lost_columns_message([CHANGE, *lost], str(error.changes), error.step)
        raise InvalidError(message) from None
    if lost:
        raise InvalidError(lost_columns_message(lost, origin, dropping_step(rows, lost[0])))
    check_names(rows.columns)


def timing_of(rows: DataFrame) -> Timing:
    """Check the rows of an operator's input, and read their event time and watermark from the columns."""
    check_input(rows)
    field = event_time_field(rows)
    name, metadata = (None, {}) if field is None else (field.name, field.metadata)
    has_watermark = WATERMARK in rows.columns
    return Timing(
        event_time=name,
        event_type=None if field is None else field.dataType,
        delay=int(metadata.get(DELAY_KEY, 0)),
        idle_after=metadata.get(IDLE_KEY),
        by_partition=bool(metadata.get(BY_PARTITION_KEY)),
        estimate=None if name is None or has_watermark else estimate_of(rows, name),
        inputs=inputs_of(rows, name),
        has_watermark=has_watermark,
        has_source=SOURCE in rows.columns,
        leaves=_leaves(rows),
    )


def _leaves(rows: DataFrame) -> frozenset[int]:
    drafts = current_query().drafts
    return frozenset() if drafts is None else drafts.leaves(rows)


def mark_times(*timings: Timing) -> Times:
    """Return the times for a kernel whose rows have their watermark in `MARK`, from one input or several."""
    marked = [timing for timing in timings if timing.mark is not None]
    if not marked:
        return Times()
    firsts = accumulate((timing.inputs for timing in timings), initial=0)
    idle_after = common_idle(marked)
    return Times(
        watermark=MARK,
        source=SOURCE,
        inputs=sum(timing.inputs for timing in marked),
        estimates={
            first: timing.estimate
            for first, timing in zip(firsts, timings, strict=False)
            if timing.estimate is not None
        },
        idle_after=idle_after,
        processing_time=idle_after is not None,
        leaves=frozenset().union(*(timing.leaves for timing in marked)),
    )


def common_idle(timings: Iterable[Timing]) -> int | None:
    """Return the time after which every input counts as idle; None if one of them never becomes idle."""
    idles = [timing.idle_after for timing in timings]
    return None if None in idles else max(idle for idle in idles if idle is not None)


def with_marks(rows: DataFrame, timing: Timing) -> DataFrame:
    """Add the columns `MARK` and `SOURCE` to rows that have a watermark, in place of `_watermark`.

    In changes, a row without a value in `_change` is inserted.
    """
    rows, mark = with_change(rows), timing.mark
    if mark is None:
        return rows.drop(WATERMARK, SOURCE)
    return rows.withColumns({MARK: mark, SOURCE: timing.source()}).drop(WATERMARK)


def select_used(rows: DataFrame, names: Iterable[str | None]) -> DataFrame:
    """Select the columns that a kernel uses, and those of the times; Spark cannot know which it does not use.

    Without one of the named columns all are returned, so that the kernel can report which it misses.
    """
    used = {name for name in names if name is not None}
    if not used <= set(rows.columns):
        return rows
    kept = {*used, timing_of(rows).event_time, *METADATA_COLUMNS}
    return rows.select(*(column(name) for name in rows.columns if name in kept))


def kernel_schema(rows: DataFrame, used: Iterable[str | None] | None = None) -> pl.Schema:
    """Return the schema in which a kernel sees the rows of a DataFrame.

    Raises an InvalidError if a kernel would change the type of a column, or compare its values in another way than
    Spark; if only some columns are `used`, of one of these.
    """
    schema = rows.drop(WATERMARK, SOURCE, MARK).schema
    names = set(schema.names) if used is None else set(used)
    for field in schema.fields:
        if field.name in names:
            _check_type(field)
    return empty_like(schema).schema


def _check_type(field: StructField) -> None:
    one = StructType([StructField("x", field.dataType)])
    try:
        same = spark_schema(empty_like(one)).fields[0].dataType.simpleString() == field.dataType.simpleString()
    except PySparkException:  # Arrow has no such type.
        same = False
    if not same:
        raise InvalidError(
            f"the column {field.name!r} is {field.dataType.simpleString()}, which only Spark's own operators can "
            "compare and store; drop it, or cast it to another type first (an interval to its number of seconds, "
            "a variant or a text with a collation to string)"
        )
