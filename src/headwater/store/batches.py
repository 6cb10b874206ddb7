"""Commit the batches of several queries in one transaction, so that readers see all of them or none.

    ViewBatch    the rows of one batch of a view
    LateBatch    the late rows of one batch of a query that writes to a sink

Rows are encoded before the transaction begins, so that the write lock is held briefly. The layouts of views (their
columns and indexes) are cached: every change of a layout raises the store's version, which the transaction reads
while it holds the lock. If a layout has changed since its rows were encoded, they are encoded again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from headwater.errors import HeadwaterError, InvalidError
from headwater.store import late, tables
from headwater.store.databases.engine import Database, Db, Dialect
from headwater.store.late import LateRow
from headwater.store.rows import Retraction, StoredRow, encode_rows
from headwater.store.shapes import ViewShape
from headwater.store.tables import QueryState, ViewLayout, ViewProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewBatch:
    """One batch of a view: the rows to upsert by key, and everything that is committed with them.

    `offsets` are the next offsets of the topics after this batch, recorded so that readers can wait for them.

    A new run starts with an empty view, unless it `continues` the run before it.

    With `signs` the rows are changes: a row with a negative sign retracts the row in the view if the two are
    equal, apart from floating-point columns, which a repeated batch may round differently.
    """

    view: str
    rows: pa.Table
    run: str
    batch: int
    late_rows: Sequence[LateRow] = ()
    signs: Sequence[int] | None = None
    continues: str | None = None
    offsets: Mapping[str, Mapping[str, int]] | None = None

    @property
    def query(self) -> str:
        """The query that computed the batch, which has the name of its view."""
        return self.view


@dataclass(frozen=True, slots=True, kw_only=True)
class LateBatch:
    """The late rows of one batch of a query that writes to a sink."""

    query: str
    late_rows: Sequence[LateRow]
    run: str
    batch: int


class BatchCommitError(HeadwaterError):
    """A commit of several batches failed because of one of them; nothing of any batch was written.

    `query` is the view or sink query of that batch, and `cause` is the error itself, which decides whether the
    batch is retried.
    """

    def __init__(self, query: str, cause: Exception) -> None:
        hint = cause.hint if isinstance(cause, HeadwaterError) else None
        super().__init__(f"cannot commit the batch of query {query!r}: {cause}", hint=hint)
        self.query = query
        self.cause = cause


@dataclass(frozen=True, slots=True)
class _EncodedRows:
    """The encoded rows of a batch, or the error that encoding raised, and the shape they were encoded for."""

    shape: ViewShape
    rows: dict[str, StoredRow | Retraction]
    error: Exception | None = None


class BatchCommits:
    """Commits batches to a database. Thread-safe: only the thread that holds the write lock changes the cache."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._version = -1
        self._layouts: dict[str, ViewLayout] = {}

    def commit(self, batches: Sequence[ViewBatch | LateBatch]) -> list[bool]:
        """Write batches in one transaction, in this order; False for each one that is already written.

        Raises BatchCommitError if a batch cannot be written. All other errors are of the store as a whole.
        """
        if not batches:
            return []
        encoded = [self._encode_ahead(each) if isinstance(each, ViewBatch) else None for each in batches]
        written: list[bool] = []
        with self._database.writing() as db:
            version, states = tables.query_states(db, {each.query for each in batches})
            if version != self._version:
                self._version, self._layouts = version, {}
            for batch, rows in zip(batches, encoded, strict=True):
                state = states[batch.query]
                if state.progress is not None and state.progress.includes(batch.run, batch.batch):
                    written.append(False)
                    continue
                with _blaming(batch, db.dialect):
                    states[batch.query] = self._write(db, batch, state, rows)
                written.append(True)
        return written

    def _encode_ahead(self, batch: ViewBatch) -> _EncodedRows | None:
        """Encode rows for the layout that was last seen; None if the view does not exist."""
        layout = self._layouts.get(batch.view)
        shape = layout.shape if layout else tables.shape_or_none(self._database.reading(), batch.view)
        return None if shape is None else _encode(batch, shape)

    def _write(
        self, db: Db, batch: ViewBatch | LateBatch, state: QueryState, encoded: _EncodedRows | None
    ) -> QueryState:
        """Write a batch; return the state of its query after it."""
        position, note = state.position, {}
        starts_over = state.progress is not None and not _continues(batch, state.progress.run)
        if starts_over:
            late.clear_late(db, batch.query)
        late.add_late(db, batch.query, batch.batch, batch.late_rows)
        if isinstance(batch, ViewBatch):
            layout = self._layout(db, batch.view)
            if encoded is None or encoded.shape != layout.shape:
                encoded = _encode(batch, layout.shape)
            if encoded.error is not None:
                raise encoded.error
            if starts_over:
                position = tables.delete_rows(db, layout, position)
            position = tables.upsert(db, layout, encoded.rows, position)
            note = {} if batch.offsets is None else {tables.OFFSETS: batch.offsets}
        progress = ViewProgress(run=batch.run, batch=batch.batch, note=note)
        tables.set_progress(db, batch.query, progress)
        return QueryState(progress=progress, position=position)

    def _layout(self, db: Db, view: str) -> ViewLayout:
        layout = self._layouts.get(view)
        if layout is None:
            layout = self._layouts[view] = tables.layout_of(db, view)
        return layout


def _encode(batch: ViewBatch, shape: ViewShape) -> _EncodedRows:
    """Encode rows; an error is returned, because it does not matter if the batch turns out to be written."""
    try:
        return _EncodedRows(shape, encode_rows(shape, batch.rows, batch.signs))
    except Exception as error:
        return _EncodedRows(shape, {}, error)


def _continues(batch: ViewBatch | LateBatch, run: str) -> bool:
    return run == batch.run or (isinstance(batch, ViewBatch) and run == batch.continues)


@contextmanager
def _blaming(batch: ViewBatch | LateBatch, dialect: Dialect) -> Iterator[None]:
    """Raise errors that the batch has caused as BatchCommitError, and failures of the store unchanged."""
    try:
        yield
    except Exception as error:
        if isinstance(error, HeadwaterError):
            of_batch = isinstance(error, InvalidError)
        else:
            of_batch = not isinstance(error, OSError | MemoryError) and not dialect.is_failure(error)
        if not of_batch:
            raise
        raise BatchCommitError(batch.query, error) from error
