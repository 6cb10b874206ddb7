"""Writes the results of a batch before the lane commits it: the state of each query, then its rows to its sink.

A sink outside the app may take long, or never answer. It is written in a thread of its own, so that its query can
leave the lane in the middle of the batch, and the others go on.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from headwater.spark.lanes.batch_log import BeganBatch
from headwater.spark.lanes.member import BatchResult, Member, MemberBatch, SavedBatch, progress_of
from headwater.spark.lanes.topic_rows import TopicRows
from headwater.spark.source.offsets import Offsets, to_json
from headwater.store.batches import LateBatch, ViewBatch
from headwater.transmit.records.to_arrow import SCHEMA

StoreBatch = ViewBatch | LateBatch | None
"""The part of a result that is to be written to the store."""


class Timer:
    """Measures the parts of a batch."""

    def __init__(self) -> None:
        self.began = time.time()
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self._last = now - self._last, now


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchWrite:
    """A batch of a query whose state is saved, and whose rows are being written to its sink."""

    member: Member
    batch: BeganBatch
    start: Offsets
    records: int
    saved: SavedBatch
    result: BatchResult
    to_store: Future[StoreBatch]
    timer: Timer

    def finish(self) -> None:
        """Let the query continue after the batch, which is committed, and report it."""
        member, timer = self.member, self.timer
        member.finish(self.batch, self.saved)
        member.sink.committed(self.result)
        member.query.report(
            progress_of(self.batch, self.start, member.topics, self.records, timer.began, timer.laps)
        )


def start_write(work: MemberBatch, batch: BeganBatch, rows: Mapping[str, TopicRows], timer: Timer) -> BatchWrite:
    """Save the state of a query after a batch, and begin to write its rows to its sink."""
    if work.error is not None:
        raise work.error
    member = work.member
    saved = member.save(batch, work.operators.values(), work.clocks)
    table = work.rows
    if member.blueprint is None:
        table = next((rows[name].unmatched for name in member.topics if name in rows), SCHEMA.empty_table())
    assert table is not None
    result = BatchResult(
        rows=table,
        run=member.log.run,
        batch=batch.number,
        offsets=to_json(batch.end),
        late_rows=[row for done in work.operators.values() for row in done.late],
        facts=saved.facts,
    )
    return BatchWrite(
        member=member,
        batch=batch,
        start=member.position,
        records=sum(rows[name].records for name in member.topics if name in rows),
        saved=saved,
        result=result,
        to_store=_written(member, result),
        timer=timer,
    )


def still_writing(writes: Sequence[BatchWrite], timeout_s: float) -> list[BatchWrite]:
    """Wait until all rows are written; return the writes that are not done after a time."""
    waiting = wait([each.to_store for each in writes], timeout_s).not_done
    return [each for each in writes if each.to_store in waiting]


def _written(member: Member, result: BatchResult) -> Future[StoreBatch]:
    done: Future[StoreBatch] = Future()

    def write() -> None:
        try:
            done.set_result(member.sink.write(result))
        except BaseException as error:
            done.set_exception(error)

    if member.sink.is_outside:
        # Not a pool's thread, for which Python waits when it exits.
        threading.Thread(target=write, name=f"headwater-sink-{member.name}", daemon=True).start()
    else:
        write()
    return done
