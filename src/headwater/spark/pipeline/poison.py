"""Poison rows: finds the records on which a query's function fails, or whose rows its sink refuses.

A batch that fails repeatedly is tried again in parts, as bounded DataFrames whose rows are discarded, or are
written and rolled back, until single records remain. These go to the dead-letter topic with the reason, and the
query leaves them out from then on. The dead letter is written first, and the list of excluded records is derived
from the dead letters (`exclusions`), so no record is lost in between. The failed batch was never finished, so none
of its results are visible: it is run again without these records.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headwater.app import Query, Topic
from headwater.clock import Clock
from headwater.errors import ClosedError, HeadwaterError, RefusedError, UnavailableError
from headwater.record import Record, TopicPartition
from headwater.sink import REFUSALS_MAX
from headwater.spark.pipeline.bisection import NoneFailsAloneError, TooManyFailError, find_failing
from headwater.spark.pipeline.checkpoint import BegunBatch, begun_batch
from headwater.spark.pipeline.failures import Failure, read_failure
from headwater.spark.pipeline.plan import call_function, read_part
from headwater.spark.source.exclusions import Exclusions
from headwater.spark.source.offsets import Range, from_json
from headwater.store.generations import Starting
from headwater.transmit.client.client import EARLIEST, Client
from headwater.transmit.client.reading import record_at
from headwater.transmit.client.redrive import KEPT
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.dead_letters import dead_letter_headers

REPORT_EVERY_S = 5.0
"""A search may take hundreds of tries, and its reports must not displace all other facts."""

Report = Callable[[dict[str, Any]], None]
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


class Isolation:
    """Searches for the poison rows of one query's failed batch, in a thread of its own.

    `result()` returns how many records were excluded, or raises a HeadwaterError with the reason why none were.
    """

    def __init__(
        self,
        query: Query,
        failure: Failure,
        context: IsolationContext,
        exclusions: Exclusions,
        clock: Clock,
        report: Report,
    ) -> None:
        self.query = query
        self.failure = failure
        self._context = context
        self._exclusions = exclusions
        self._clock = clock
        self._report = report
        self._stopped = threading.Event()
        self._found = 0
        self._reported: tuple[float, int] | None = None
        self._error: HeadwaterError | None = None
        self._thread = threading.Thread(target=self._run, name=f"isolate-{query.name}", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> int:
        """Wait for the end, and return how many records were excluded."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found

    def stop(self) -> None:
        """End the search between two tries; the next search finds the same records again."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            search = PoisonSearch(self.query, self._context, self._exclusions, self._try_on)
            rows = search.run()
            with Client(self._context.servers) as client:
                post_letters(client, self.query, rows, self._exclusions, self._clock)
                self._exclusions.catch_up(client)
            self._found = len(rows)
        except HeadwaterError as error:
            self._error = error
        except Exception as error:
            self._error = HeadwaterError(f"the search failed with {type(error).__name__}: {error}")

    def _try_on(self, records: int, found: int) -> None:
        if self._stopped.is_set():
            raise ClosedError(f"the search for poison rows of {self.query.name!r} was stopped")
        now = self._clock.monotonic()
        if self._reported is None or found != self._reported[1] or now >= self._reported[0] + REPORT_EVERY_S:
            self._reported = now, found
            among = {"records": records, "found": found}
            self._report({"state": "isolating", "error": self.failure.reason, "isolating": among})


class PoisonSearch:
    """Tries parts of a query's failed batch; `on_try` gets the numbers of records to try and of records found."""

    def __init__(
        self, query: Query, context: IsolationContext, exclusions: Exclusions, on_try: Callable[[int, int], None]
    ) -> None:
        self._query = query
        self._context = context
        self._exclusions = exclusions
        self._on_try = on_try
        self._found: list[PoisonRow] = []
        self._last: Failure | None = None

    def run(self) -> list[PoisonRow]:
        """Return the poison rows; raise a HeadwaterError with what was tried if no row causes the failure."""
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
        if self._fails({}):
            raise HeadwaterError(f"it also fails without any record: {self._reason}")
        for topic in whole:
            # With the other topics whole: a row may fail only when it is joined with another.
            if len(whole) == 1 or (self._fails(whole) and not self._fails({**whole, topic: ()})):
                self._search(whole, topic)
        if not self._found or self._fails(whole):
            raise HeadwaterError(
                f"batch {batch.number} still fails after removing every record that fails on its own "
                f"({records} tried)"
            )
        return self._found

    def _search(self, whole: Parts, topic: str) -> None:
        ranges = whole[topic]
        size = sum(r.end - r.start for r in ranges)

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

    @property
    def _reason(self) -> str:
        return self._last.reason if self._last is not None else ""

    def _fails(self, parts: Parts) -> bool:
        """Run the function over parts of the batch, without the records found so far; return whether it fails."""
        self._on_try(_count(parts), len(self._found))
        context = self._context
        try:
            rows = call_function(
                self._query,
                lambda topic: read_part(
                    context.spark, topic, context.servers, parts.get(topic.name, ()), self._options(topic)
                ),
            )
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


def post_letters(
    client: Client, query: Query, rows: Sequence[PoisonRow], exclusions: Exclusions, clock: Clock
) -> None:
    """Append poison rows to the dead-letter topics of their topics, except those that are there already."""
    exclusions.catch_up(client)
    letters = {topic.name: topic.dead_letters for topic in query.topics}
    for row in rows:
        if (row.partition, row.offset) in exclusions:
            continue
        record = record_at(client, row.partition, row.offset)
        if record is None:
            raise HeadwaterError(
                f"the record at offset {row.offset} of {row.partition} was deleted meanwhile: {row.reason}"
            )
        target = TopicPartition(letters[row.partition.topic], 0)
        client.create_topic(target.topic, partitions=1, configs=KEPT)
        reason = f"{query.kind} {query.name!r} failed on it: {row.reason}"
        letter = Record(
            key=record.key,
            value=record.value,
            timestamp_ms=clock.now_ms(),
            headers=dead_letter_headers(row.partition, row.offset, reason, exclusions.reader),
        )
        client.produce(target, encode_batch([letter]))


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
