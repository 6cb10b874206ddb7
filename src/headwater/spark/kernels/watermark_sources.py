"""Watermark of an operator with several inputs: the minimum over the sources (partitions) of all inputs.

Rows of several inputs arrive as one DataFrame, a union. Which task reads which partition then depends on what else
has rows in a batch, so each row carries the number of its source: `source_number`. An input that has not had a row
yet holds the watermark back, unlike an empty partition of an input that has others, because its event times are
unknown. Where partitions become idle after a time, so does such an input.

The rows of a union carry this number in a column next to `_watermark`, for the next operator.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.change import CHANGE
from headwater.process.watermarks import Estimate, ObservedBatch

WATERMARK = "_watermark"
"""Column of the watermark at which an operator emitted a row, for the next operator."""

SOURCES_MAX = 1 << 20
"""Maximum number of partitions of an input; far more than a topic has."""

SOURCE = "_watermark_source"
"""Column of the source's number, in rows of several inputs."""

METADATA_COLUMNS = (CHANGE, WATERMARK, SOURCE)
"""Columns that describe a row and are not part of it."""

INPUTS_KEY = "headwater.inputs"
"""Metadata of the event time's column: the number of inputs that the rows come from."""

_COLUMNS_KEY, _OPERATOR_KEY = "headwater.watermarkColumns", "headwater.operator"
"""Metadata of the event time's column: the columns that carry the watermark, and the operator that added them."""

_SINCE = "since"


def source_number(number: int, *, one: bool) -> Column:
    """Return the source number of the rows of input `number`: one for each partition, or `one` for all.

    Must be called before the union, where the number of a partition is still the input's own.
    """
    first = F.lit(number * SOURCES_MAX)
    return first if one else first + F.spark_partition_id()


def inputs_of(rows: DataFrame, event_time: str | None) -> int:
    """Return how many inputs these rows come from."""
    return 1 if event_time is None else int(rows.schema[event_time].metadata.get(INPUTS_KEY, 1))


def watermark_columns(operator: str, *names: str) -> dict[str, Any]:
    """Return metadata for the event time's column: the columns that carry the watermark of an operator's rows."""
    return {_COLUMNS_KEY: list(names), _OPERATOR_KEY: operator} if names else {}


def lost_columns(rows: DataFrame) -> tuple[list[str], str]:
    """Return the columns with the watermark of these rows that a step has dropped, and the operator's name."""
    for field in rows.schema.fields:
        lost = [name for name in field.metadata.get(_COLUMNS_KEY, ()) if name not in rows.columns]
        if lost:
            return lost, f"hw.{field.metadata[_OPERATOR_KEY]}"
    return [], ""


def by_input(estimates: Mapping[int, Estimate], otherwise: Estimate) -> Estimate:
    """Make an estimate that uses, for each partition, the estimate of its input."""

    def estimate(batch: ObservedBatch) -> int:
        number, partition = divmod(int(batch.partition), SOURCES_MAX)
        return estimates.get(number, otherwise)(replace(batch, partition=str(partition)))

    return estimate


def all_started(notes: dict[str, Any], inputs: int, idle_after: int | None, clock: int) -> bool:
    """Return whether each input has had rows, or has been idle for long enough."""
    if inputs <= 1:
        return True
    since = int(notes.setdefault(_SINCE, clock))
    return _started(notes) >= inputs or (idle_after is not None and clock - since >= idle_after)


def next_idle(notes: dict[str, Any], inputs: int, idle_after: int | None, clock: int) -> int | None:
    """Return when the next source, or an input without rows so far, becomes idle; None if none will."""
    if idle_after is None:
        return None
    seen = [mark["seen_at"] for mark in notes.get("sources", {}).values() if not mark["is_idle"]]
    if _SINCE in notes and _started(notes) < inputs:
        seen.append(notes[_SINCE])
    return min((at + idle_after for at in seen if at + idle_after > clock), default=None)


def _started(notes: dict[str, Any]) -> int:
    """Return how many inputs have had rows."""
    return len({int(name) // SOURCES_MAX for name in notes.get("sources", {})})
