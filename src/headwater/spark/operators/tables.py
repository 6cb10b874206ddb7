"""`hw.table`: folds a changelog into a table, whose changes are rows with `_change` 1 or -1."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.durations import micros
from headwater.process.tables.changelog import AT, DELETED, POSITION, ChangelogKernel
from headwater.spark.kernels.attach import OutputTiming, attach, describe
from headwater.spark.kernels.column_names import check_names, column, quoted
from headwater.spark.kernels.watermark_sources import SOURCE
from headwater.spark.operators.timing import MARK, Timing, kernel_schema, mark_times, timing_of, with_marks

_ENVELOPE = ("op", "before", "after")


def table(
    changes: DataFrame,
    *,
    key: str | Sequence[str],
    position: str | Sequence[str] = (),
    deleted: str | None = None,
    lateness: str | None = None,
) -> DataFrame:
    """Fold a changelog into a table with one row for each `key`; the result is the table's changes.

    A row replaces the row of its key. `deleted` is a condition in SQL for rows that delete the row of their key
    (`"value is null"` for the tombstones of a compacted topic). Debezium's envelopes (`op`, `before`, `after`) are
    read directly, and so are Headwater's own changes (`_change`), which are summed up.

    `position` names the columns by which changes are ordered; the default is the order of arrival. A change older
    than the row of its key has no effect, nor has the deletion of an unknown row. A change without a key goes to
    the late ledger.

    The positions of deleted keys are kept, so that an older change cannot restore a deleted row: indefinitely, or
    until the watermark has passed the deletion by `lateness`. After that, a change of an unknown key that is older
    than that goes to the late ledger.
    """
    keys = [key] if isinstance(key, str) else list(key)
    positions = [position] if isinstance(position, str) else list(position)
    timing = timing_of(changes)
    prepared = with_marks(changes, timing)
    # A position may also be a field of a struct, such as `source.lsn`.
    prepared = prepared.withColumns(
        {
            f"{POSITION}{n}": column(name) if name in changes.columns else F.col(name)
            for n, name in enumerate(positions)
        }
    )
    if lateness is not None:
        _check_lateness(timing, positions, changes)
        prepared = prepared.withColumn(AT, timing.event_micros)
    if _is_envelope(changes):
        if CHANGE in changes.columns:
            raise InvalidError(
                f"table: Debezium's envelopes with a column {CHANGE!r} would be changes of changes; use the topic "
                "of envelopes itself, or select the fields of `after` first"
            )
        if deleted is not None:
            raise InvalidError("table: Debezium's envelopes mark deleted rows themselves; leave out `deleted`")
        prepared = _unpack_envelopes(prepared, keys)
    elif deleted is not None:
        prepared = prepared.withColumn(DELETED, F.expr(deleted))
    late = None if lateness is None else micros(lateness)
    kernel = ChangelogKernel.of(keys, kernel_schema(prepared), late)
    parts = {"by": keys, "position": positions, "deleted": deleted, "lateness": lateness}
    return attach(
        prepared,
        kernel,
        describe("table", kernel, parts, changes),
        by=keys,
        kind="table",
        times=mark_times(timing),
        output=OutputTiming(event_time=timing.event_time, has_watermark=timing.mark is not None),
    )


# -- checks ---------------------------------------------------------------------------------------------------


def _check_lateness(timing: Timing, positions: Sequence[str], changes: DataFrame) -> None:
    if not positions or CHANGE in changes.columns:
        raise InvalidError(
            "table: `lateness` limits how long positions of deleted keys are kept, and there is no `position`: "
            "leave it out"
        )
    if timing.event_time is None:
        raise InvalidError(
            f"table: `lateness` needs an event time, and none of the columns is one: {', '.join(changes.columns)}"
        )


# -- Debezium -------------------------------------------------------------------------------------------------


def _is_envelope(changes: DataFrame) -> bool:
    fields = {field.name: field.dataType for field in changes.schema.fields}
    return all(name in fields for name in _ENVELOPE) and isinstance(fields["after"], StructType)


def _unpack_envelopes(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Unpack envelopes to rows with a flag for deletion. A row whose key changes is deleted and inserted."""
    fields = changes.schema["after"].dataType
    assert isinstance(fields, StructType)
    check_names(fields.names)
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
        moved = moved | ~F.col(f"before.{quoted(name)}").eqNullSafe(F.col(f"after.{quoted(name)}"))
    is_moved = (op == "u") & F.col("before").isNotNull() & moved
    truncated = F.raise_error(
        F.lit(
            "table: a truncation (op 't') does not name the deleted rows; delete them singly, or rebuild the view"
        )
    )
    entries = (
        F.when(op == "d", F.array(gone))
        .when(is_moved, F.array(gone, there))
        .when(op.isin("c", "r", "u"), F.array(there))
        .when(op == "t", F.array(F.struct(F.lit(True).alias(DELETED), truncated.cast(fields).alias("row"))))
    )
    side_columns = [n for n in changes.columns if n.startswith(POSITION) or n in (MARK, SOURCE, AT)]
    entry = changes.select(F.explode(entries).alias("entry"), *side_columns)
    return entry.select("entry.row.*", F.col(f"entry.{DELETED}").alias(DELETED), *side_columns)
