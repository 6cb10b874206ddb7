"""Several inputs of one operator: each has its own sources, and the watermark is the least of all of them.

Rows of several inputs come as one DataFrame, a union. Which task reads which partition then depends on what
else has rows in a batch, so a row itself says of which source it is: `source_number`. An input without a single
row yet holds the watermark back, unlike an empty partition of an input that has others: nothing is known of it.
Where partitions become idle after a time, so does such an input.
"""

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

SOURCES_MAX = 1 << 20
"""Partitions that an input can have; far more than a topic has."""

_SINCE = "since"


def source_number(number: int, *, one: bool) -> Column:
    """Which source a row of input `number` is of: its partition, or the input as `one`.

    Must be asked for before the union: there the number of a partition is the input's own.
    """
    first = F.lit(number * SOURCES_MAX)
    return first if one else first + F.spark_partition_id()


def all_heard(notes: dict[str, Any], inputs: int, idle_after: int | None, clock: int) -> bool:
    """Whether each input has said something, or has been silent for long enough."""
    if inputs <= 1:
        return True
    heard = {int(name) // SOURCES_MAX for name in notes.get("sources", {})}
    since = int(notes.setdefault(_SINCE, clock))
    return len(heard) >= inputs or (idle_after is not None and clock - since >= idle_after)
