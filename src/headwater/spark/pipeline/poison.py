"""Poison rows: finds the records on which a query's function fails, or whose rows its place does not take.

A batch that fails over and over is tried again in parts, as bounded DataFrames whose rows go nowhere, or are
written and taken back, until single records remain. These go to the dead-letter topic with the reason, and the
query leaves them out from then on: the letter is written first, and what is left out is derived from letters
(`exclusions`), so nothing is lost between. The failed batch was never finished, so nobody has seen anything of it:
it is simply run again, without them.
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
from headwater.transmit.client.redrive import KEPT, record_at
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.dead_letters import dead_letter_headers

NOTE_EVERY_S = 5.0
"""A search may take hundreds of tries, and is not to push all other facts out."""

Report = Callable[[dict[str, Any]], None]
Parts = Mapping[str, Sequence[Range]]
"""Of each topic, the ranges to read."""


def nowhere(rows: DataFrame) -> None:
    """Compute the rows, only to see whether that fails."""
    rows.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationContext:
    """Where a query runs: what is needed to run parts of its batch again."""

    spark: SparkSession
    servers: str
    checkpoint: Path
    starting: Starting | None = None
    """Where its first batch starts, if not at the first record."""
    take: Callable[[DataFrame], None] = nowhere
    """Runs what a function has made of a part, and raises where that fails."""


@dataclass(frozen=True, slots=True)
class PoisonRow:
    """A record on which the function fails, and how."""

    partition: TopicPartition
    offset: int
    reason: str


class Isolation:
    """Looks for the poison rows of one query's failed batch, in a thread of its own.

    The outcome, `result()`, is how many were taken out; a HeadwaterError says why there are none to take out.
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
        self._noted: tuple[float, int] | None = None
        self._error: HeadwaterError | None = None
        self._thread = threading.Thread(target=self._run, name=f"isolate-{query.name}", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> int:
        """Wait for the end, and tell how many records were taken out."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found

    def stop(self) -> None:
        """End between two tries; what was found is found again the next time."""
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
        if self._noted is None or found != self._noted[1] or now >= self._noted[0] + NOTE_EVERY_S:
            self._noted = now, found
            among = {"records": records, "found": found}
            self._report({"state": "isolating", "error": self.failure.reason, "isolating": among})


class PoisonSearch:
    """Tries parts of a query's failed batch; `on_try` is told how many records are tried, how many were found."""

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
        """The poison rows; a HeadwaterError says what was tried if no row is to blame."""
        batch = begun_batch(self._context.checkpoint)
        if batch is None:
            raise HeadwaterError("no batch had been begun")
        whole = _parts(batch, self._query.topics, self._context)
        records = _count(whole)
        if not self._fails(whole):
            raise HeadwaterError(
                f"the {records} records of batch {batch.number}, tried by themselves, did not fail: "
                "the cause is no single record"
            )
        if self._fails({}):
            raise HeadwaterError(f"it fails without any record, too: {self._reason}")
        for topic in whole:
            # With the other topics whole: a row may fail only where it meets another.
            if len(whole) == 1 or (self._fails(whole) and not self._fails({**whole, topic: ()})):
                self._search(whole, topic)
        if not self._found or self._fails(whole):
            raise HeadwaterError(
                f"of the {records} records of batch {batch.number} there are none without which it does not fail"
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
                f"the records of topic {topic!r} fail together ({self._reason}), and none of them alone"
            ) from None
        except TooManyFailError as error:
            raise HeadwaterError(
                f"more than {len(error.found)} of the {size} records of topic {topic!r} fail, the last one tried "
                f"with: {self._reason}; so many are not poison: the function is at fault"
            ) from None

    @property
    def _reason(self) -> str:
        return self._last.reason if self._last is not None else ""

    def _fails(self, parts: Parts) -> bool:
        """Run the function over parts of the batch, without what was found, only to see whether it fails."""
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
            if failure.passing:
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
    """Append poison rows to their topics' dead-letter topics; one that is there already is left alone."""
    exclusions.catch_up(client)
    letters = {topic.name: topic.dead_letters for topic in query.topics}
    for row in rows:
        if (row.partition, row.offset) in exclusions:
            continue
        record = record_at(client, row.partition, row.offset)
        if record is None:
            raise HeadwaterError(f"the record at offset {row.offset} of {row.partition} is gone: {row.reason}")
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
    """The part of ranges, laid end to end, from one position to before another."""
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
