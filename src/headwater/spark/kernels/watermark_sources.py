"""Several inputs of one operator: each has its own sources, and the watermark is the least of all of them.

Rows of several inputs come as one DataFrame, a union. Which task reads which partition then depends on what
else has rows in a batch, so a row itself says of which source it is: `source_number`. An input without a single
row yet holds the watermark back, unlike an empty partition of an input that has others: nothing is known of it.
Where partitions become idle after a time, so does such an input.

The rows of a union say it in a column beside their watermark, as long as it is not known how far each is.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import InvalidError
from headwater.process.watermarks import Estimate, ObservedBatch

WATERMARK = "_watermark"
"""The column in which an operator's rows tell the watermark at which they came, for an operator behind it."""

SOURCES_MAX = 1 << 20
"""Partitions that an input can have; far more than a topic has."""

SOURCE = "_watermark_source"
"""The column in which rows of several inputs say of which source they are."""

INPUTS_KEY = "headwater.inputs"
"""On the event time's column: of how many inputs these rows are."""

_SINCE = "since"


def source_number(number: int, *, one: bool) -> Column:
    """Which source a row of input `number` is of: its partition, or the input as `one`.

    Must be asked for before the union: there the number of a partition is the input's own.
    """
    first = F.lit(number * SOURCES_MAX)
    return first if one else first + F.spark_partition_id()


def inputs_of(rows: DataFrame, event_time: str | None) -> int:
    """How many inputs these rows come from; what says of which must still be there."""
    inputs = 1 if event_time is None else int(rows.schema[event_time].metadata.get(INPUTS_KEY, 1))
    lost = [name for name in (WATERMARK, SOURCE) if name not in rows.columns]
    if inputs > 1 and lost:
        raise InvalidError(
            f"these rows of hw.union have lost the column {', '.join(lost)}, by which the watermarks of its "
            f"inputs are told: keep it in `select`, beside {event_time!r}"
        )
    return inputs


def by_input(estimates: Mapping[int, Estimate], otherwise: Estimate) -> Estimate:
    """Estimate each partition's watermark as its input does."""

    def estimate(batch: ObservedBatch) -> int:
        number, partition = divmod(int(batch.partition), SOURCES_MAX)
        return estimates.get(number, otherwise)(replace(batch, partition=str(partition)))

    return estimate


def all_heard(notes: dict[str, Any], inputs: int, idle_after: int | None, clock: int) -> bool:
    """Whether each input has said something, or has been silent for long enough."""
    if inputs <= 1:
        return True
    heard = {int(name) // SOURCES_MAX for name in notes.get("sources", {})}
    since = int(notes.setdefault(_SINCE, clock))
    return len(heard) >= inputs or (idle_after is not None and clock - since >= idle_after)
