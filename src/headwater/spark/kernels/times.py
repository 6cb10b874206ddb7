"""The times of a kernel: which columns of its rows carry them, and how its watermark is made."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.process.watermarks import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The origin of a kernel's times.

    `event_time`, `watermark` and `clock` name columns of microseconds since 1970.

    The watermark is the minimum over all source partitions of their highest event time minus `delay`, or of the
    result of `estimate`. With a column `watermark` it is taken from that column, or from the result of
    `estimates`, by the number of the input. A partition without rows for `idle_after` does not hold the watermark
    back.

    Unless `by_partition`, all tasks are one source: files, for example, have as many tasks as there happen to be,
    and some buckets of an operator may never emit rows. With a column `source`, the rows carry the number of their
    source; see `watermark_sources` for several `inputs`.

    The processing time is that of the batch if `processing_time` is set; with a column `clock` it is taken from
    that column; then a row that has nulls in all other columns only carries these times.
    """

    event_time: str | None = None
    by_partition: bool = True
    delay: int = 0
    estimate: Estimate | None = None
    estimates: Mapping[int, Estimate] = field(default_factory=dict)
    idle_after: int | None = None
    processing_time: bool = False
    watermark: str | None = None
    clock: str | None = None
    source: str | None = None
    inputs: int = 1
    leaves: frozenset[int] = frozenset()
    """The topics and operators whose watermarks it is the minimum of, if the query is drawn (`query_context`)."""
