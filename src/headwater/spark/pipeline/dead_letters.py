"""The dead-letter query of a topic: records that do not match the schema are appended to the dead-letter topic.

A dead letter names the record it was made of. After a crash, the sink reads back the letters of the interrupted
batch and appends only the missing ones, so each record becomes a dead letter once.
"""

from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.app import Topic
from headwater.clock import Clock
from headwater.record import Record, TopicPartition
from headwater.spark.pipeline.batch_sinks import BatchFunction, run_of_query
from headwater.spark.source.decoding import explain_misfit
from headwater.store.tables import ViewProgress
from headwater.store.views import ViewStore
from headwater.transmit.client.client import EARLIEST, LATEST, Client
from headwater.transmit.client.redrive import KEPT
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk
from headwater.transmit.records.dead_letters import ORIGIN_HEADERS, dead_letter_headers

DEAD_LETTER_TRIGGER = "2 seconds"
"""Longer than a view's: the query reads the topic a second time, and its results are not urgent."""

Origin = tuple[bytes | None, ...]


def dead_letter_sink(store: ViewStore, topic: Topic, servers: str, clock: Clock) -> BatchFunction:
    """Make the sink that appends each batch to the dead-letter topic, with the reasons, and counts the letters."""
    return partial(_append_batch, store, topic, servers, clock)


def _append_batch(
    store: ViewStore, topic: Topic, servers: str, clock: Clock, records: DataFrame, batch: int
) -> None:
    query, run = topic.dead_letters, run_of_query(records)
    known = store.progress(query)
    if known is not None and known.run != run:
        known = None
    if known is not None and known.batch >= batch:
        return
    unmatched = records.toArrow()
    end = -1 if known is None else int(known.note.get("end", -1))
    # In the note of an earlier version there is no number; the topic held dead letters of failed functions, too.
    unmatched_before = 0 if known is None else int(known.note.get("unmatched", max(end, 0)))
    total = unmatched_before + unmatched.num_rows
    if unmatched.num_rows:
        with Client(servers) as client:
            target = TopicPartition(topic.dead_letters, 0)
            client.create_topic(topic.dead_letters, partitions=1, configs=KEPT)
            written = _written_origins(client, target, end)
            letters = [r for r in _letters(unmatched, topic, clock) if _origin(r) not in written]
            client.append(target, letters)
            end = client.offsets([target], LATEST)[target]
    progress = ViewProgress(run=run, batch=batch, note={"end": end, "unmatched": total})
    store.commit_progress(query, progress, counts={query: total} if total > 0 else None)


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
