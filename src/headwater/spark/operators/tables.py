"""Tables for `df.transform(...)`: a changelog becomes a table, whose changes are rows with `_change` 1 or -1."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.durations import micros
from headwater.process.kernel import BEGINNING, Kernel
from headwater.process.tables.changelog import AT, DELETED, POSITION, ChangelogKernel
from headwater.process.watermarks import Estimate
from headwater.spark.kernels.frames import empty_like
from headwater.spark.kernels.query_context import current_query
from headwater.spark.kernels.runner import Times, run_kernel
from headwater.spark.kernels.watermark_sources import SOURCE, SOURCES_MAX, WATERMARK, inputs_of, source_number
from headwater.spark.source.decoding import BY_PARTITION_KEY, DELAY_KEY, EVENT_TIME_KEY, IDLE_KEY, estimate_of

MARK = "_mark"
"""The column in which rows tell the watermark to the operator that they are going into."""

_ENVELOPE = ("op", "before", "after")


def table(
    changes: DataFrame,
    *,
    key: str | Sequence[str],
    position: str | Sequence[str] = (),
    deleted: str | None = None,
    lateness: str | None = None,
) -> DataFrame:
    """Fold a changelog into a table with one row for each `key`; the result are the table's changes.

    A row says what the row of its key is from then on; `deleted` is a condition in SQL for those that say it is
    gone (`"value is null"` for the tombstones of a compacted topic). Debezium's envelopes (`op`, `before`,
    `after`) are understood as they are, and so are changes of ours (`_change`), which are summed up.

    `position` names the columns by which changes are ordered; without, they count in the order of their
    arrival. An older change does nothing, nor does the deletion of an unknown row. A change without key is in
    the late ledger.

    The positions of deleted keys are remembered, so that an older change cannot bring a row back: for ever, or
    until the watermark is `lateness` behind the deletion. Then a change of an unknown key that is older than that
    is in the late ledger.
    """
    keys = [key] if isinstance(key, str) else list(key)
    positions = [position] if isinstance(position, str) else list(position)
    timing = timing_of(changes)
    prepared = with_marks(changes, timing)
    prepared = prepared.withColumns({f"{POSITION}{n}": F.col(name) for n, name in enumerate(positions)})
    if lateness is not None:
        _check_lateness(timing, positions, changes)
        prepared = prepared.withColumn(AT, F.unix_micros(F.col(f"`{timing.event_time}`").cast("timestamp")))
    if _is_envelope(changes):
        if deleted is not None:
            raise InvalidError("table: Debezium's envelopes say themselves what is deleted; leave `deleted` out")
        prepared = _opened(prepared, keys)
    elif deleted is not None:
        prepared = prepared.withColumn(DELETED, F.expr(deleted))
    late = None if lateness is None else micros(lateness)
    kernel = ChangelogKernel.of(keys, kernel_schema(prepared), late)
    meaning = {"position": positions, "deleted": deleted, "lateness": lateness}
    return run_over(prepared, kernel, by=keys, kind="table", meaning=meaning, timing=timing)


# -- for all operators over tables ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timing:
    """What a DataFrame says of event time: how its rows tell the watermark, and its column of event times.

    Where `is_one`, its tasks are no partitions, and all of them are one source: those of an operator, of whose
    buckets some may be silent, and those of files, of which there are as many as happen to be there. Rows of a
    union, which has several `inputs`, say themselves of which source they are: they are `sourced`. With an
    `estimate` they tell their times, of which it makes the watermark.
    """

    mark: Column | None = None
    event_time: str | None = None
    idle_after: int | None = None
    is_one: bool = True
    inputs: int = 1
    sourced: bool = False
    estimate: Estimate | None = None

    def source(self, first: int = 0) -> Column:
        """Of which source each row is; `first` is the number of this input among others."""
        if self.sourced:
            return F.col(SOURCE) + first * SOURCES_MAX
        return source_number(first, one=self.is_one)


def timing_of(rows: DataFrame) -> Timing:
    """A watermark comes from the operator before, or from event times, or there is none."""
    marked = [field for field in rows.schema.fields if field.metadata.get(EVENT_TIME_KEY)]
    name = marked[0].name if marked else None
    metadata = marked[0].metadata if marked else {}
    idle = metadata.get(IDLE_KEY)
    inputs = inputs_of(rows, name)
    if WATERMARK in rows.columns:
        return Timing(F.col(WATERMARK), name, idle, inputs=inputs, sourced=SOURCE in rows.columns)
    if not marked:
        return Timing()
    mark = F.unix_micros(F.col(f"`{name}`").cast("timestamp")) - int(metadata.get(DELAY_KEY, 0))
    is_one = not metadata.get(BY_PARTITION_KEY)
    return Timing(mark, name, idle, is_one, estimate=estimate_of(rows, marked[0].name))


def with_marks(rows: DataFrame, timing: Timing) -> DataFrame:
    """The rows with what they say of the watermark in columns of their own."""
    if timing.mark is None:
        return rows.drop(WATERMARK, SOURCE)
    return rows.withColumns({MARK: timing.mark, SOURCE: timing.source()}).drop(WATERMARK)


def run_over(
    rows: DataFrame,
    kernel: Kernel,
    *,
    by: Sequence[str],
    kind: str,
    meaning: dict[str, Any],
    timing: Timing | None = None,
    hold: int = 0,
) -> DataFrame:
    """Run a kernel of one input whose output keeps the event time of its rows, if it has any.

    What comes out can be `hold` behind the watermark. With `timing`, the rows have their marks already.
    """
    if timing is None:
        timing = timing_of(rows)
        rows = with_marks(rows, timing)
    note_meaning(kernel, kind, {"by": list(by), **meaning})
    idle, times, told = timing.idle_after, Times(), {}
    if timing.mark is not None:
        times = Times(
            watermark=MARK,
            source=SOURCE,
            inputs=timing.inputs,
            estimates={} if timing.estimate is None else {0: timing.estimate},
            idle_after=idle,
            processing_time=idle is not None,
        )
        told = {"watermark": WATERMARK}
    result = run_kernel(rows, kernel, by=by, times=times, told=told, kind=kind)
    return with_event_time(held(result, hold), timing.event_time)


def held(rows: DataFrame, hold: int) -> DataFrame:
    """What comes out may be this far behind the watermark at which it does, and is not late for that."""
    if not hold or WATERMARK not in rows.columns:
        return rows
    return rows.withColumn(WATERMARK, F.greatest(F.col(WATERMARK), F.lit(BEGINNING + hold)) - hold)


def note_meaning(kernel: Kernel, kind: str, meaning: dict[str, Any]) -> None:
    """For who has to tell whether a query is still the one it was."""
    state = {name: str(dict(table.schema)) for name, table in kernel.initial().items()}
    current_query().meanings.append({"name": kind, **meaning, "state": state})


def with_event_time(rows: DataFrame, name: str | None) -> DataFrame:
    """The rows with their column of event times marked, if it is still there."""
    if name is None or name not in rows.columns:
        return rows
    return rows.withMetadata(name, {EVENT_TIME_KEY: True})


def only(rows: DataFrame, names: Iterable[str | None]) -> DataFrame:
    """The rows with these columns, if it has all of them, and with those that say when they were.

    Spark cannot know at which columns a kernel does not look.
    """
    wanted = {name for name in names if name is not None}
    if not wanted <= set(rows.columns):
        return rows  # It will be told which it has.
    kept = {*wanted, timing_of(rows).event_time, CHANGE, WATERMARK, SOURCE}
    return rows.select(*(f"`{name}`" for name in rows.columns if name in kept))


def kernel_schema(rows: DataFrame) -> pl.Schema:
    """What the rows of a DataFrame look like in a kernel."""
    return empty_like(rows.drop(WATERMARK, SOURCE, MARK).schema).schema


# -- tables ---------------------------------------------------------------------------------------------------


def _check_lateness(timing: Timing, positions: Sequence[str], changes: DataFrame) -> None:
    if not positions or CHANGE in changes.columns:
        raise InvalidError(
            "table: `lateness` is for how long positions of deleted keys are remembered, and here there are none: "
            "leave it out"
        )
    if timing.event_time is None:
        raise InvalidError(
            f"table: `lateness` is in event time, and there is none among the columns {', '.join(changes.columns)}"
        )


# -- Debezium -------------------------------------------------------------------------------------------------


def _is_envelope(changes: DataFrame) -> bool:
    fields = {field.name: field.dataType for field in changes.schema.fields}
    return all(name in fields for name in _ENVELOPE) and isinstance(fields["after"], StructType)


def _opened(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The rows of envelopes, and whether each is deleted. A row whose key changes is deleted and put."""
    fields = changes.schema["after"].dataType
    assert isinstance(fields, StructType)
    missing = [name for name in keys if name not in fields.names]
    if missing:
        raise InvalidError(
            f"table: there is no key column {missing[0]!r}; the rows have: {', '.join(fields.names)}"
        )
    op = F.col("op")
    gone = F.struct(F.lit(True).alias(DELETED), F.col("before").cast(fields).alias("row"))
    there = F.struct(F.lit(False).alias(DELETED), F.col("after").alias("row"))
    moved = F.lit(False)
    for name in keys:
        moved = moved | ~F.col(f"before.`{name}`").eqNullSafe(F.col(f"after.`{name}`"))
    is_moved = (op == "u") & F.col("before").isNotNull() & moved
    truncated = F.raise_error(
        F.lit("table: a truncation (op 't') says nothing of single rows; delete them, or rebuild the view")
    )
    entries = (
        F.when(op == "d", F.array(gone))
        .when(is_moved, F.array(gone, there))
        .when(op.isin("c", "r", "u"), F.array(there))
        .when(op == "t", F.array(F.struct(F.lit(True).alias(DELETED), truncated.cast(fields).alias("row"))))
    )
    beside = [n for n in changes.columns if n.startswith(POSITION) or n in (MARK, SOURCE, AT)]
    entry = changes.select(F.explode(entries).alias("entry"), *beside)
    return entry.select("entry.row.*", F.col(f"entry.{DELETED}").alias(DELETED), *beside)
