"""Sinks of micro-batches: the store for a view, an external sink for a sink query. Exactly once.

A sink is called with a batch's rows and number, and possibly again with the same number after a crash. The store
commits rows and number in one transaction and skips a batch that it has; so do external sinks (`headwater.sink`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.app import Query, SinkQuery, View
from headwater.change import CHANGE
from headwater.errors import RefusedError, UnavailableError
from headwater.sink import Batch, Rehearsing, Stream, Writer
from headwater.sinks.json_rows import json_objects
from headwater.spark.kernels.spool import Facts, Spool, summarize_operators
from headwater.spark.kernels.watermark_sources import METADATA_COLUMNS
from headwater.spark.lanes.member import BatchResult
from headwater.spark.source.checkpoint import end_offsets
from headwater.spark.source.offsets import to_json
from headwater.spark.source.wake_ups import WakeUps
from headwater.store.batches import BatchCommitError, LateBatch, ViewBatch
from headwater.store.views import ViewStore

BatchFunction = Callable[[DataFrame, int], None]
ReportFacts = Callable[[str, dict[str, Any]], None]


class BatchSink(Protocol):
    """The destination of the rows of a view or of a sink query."""

    is_outside: bool
    """True if `write` waits for a system outside of the app, which may be slow."""

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a batch."""

    def write(self, result: BatchResult) -> ViewBatch | LateBatch | None:
        """Write a batch of a lane, except for what it returns, which is to be written to the store."""

    def committed(self, result: BatchResult) -> None:
        """Report a batch of a lane that is committed."""

    def rehearse(self, rows: DataFrame) -> None:
        """Raise if the rows would be refused as part of the batch that was tried last; nothing is written."""


class ViewSink:
    """Upserts each batch into the view, writes its late rows to the late ledger, and reports its operators' facts.

    The end offsets of the batch, which the checkpoint has before the batch runs, are kept with the rows, so that
    readers can wait until the view includes a record.
    """

    is_outside = False

    def __init__(
        self,
        store: ViewStore,
        view: View,
        spool: Spool,
        report: ReportFacts,
        *,
        checkpoint: Path,
        continues: str | None = None,
        wake_ups: WakeUps | None = None,
    ) -> None:
        self._store = store
        self._view = view
        self._spool = spool
        self._report = report
        self._checkpoint = checkpoint
        self._continues = continues
        self._wake_ups = wake_ups

    def __call__(self, rows: DataFrame, batch: int) -> None:
        table = collected(rows)  # The operators run now, and write their reports to the spool.
        offsets = to_json(end_offsets(self._checkpoint, batch))
        result = _spooled(table, run_of_query(rows), batch, self._spool, offsets)
        try:
            self._store.commit_batches([self.write(result)])
        except BatchCommitError as error:
            raise error.cause from error
        self.committed(result)
        self._spool.clear(result.run, through=batch)
        _collect_wake_ups(self._wake_ups, result.facts, batch)

    def write(self, result: BatchResult) -> ViewBatch:
        """Return what is to be written to the store."""
        return ViewBatch(
            view=self._view.name,
            rows=result.rows,
            run=result.run,
            batch=result.batch,
            late_rows=result.late_rows,
            signs=signs_of(result.rows),
            continues=self._continues,
            offsets=result.offsets,
        )

    def committed(self, result: BatchResult) -> None:
        """Report the facts about the operators of a batch that is committed."""
        _report_operators(self._view, self._report, result)

    def rehearse(self, rows: DataFrame) -> None:
        table = collected(rows)
        self._store.rehearse_rows(self._view.name, table, signs_of(table))


