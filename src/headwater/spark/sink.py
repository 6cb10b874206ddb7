"""Where micro-batches end: a view's rows go to the store, a topic's dead letters to their topic. Exactly once.

Both are called with a batch's rows and number, and possibly again with the same number after a crash. The store
takes rows and number in one transaction and skips what it has. A dead letter says which record it was, so after
a crash the sink reads back what it had written of the batch, and writes the rest.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.app import Topic, View
from headwater.clock import Clock
from headwater.process.windowing import CHANGE
from headwater.record import Record, TopicPartition
from headwater.spark.rows import explain_misfit
from headwater.spark.spool import Spool, summarize_operators
from headwater.store.sqlite import Progress, ViewStore
from headwater.transmit.batch import decode_batch, encode_batch, walk
from headwater.transmit.client import EARLIEST, LATEST, Client

BatchFunction = Callable[[DataFrame, int], None]
NoteFacts = Callable[[str, dict[str, Any]], None]

ORIGIN_HEADERS = ("headwater.topic", "headwater.partition", "headwater.offset")
REASON_HEADER = "headwater.reason"
_BATCH_RECORDS = 500


def view_sink(store: ViewStore, view: View, spool: Spool, note: NoteFacts) -> BatchFunction:
    """Upsert each batch into the view, its late rows into the ledger, and note what its operators said."""

    def write(rows: DataFrame, batch: int) -> None:
        table = rows.toArrow()  # The steps run now, and leave their files.
        run = _run_of(rows)
        late_rows, signs = spool.late(run, batch), signs_of(table)
        store.commit_rows(view.name, table, run=run, batch=batch, late_rows=late_rows, signs=signs)
        facts = spool.facts(run, batch)
        if facts:
            note(view.name, {"batchId": batch, "operators": summarize_operators(facts)})
        spool.clear(run, through=batch)

    return write


def signs_of(rows: pa.Table) -> list[int] | None:
    """Which rows are put and which are taken back; None where the rows are no changes."""
    return rows.column(CHANGE).to_pylist() if CHANGE in rows.column_names else None


def dead_letter_sink(store: ViewStore, topic: Topic, bootstrap_servers: str, clock: Clock) -> BatchFunction:
    """Append each batch's misfits to the dead-letter topic, with the reason, and count them."""
    query = topic.dead_letters

    def write(records: DataFrame, batch: int) -> None:
        run = _run_of(records)
        known = store.progress(query)
        if known is not None and known.run == run and known.batch >= batch:
            return
        misfits = records.toArrow()
        end = int(known.note.get("end", -1)) if known is not None and known.run == run else -1
        if misfits.num_rows:
            with Client(bootstrap_servers) as client:
                target = TopicPartition(topic.dead_letters, 0)
                client.create_topic(topic.dead_letters, partitions=1)
                written = _written_origins(client, target, end)
                letters = [r for r in _letters(misfits, topic, clock) if _origin(r) not in written]
                for start in range(0, len(letters), _BATCH_RECORDS):
                    client.produce(target, encode_batch(letters[start : start + _BATCH_RECORDS]))
                end = client.offsets([target], LATEST)[target]
        progress = Progress(run=run, batch=batch, note={"end": end})
        # The topic holds dead letters only, so its end is their number, whatever happened on the way.
        store.commit_progress(query, progress, counts={query: end} if end > 0 else None)

    return write


def _run_of(rows: DataFrame) -> str:
    """The identity of the query's checkpoint; a new checkpoint is a new run."""
    return str(rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))


def _letters(misfits: pa.Table, topic: Topic, clock: Clock) -> list[Record]:
    return [
        Record(
            key=row["key"],
            value=row["value"],
            timestamp_ms=clock.now_ms(),
            headers=(
                *zip(
                    ORIGIN_HEADERS,
                    (str(row[name]).encode() for name in ("topic", "partition", "offset")),
                    strict=True,
                ),
                (REASON_HEADER, explain_misfit(row["value"], topic).encode()),
            ),
        )
        for row in misfits.to_pylist()
    ]


def _origin(letter: Record) -> tuple[bytes | None, ...]:
    headers = dict(letter.headers)
    return tuple(headers.get(name) for name in ORIGIN_HEADERS)


def _written_origins(client: Client, target: TopicPartition, end: int) -> set[tuple[bytes | None, ...]]:
    """What stands in the dead-letter topic behind the end that was last noted: an interrupted batch's letters."""
    at = end if end >= 0 else client.offsets([target], EARLIEST)[target]
    latest = client.offsets([target], LATEST)[target]
    origins: set[tuple[bytes | None, ...]] = set()
    while at < latest:
        data, behind = client.read(target, at)
        origins.update(_origin(r) for place, _ in walk(data) for r in decode_batch(data, place) if r.offset >= at)
        at = behind
    return origins
