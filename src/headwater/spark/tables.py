"""Tables for `df.transform(...)`: a changelog becomes a table, whose changes are rows with `_change` 1 or -1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from headwater.errors import InvalidError
from headwater.process.changelog import DELETED, POSITION, ChangelogKernel
from headwater.process.kernel import Kernel
from headwater.spark.frames import empty_like
from headwater.spark.inputs import source_number
from headwater.spark.operators import WATERMARK
from headwater.spark.rows import BY_PARTITION_KEY, DELAY_KEY, ESTIMATE_KEY, EVENT_TIME_KEY, IDLE_KEY
from headwater.spark.stateful import Times, run_kernel
from headwater.spark.surroundings import current_surroundings

_MARK, _SOURCE = "_mark", "_source"
_ENVELOPE = ("op", "before", "after")


def table(
    changes: DataFrame,
    *,
    key: str | Sequence[str],
    position: str | Sequence[str] = (),
    deleted: str | None = None,
) -> DataFrame:
    """Fold a changelog into a table with one row for each `key`; the result are the table's changes.

    A row says what the row of its key is from then on; `deleted` is a condition in SQL for those that say it is
    gone (`"value is null"` for the tombstones of a compacted topic). Debezium's envelopes (`op`, `before`,
    `after`) are understood as they are, and so are changes of ours (`_change`), which are summed up.

    `position` names the columns by which changes are ordered; without, they count in the order of their
    arrival. An older change does nothing, nor does the deletion of an unknown row. A change without key is in
    the late ledger.
    """
    keys = [key] if isinstance(key, str) else list(key)
    positions = [position] if isinstance(position, str) else list(position)
    prepared = changes.withColumns({f"{POSITION}{n}": F.col(name) for n, name in enumerate(positions)})
    if _is_envelope(changes):
        if deleted is not None:
            raise InvalidError("table: Debezium's envelopes say themselves what is deleted; leave `deleted` out")
        prepared = _opened(prepared, keys)
    elif deleted is not None:
        prepared = prepared.withColumn(DELETED, F.expr(deleted))
    schema = empty_like(prepared.drop(WATERMARK).schema).schema
    kernel = ChangelogKernel.of(keys, schema)
    return run_over(prepared, kernel, by=keys, kind="table", meaning={"position": positions, "deleted": deleted})


# -- for all operators over tables ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timing:
    """What a DataFrame says of event time: how its rows tell the watermark, and its column of event times.

    Where `is_one`, its tasks are no partitions, and all of them are one source: those of an operator, of whose
    buckets some may be silent, and those of files, of which there are as many as happen to be there.
    """

    mark: Column | None = None
    event_time: str | None = None
    idle_after: int | None = None
    is_one: bool = True


def timing_of(rows: DataFrame) -> Timing:
    """A watermark comes from the operator before, or from event times, or there is none."""
    marked = [field for field in rows.schema.fields if field.metadata.get(EVENT_TIME_KEY)]
    name = marked[0].name if marked else None
    if WATERMARK in rows.columns:
        return Timing(F.col(WATERMARK), name)
    if not marked:
        return Timing()
    metadata = marked[0].metadata
    if metadata.get(ESTIMATE_KEY):
        raise InvalidError(
            "tables and joins do not know a topic's own `watermark` yet; declare the topic with `delay` instead"
        )
    mark = F.unix_micros(F.col(f"`{name}`").cast("timestamp")) - int(metadata.get(DELAY_KEY, 0))
    return Timing(mark, name, metadata.get(IDLE_KEY), is_one=not metadata.get(BY_PARTITION_KEY))


def run_over(
    rows: DataFrame, kernel: Kernel, *, by: Sequence[str], kind: str, meaning: dict[str, Any]
) -> DataFrame:
    """Run a kernel of one input whose output keeps the event time of its rows, if it has any."""
    timing = timing_of(rows)
    note_meaning(kernel, kind, {"by": list(by), **meaning})
    timed, times = rows.drop(WATERMARK), Times()
    if timing.mark is not None:
        source = source_number(0, one=timing.is_one)
        timed = rows.withColumns({_MARK: timing.mark, _SOURCE: source}).drop(WATERMARK)
        idle = timing.idle_after
        times = Times(watermark=_MARK, source=_SOURCE, idle_after=idle, processing_time=idle is not None)
    told = {} if timing.mark is None else {"watermark": WATERMARK}
    result = run_kernel(timed, kernel, by=by, times=times, told=told, kind=kind)
    return with_event_time(result, timing.event_time)


def note_meaning(kernel: Kernel, kind: str, meaning: dict[str, Any]) -> None:
    """For who has to tell whether a query is still the one it was."""
    state = {name: str(dict(table.schema)) for name, table in kernel.initial().items()}
    current_surroundings().meanings.append({"name": kind, **meaning, "state": state})


def with_event_time(rows: DataFrame, name: str | None) -> DataFrame:
    """The rows with their column of event times marked, if it is still there."""
    if name is None or name not in rows.columns:
        return rows
    return rows.withMetadata(name, {EVENT_TIME_KEY: True})


def kernel_schema(rows: DataFrame) -> pl.Schema:
    """What the rows of a DataFrame look like in a kernel."""
    return empty_like(rows.drop(WATERMARK).schema).schema


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
    beside = [name for name in changes.columns if name.startswith(POSITION) or name == WATERMARK]
    entry = changes.select(F.explode(entries).alias("entry"), *beside)
    return entry.select("entry.row.*", F.col(f"entry.{DELETED}").alias(DELETED), *beside)