class ExternalSink:
    """Writes each batch to an external destination, and its late rows to the late ledger."""

    is_outside = True

    def __init__(
        self,
        delivery: SinkQuery,
        stream: Stream,
        store: ViewStore,
        spool: Spool,
        report: ReportFacts,
        *,
        wake_ups: WakeUps | None = None,
    ) -> None:
        self._delivery = delivery
        self._stream = stream
        self._store = store
        self._spool = spool
        self._report = report
        self._wake_ups = wake_ups
        self._writer: Writer | None = None
        self._tried = ("", 0)
        self._refusal: tuple[str, pa.Array] | None = None

    def open(self) -> None:
        """Fence earlier writers and check the destination; if it is unavailable, the first batch opens it."""
        try:
            self._writer = self._delivery.to.open(self._stream)
        except UnavailableError:
            self._writer = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        result = _spooled(collected(rows), run_of_query(rows), batch, self._spool, {})
        late = self.write(result)
        if late is not None:
            self._store.commit_batches([late])
        self.committed(result)
        self._spool.clear(result.run, through=batch)
        _collect_wake_ups(self._wake_ups, result.facts, batch)

    def write(self, result: BatchResult) -> LateBatch | None:
        """Write a batch, and return its late rows, which are to be written to the store."""
        self._tried = result.run, result.batch
        if result.rows.num_rows:
            self._write(self._batch(result.rows))
        if not result.late_rows:
            return None
        name = self._delivery.name
        return LateBatch(query=name, late_rows=result.late_rows, run=result.run, batch=result.batch)

    def committed(self, result: BatchResult) -> None:
        """Report the facts about the operators of a batch that is committed."""
        _report_operators(self._delivery, self._report, result)

    def rehearse(self, rows: DataFrame) -> None:
        table = collected(rows)
        with self._using() as writer:
            if isinstance(writer, Rehearsing):
                writer.rehearse(self._batch(table))
                return
        if self._refusal is not None:
            reason, refused = self._refusal
            if pc.any(pc.is_in(json_objects(without_metadata(table)), refused)).as_py():
                raise RefusedError(reason)

    def _write(self, batch: Batch) -> None:
        """Write a batch; remember the rows that the destination refused, for a writer that cannot rehearse."""
        self._refusal = None
        try:
            with self._using() as writer:
                writer.write(batch)
        except RefusedError as error:
            self._refusal = str(error), json_objects(batch.rows.take(pa.array(error.rows, pa.int64())))
            raise

    def _batch(self, table: pa.Table) -> Batch:
        run, number = self._tried
        return Batch(run=run, number=number, rows=without_metadata(table), signs=_sign_array(table))

    @contextmanager
    def _using(self) -> Iterator[Writer]:
        if self._writer is None:
            self._writer = self._delivery.to.open(self._stream)
        try:
            yield self._writer
        except BaseException:
            self.close()  # Its state is unknown: the next attempt opens a new one.
            raise

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _spooled(
    rows: pa.Table, run: str, batch: int, spool: Spool, offsets: Mapping[str, Mapping[str, int]]
) -> BatchResult:
    """Return the result of a batch with what its operators have written to the spool."""
    return BatchResult(
        rows=rows,
        run=run,
        batch=batch,
        offsets=offsets,
        late_rows=spool.late(run, batch),
        facts=spool.facts(run, batch),
    )


def _report_operators(query: Query, report: ReportFacts, result: BatchResult) -> None:
    """Report the facts of a query's operators for a batch that is committed."""
    if result.facts:
        operators = summarize_operators(result.facts)
        report(query.name, {"run": result.run, "batchId": result.batch, "operators": operators})


def _collect_wake_ups(wake_ups: WakeUps | None, facts: Sequence[Facts], batch: int) -> None:
    if wake_ups is not None:
        wake_ups.collect(batch, {fact.step: fact.body.get("wakeUpMs") for fact in facts})


def collected(rows: DataFrame) -> pa.Table:
    """Compute the rows; their times are in UTC, whatever the time zone of the session is."""
    return rows.toArrow().cast(to_arrow_schema(rows.schema, timezone="UTC"))


def without_metadata(table: pa.Table) -> pa.Table:
    """Return the rows without the metadata columns."""
    return table.select([name for name in table.column_names if name not in METADATA_COLUMNS])


def _sign_array(table: pa.Table) -> pa.Array | None:
    """Return the column `_change`, in which a row without a value is inserted."""
    return pc.fill_null(table.column(CHANGE).combine_chunks(), 1) if CHANGE in table.column_names else None


def signs_of(rows: pa.Table) -> list[int] | None:
    """Return 1 for each inserted row and -1 for each retracted one; None if the rows are not changes."""
    signs = _sign_array(rows)
    return None if signs is None else signs.to_pylist()


def run_of_query(rows: DataFrame) -> str:
    """Return the run of the query that these rows are a batch of: the id of its checkpoint."""
    return str(rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))
