"""What Spark sees of a stateful operator: which state it has, at once; what becomes of rows, when there are some.

Whenever a query is started, Spark starts a Python process for each stateful operator, only to ask for its state.
So this imports little: with all that a kernel needs, the answer took a second of processor time.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol, cast

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

# Types, not strings: these every task would have Java parse.
_DATA = StructType().add("data", BinaryType())
_PIECE = StructType().add("run", StringType()).add("number", IntegerType())


class BucketSteps(Protocol):
    """What is done with the rows of a bucket."""

    def open(self, handle: Any, manifest: Any, pieces: Any) -> None:
        """Take what Spark keeps for the bucket whose turn it is: timers, and the state in two parts."""

    def take_rows(self, bucket: int, frames: Iterator[Any], timers: Any) -> Iterator[Any]:
        """Take the rows of a batch."""

    def take_timer(self, bucket: int, timers: Any) -> Iterator[Any]:
        """Do what was to be done at this time."""


class LazyProcessor(StatefulProcessor):
    """Called by Spark once for each bucket that has input, in every batch; and for those whose timer is due."""

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
