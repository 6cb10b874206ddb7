"""Finds the records of a failed batch on which a query's function fails, or whose rows its sink refuses.

The batch is tried again in parts, as bounded DataFrames whose rows are discarded, or are written and rolled back,
until single records remain.

Only single records are the fault of the records. A function that fails on every record is wrong itself, and the
search then ends with `EveryRecordFailsError` instead of sending the whole topic to the dead letters:

- Of a batch with several records, up to PROBES are tried alone first. If all of them fail, no record is excluded.
- A batch with one record proves nothing. So the function is tried on the records before it: if it fails on those
  that it has processed, it is wrong by now. And the records before it that were excluded are counted: STREAK_MAX
  in a row are not single records any more, nor are FIRST_STREAK_MAX if no record was ever processed. Both are read
  from the log and its dead letters, so a restart changes nothing.

Each topic of a query is judged on its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from headwater.app import Query, Topic
from headwater.errors import HeadwaterError, RefusedError, UnavailableError
from headwater.record import EARLIEST, TopicPartition
from headwater.sink import REFUSALS_MAX
from headwater.spark.pipeline.bisection import NoneFailsAloneError, TooManyFailError, find_failing
from headwater.spark.pipeline.failures import Failure, read_failure
from headwater.spark.pipeline.plan import call_function, good
from headwater.spark.source.checkpoint import BegunBatch, begun_batch
from headwater.spark.source.decoding import matching_records
from headwater.spark.source.exclusions import Exclusions
from headwater.spark.source.offsets import Range, from_json
from headwater.spark.source.topic_reads import read_part
from headwater.store.pipelines.generations import Starting
from headwater.transmit.client.client import Client

PROBES = 10
"""Records of a batch, spread over it, that are tried alone first."""

STREAK_MAX, FIRST_STREAK_MAX = 10, 3
"""Records in a row, each alone in its batch, of which the last one ends the query instead of being excluded; the
second number holds as long as no record was processed."""

Parts = Mapping[str, Sequence[Range]]
"""The ranges to read, by topic."""


def nowhere(rows: DataFrame) -> None:
    """Compute the rows and discard them, to see whether that fails."""
    rows.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationContext:
    """The environment of a query, needed to run parts of its batch again."""

    spark: SparkSession
    servers: str
    checkpoint: Path
    starting: Starting | None = None
    """Offsets at which its first batch starts, if not at the first record."""
    take: Callable[[DataFrame], None] = nowhere
    """Computes the DataFrame of a part, and raises if that fails."""


@dataclass(frozen=True, slots=True)
class PoisonRow:
    """A record on which the function fails, and the reason."""

    partition: TopicPartition
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a record in the log."""

    partition: TopicPartition
    offset: int


class EveryRecordFailsError(HeadwaterError):
    """The function fails on every record, or the sink refuses every row: no single record is the cause."""


