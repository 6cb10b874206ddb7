"""The rows of a topic in a batch, as the queries of a lane use them (`records`)."""

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from headwater.app import Topic
from headwater.process.watermarks import EventTimes
from headwater.spark.source.left_out import LeftOut
from headwater.spark.source.offsets import Range
from headwater.transmit.client.client import Client


class TooLargeError(Exception):
    """The records of a batch are too large for the driver: Spark's tasks have to read them."""


class TopicRows(Protocol):
    """The rows of a topic in a batch."""

    topic: Topic
    event_times: EventTimes
    records: int
    unmatched: pa.Table
    """The records that do not match the schema: key, value, topic, partition, offset."""

    def leaf(self, without: LeftOut) -> Any:
        """Return the rows for a stage, without the records that a query leaves out."""

    def part(self, without: LeftOut) -> Hashable:
        """Return a value that is the same for queries which leave out the same of these records."""

    def close(self) -> None:
        """Free what the rows take."""


class Decoder(Protocol):
    """Reads and decodes the records of a topic; see `records.TopicDecoder`."""

    def small(self, client: Client, ranges: Sequence[Range]) -> TopicRows: ...

    def large(self, ranges: Sequence[Range]) -> TopicRows: ...
