"""Spark's side of a stateful operator: declares its state at once, and loads the kernel when rows arrive.

When a query starts, Spark starts a Python process for each stateful operator, only to read its state variables. So
this module imports little: with all imports of a kernel, that took a second of processor time.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol, cast

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

# Types, not strings: every task would have Java parse a string.
_DATA = StructType().add("data", BinaryType())
_PIECE = StructType().add("run", StringType()).add("number", IntegerType())


class BucketSteps(Protocol):
    """The work on the rows of a bucket."""

    def open(self, handle: Any, manifest: Any, pieces: Any) -> None:
        """Set Spark's handle for timers, and the two state variables of the current bucket."""

    def take_rows(self, bucket: int, frames: Iterator[Any], timers: Any) -> Iterator[Any]:
        """Process the rows of a batch."""

    def take_timer(self, bucket: int, timers: Any) -> Iterator[Any]:
        """Process a timer that is due."""


class LazyProcessor(StatefulProcessor):
    """Called by Spark in every batch for each bucket that has input, and for each bucket whose timer is due."""

    def __init__(self, steps: BucketSteps) -> None:
        self._pickled = bytes(cloudpickle.dumps(steps))  # type: ignore[no-untyped-call]

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._manifest = handle.getValueState("manifest", _DATA)
        self._pieces = handle.getMapState("pieces", _PIECE, _DATA)

    @cached_property
    def _steps(self) -> BucketSteps:
        steps = cast(BucketSteps, cloudpickle.loads(self._pickled))
        steps.open(self._handle, self._manifest, self._pieces)
        return steps

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Any]:
        return self._steps.take_rows(key[0], rows, timerValues)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Any]:
        return self._steps.take_timer(key[0], timerValues)

    def close(self) -> None:
        pass
