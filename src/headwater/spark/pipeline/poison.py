"""Poison rows: records on which a query's function fails, or whose rows its sink refuses, become dead letters.

`poison_search` finds them in a batch that fails repeatedly. They go to the dead-letter topic with the reason, and
the query leaves them out from then on. The dead letter is written first, and the list of excluded records is
derived from the dead letters (`exclusions`), so no record is lost in between. The failed batch was never finished,
so none of its results are visible: it is run again without these records.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from headwater.app import Query
from headwater.clock import Clock
from headwater.errors import ClosedError, HeadwaterError
from headwater.record import Record, TopicPartition
from headwater.spark.pipeline.failures import Failure
from headwater.spark.pipeline.poison_search import IsolationContext, PoisonRow, PoisonSearch
from headwater.spark.source.exclusions import Exclusions
from headwater.transmit.client.client import Client
from headwater.transmit.client.reading import record_at
from headwater.transmit.client.redrive import KEPT
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.dead_letters import dead_letter_headers

REPORT_EVERY_S = 5.0
"""A search may take hundreds of tries, and its reports must not displace all other facts."""

Report = Callable[[dict[str, Any]], None]


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