class PoisonSearch:
    """Tries parts of a query's failed batch; `on_try` gets the numbers of records to try and of records found."""

    def __init__(
        self, query: Query, context: IsolationContext, exclusions: Exclusions, on_try: Callable[[int, int], None]
    ) -> None:
        self._query = query
        self._context = context
        self._exclusions = exclusions
        self._on_try = on_try
        self._topics = {topic.name: topic for topic in query.topics}
        self._found: list[PoisonRow] = []
        self._last: Failure | None = None
        self._first_reason = ""

    def run(self) -> list[PoisonRow]:
        """Return the poison rows; raise a HeadwaterError with what was tried if no row causes the failure.

        Raises EveryRecordFailsError if all records of a topic do.
        """
        batch = begun_batch(self._context.checkpoint)
        if batch is None:
            raise HeadwaterError("no batch had been begun")
        whole = _parts(batch, self._query.topics, self._context)
        records = _count(whole)
        if not self._fails(whole):
            raise HeadwaterError(
                f"the {records} records of batch {batch.number} did not fail when tried alone: "
                "no single record is the cause"
            )
        self._first_reason = self._reason
        if self._fails({}):
            raise HeadwaterError(f"it also fails without any record: {self._reason}")
        every: EveryRecordFailsError | None = None
        for topic in whole:
            # With the other topics whole: a row may fail only when it is joined with another.
            if len(whole) == 1 or (self._fails(whole) and not self._fails({**whole, topic: ()})):
                try:
                    self._search(whole, topic, batch.number)
                except EveryRecordFailsError as error:
                    every = error  # Unless they fail because of a record of another topic.
        if every is not None and (not self._found or self._fails(whole)):
            raise every
        if not self._found or self._fails(whole):
            raise HeadwaterError(
                f"batch {batch.number} still fails after removing every record that fails on its own "
                f"({records} tried)"
            )
        return self._found

    def _search(self, whole: Parts, topic: str, batch: int) -> None:
        ranges = whole[topic]
        size = sum(r.end - r.start for r in ranges)
        self._check_every(whole, topic, batch)

        def fails(low: int, high: int) -> bool:
            return self._fails({**whole, topic: cut(ranges, low, high)})

        def found(position: int) -> None:
            (record,) = cut(ranges, position, position + 1)
            self._found.append(PoisonRow(record.partition, record.start, self._reason))

        try:
            find_failing(size, fails, limit=REFUSALS_MAX, on_found=found)
        except NoneFailsAloneError:
            raise HeadwaterError(
                f"the records of topic {topic!r} fail together ({self._reason}), but none of them alone"
            ) from None
        except TooManyFailError as error:
            raise HeadwaterError(
                f"more than {len(error.found)} of the {size} records of topic {topic!r} fail, the last one tried "
                f"with: {self._reason}; with so many, the function is the cause, not the records"
            ) from None

    def _check_every(self, whole: Parts, topic: str, batch: int) -> None:
        """Raise EveryRecordFailsError if it is not single records of a topic that fail."""
        records = list(self._records(topic, whole[topic], self._options(self._topics[topic])))
        if len(records) == 1:
            self._check_earlier(whole, topic)
            return
        probes = spread(records, PROBES)
        if probes and all(self._fails_on(whole, topic, [record]) for record in probes):
            tried = f"all {len(records)}" if len(probes) == len(records) else f"{len(probes)} of {len(records)}"
            raise self._every(f"{tried} records of topic {topic!r} in batch {batch} fail, each tried alone")

    def _check_earlier(self, whole: Parts, topic: str) -> None:
        """Compare the only record of a topic with the records before it: those processed, and those excluded."""
        earlier = self._earlier(topic, whole[topic])
        excluded = [(record.partition, record.offset) in self._exclusions for record in earlier]
        processed = [record for record, out in zip(earlier, excluded, strict=True) if not out]
        streak = 1 + next((n for n, out in enumerate(reversed(excluded)) if not out), len(excluded))
        if streak >= (STREAK_MAX if processed else FIRST_STREAK_MAX):
            raise self._every(
                f"{streak} records of topic {topic!r} in a row failed, the first {streak - 1} are dead letters"
                + ("" if processed else " and none was processed before")
            )
        # A destination may well refuse rows that it has already, so only the function is tried on earlier records.
        refused = self._last is not None and self._last.refused
        if processed and not refused and all(self._fails_on(whole, topic, [record]) for record in processed):
            raise self._every(
                f"it now also fails on the {len(processed)} records of topic {topic!r} before it, which it has "
                "processed"
            )

    def _every(self, evidence: str) -> EveryRecordFailsError:
        return EveryRecordFailsError(
            f"{self._first_reason} ({evidence}, so no single record is the cause, and none was excluded)",
            hint="fix the function or the destination, or filter such records in the function, and start the app "
            "again: the query continues with these records",
        )

    def _fails_on(self, whole: Parts, topic: str, records: Sequence[Place]) -> bool:
        return self._fails({**whole, topic: [Range(r.partition, r.offset, r.offset + 1) for r in records]})

    def _earlier(self, topic: str, ranges: Sequence[Range]) -> list[Place]:
        """Return the last records of a topic before these ranges, oldest first, with those that are excluded."""
        with Client(self._context.servers) as client:
            earliest = client.offsets([r.partition for r in ranges], EARLIEST)
        before = [
            Range(r.partition, max(r.start - STREAK_MAX, earliest[r.partition]), r.start)
            for r in ranges
            if r.start > earliest[r.partition]
        ]
        return list(self._records(topic, before, {"readerName": self._exclusions.reader}))[-STREAK_MAX:]

    def _records(self, topic: str, ranges: Sequence[Range], options: Mapping[str, str]) -> Iterator[Place]:
        """Yield the records that reach the function, in the order of their times."""
        context, declared = self._context, self._topics[topic]
        records = read_part(context.spark, declared, context.servers, ranges, options)
        found = matching_records(records, declared).select("timestamp", "partition", "offset").toArrow()
        for row in found.sort_by([(name, "ascending") for name in found.column_names]).to_pylist():
            yield Place(TopicPartition(topic, row["partition"]), row["offset"])

    @property
    def _reason(self) -> str:
        return self._last.reason if self._last is not None else ""

    def _fails(self, parts: Parts) -> bool:
        """Run the function over parts of the batch, without the records found so far; return whether it fails."""
        self._on_try(_count(parts), len(self._found))
        context = self._context
        try:
            read = good(
                lambda topic: read_part(
                    context.spark, topic, context.servers, parts.get(topic.name, ()), self._options(topic)
                )
            )
            rows = call_function(self._query, read)
            context.take(rows)
        except RefusedError as error:
            self._last = Failure(str(error), RefusedError)
            return True
        except HeadwaterError:
            raise
        except Exception as error:
            failure = read_failure(str(error))
            if failure.transient:
                raise UnavailableError(failure.reason) from error
            self._last = failure
            return True
        return False

    def _options(self, topic: Topic) -> dict[str, str]:
        found = ((row.partition, row.offset) for row in self._found)
        return self._exclusions.options(topic.name, also=found)


def spread(records: Sequence[Place], count: int) -> list[Place]:
    """Return `count` of the records, spread over all of them, the last one first; all if there are fewer."""
    if len(records) <= count:
        return list(reversed(records))
    return [records[-1 - number * (len(records) - 1) // (count - 1)] for number in range(count)]


def cut(ranges: Sequence[Range], low: int, high: int) -> list[Range]:
    """Return the part of the concatenated ranges from position `low` to before `high`."""
    parts, at = [], 0
    for r in ranges:
        start, end = max(low, at), min(high, at + r.end - r.start)
        if start < end:
            parts.append(Range(r.partition, r.start + start - at, r.start + end - at))
        at += r.end - r.start
    return parts


def _parts(batch: BegunBatch, topics: Sequence[Topic], context: IsolationContext) -> Parts:
    known = from_json(context.starting or {}) if batch.number == 0 else batch.start
    new = [tp for tp in batch.end if tp not in known]
    with Client(context.servers) as client:
        starts = {**known, **client.offsets(new, EARLIEST)}
    return {
        topic.name: [
            Range(tp, min(starts[tp], batch.end[tp]), batch.end[tp])
            for tp in sorted(batch.end)
            if tp.topic == topic.name
        ]
        for topic in topics
    }


def _count(parts: Parts) -> int:
    return sum(r.end - r.start for ranges in parts.values() for r in ranges)
