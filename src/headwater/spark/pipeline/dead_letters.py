"""The dead-letter query of a topic: records that do not match the schema are appended to the dead-letter topic.

A dead letter names the record it was made of. After a crash, the sink reads back the letters of the interrupted
batch and appends only the missing ones, so each record becomes a dead letter once.
"""

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.app import Topic
from headwater.clock import Clock
from headwater.record import EARLIEST, LATEST, Record, TopicPartition
from headwater.spark.lanes.member import BatchResult
from headwater.spark.pipeline.batch_sinks import run_of_query
from headwater.spark.source.decoding import explain_misfit
from headwater.store.tables import ViewProgress
from headwater.store.views import ViewStore
from headwater.transmit.client.client import Client
from headwater.transmit.client.redrive import KEPT
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk
from headwater.transmit.records.dead_letters import ORIGIN_HEADERS, dead_letter_headers

DEAD_LETTER_TRIGGER = "2 seconds"
"""Longer than a view's: the query reads the topic a second time, and its results are not urgent."""

Origin = tuple[bytes | None, ...]


class DeadLetterSink:
    """Appends the unmatched records of each batch to the dead-letter topic, with the reasons, and counts them."""

    is_outside = False

    def __init__(self, store: ViewStore, topic: Topic, servers: str, clock: Clock) -> None:
        self._store = store
        self._topic = topic
        self._servers = servers
        self._clock = clock

    def __call__(self, records: DataFrame, batch: int) -> None:
        self._append(records.toArrow, run_of_query(records), batch)

    def write(self, result: BatchResult) -> None:
        """Append the records of a batch in a lane."""
        if result.rows.num_rows:
            self._append(lambda: result.rows, result.run, result.batch)

    def committed(self, result: BatchResult) -> None:
        pass

    def _append(self, read: Callable[[], pa.Table], run: str, batch: int) -> None:
        query, topic = self._topic.dead_letters, self._topic
        known = self._store.progress(query)
        if known is not None and known.run != run:
            known = None
        if known is not None and known.batch >= batch:
            return
        unmatched = read()
        end = -1 if known is None else int(known.note.get("end", -1))
        # In the note of an earlier version there is no number; the topic held letters of failed functions, too.
        unmatched_before = 0 if known is None else int(known.note.get("unmatched", max(end, 0)))
        total = unmatched_before + unmatched.num_rows
        if unmatched.num_rows:
            with Client(self._servers) as client:
                target = TopicPartition(topic.dead_letters, 0)
                client.create_topic(topic.dead_letters, partitions=1, configs=KEPT)
                written = _written_origins(client, target, end)
                letters = [r for r in _letters(unmatched, topic, self._clock) if _origin(r) not in written]
                client.append(target, letters)
                end = client.offsets([target], LATEST)[target]
        progress = ViewProgress(run=run, batch=batch, note={"end": end, "unmatched": total})
        self._store.commit_progress(query, progress, counts={query: total} if total > 0 else None)


def _letters(unmatched: pa.Table, topic: Topic, clock: Clock) -> list[Record]:
    return [
        Record(
            key=row["key"],
            value=row["value"],
            timestamp_ms=clock.now_ms(),
            headers=dead_letter_headers(
                TopicPartition(row["topic"], row["partition"]), row["offset"], explain_misfit(row["value"], topic)
            ),
        )
        for row in unmatched.to_pylist()
    ]


def _origin(letter: Record) -> Origin:
    headers = dict(letter.headers)
    return tuple(headers.get(name) for name in ORIGIN_HEADERS)


def _written_origins(client: Client, target: TopicPartition, end: int) -> set[Origin]:
    """Return the origins of the letters after the last committed end: those of an interrupted batch."""
    at = end if end >= 0 else client.offsets([target], EARLIEST)[target]
    latest = client.offsets([target], LATEST)[target]
    origins: set[Origin] = set()
    while at < latest:
        data, next_at = client.read(target, at)
        origins.update(_origin(r) for place, _ in walk(data) for r in decode_batch(data, place) if r.offset >= at)
        at = next_at
    return origins
