"""ViewStore: the rows of views, their recent changes, and the progress of each query, updated together.

Tables, in an SQLite file or in a schema of PostgreSQL:

    headwater_views      name, key columns, all columns       the views
    headwater_access     view -> indexes, search, history     access beyond the key, see `access`
    headwater_progress   query -> run, batch, note            the last batch of each query
    headwater_changes    view, position, op, before, after    the last changes of each view
    headwater_late       view, number, row, how late, ...     rows that arrived after their window had closed
    headwater_generations, headwater_rebuilds                 the current checkpoints, see `pipelines`
    headwater_controls   query -> paused, request             what users ask of the pipelines, see `pipelines`
    headwater_store      identity, version, app, epoch        the store itself
    view_<name>          _key, then the view's columns        the rows

One transaction writes the rows of a batch, its number, the indexes, and the offsets that the query has read.
`commit_batches` writes the batches of several views in one, so that readers see all of them or none. A batch whose
number is already recorded is skipped, so a restarted query repeats nothing. `run` identifies the query's
checkpoint. A new run starts from the first record again, so its first batch deletes the view's rows in the same
transaction.

Thread-safe: one writer at a time; readers can read while a batch is written.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.change import Change
from headwater.errors import ConflictError, InvalidError
from headwater.store import access, late, tables
from headwater.store.batches import BatchCommitError, BatchCommits, LateBatch, ViewBatch
from headwater.store.databases.engine import Database, Db, open_database
from headwater.store.late import LateRow
from headwater.store.pipelines import controls, generations
from headwater.store.queries import ViewQueries, by_key
from headwater.store.questions import Answer, Question
from headwater.store.rows import Retraction, StoredRow, decode_change, decode_row, encode_rows
from headwater.store.shapes import Access, ViewShape, check_access
from headwater.store.statements import columns_of, table_of
from headwater.store.tables import ViewProgress

_SCHEMA = (
    """create table if not exists headwater_views (
    name text primary key, key text not null, columns text not null)""",
    """create table if not exists headwater_progress (
    query text primary key, run text not null, batch bigint not null, note text)""",
    """create table if not exists headwater_changes (
    view text not null, position bigint not null, op text not null,
    key text not null, before text, after text, primary key (view, position))""",
    """create table if not exists headwater_counters (
    name text primary key, value bigint not null)""",
    *access.SCHEMA,
    *late.SCHEMA,
    *generations.SCHEMA,
    *controls.SCHEMA,
)


class _RehearsedError(Exception):
    """Rolls back the transaction of a rehearsal."""


class ViewStore:
    """The views of one app, at the path of an SQLite file or at a `postgresql://` address."""

    def __init__(self, location: Path | str, *, read_only: bool = False) -> None:
        self.database: Database = open_database(location, read_only=read_only)
        self._queries = ViewQueries(self.database)
        self._batches = BatchCommits(self.database)
        if read_only:
            self._check_readable(location)
        else:
            with self.database.writing() as db:
                for statement in _SCHEMA:
                    db.execute(statement)
                if isinstance(location, Path):
                    late.allow_nulls(db)
                access.open_store(db)

    def reading(self) -> Db:
        """Return a connection for single reading statements."""
        return self.database.reading()

    @contextmanager
    def writing(self) -> Iterator[Db]:
        """Run a transaction, for parts of the store in other modules."""
        with self.database.writing() as db:
            yield db

    def claim(self, app: str) -> None:
        """Fence every other pipeline that writes here; raises ConflictError if the views belong to another app."""
        self.database.claim(app)

    # -- writing ----------------------------------------------------------------------------------------------

    def declare(self, shape: ViewShape, how: Access | None = None) -> None:
        """Create the view, or check that the existing one has the same shape; change its indexes to `how`."""
        tables.check_names(shape)
        how = how or Access()
        check_access(shape, how)
        with self.writing() as db:
            known = tables.shape_or_none(db, shape.name)
            fits = known is None or known.holds(shape)
            if not fits and tables.progress_of(db, shape.name) is None:  # It never had rows.
                tables.drop(db, shape.name)
                known = None
            elif not fits:
                assert known is not None
                raise ConflictError(
                    f"cannot continue view {shape.name!r}: its columns are {tables.describe(known)}, "
                    f"and the app now computes {tables.describe(shape)}",
                    hint=f"recompute it with `headwater rebuild {shape.name}`, or give it another name",
                )
            if known is None:
                tables.create(db, shape)
            access.apply(db, shape, how)

    def progress(self, query: str) -> ViewProgress | None:
        """Return the progress of a query; None if it has never committed."""
        return tables.progress_of(self.reading(), query)

    def commit_batches(self, batches: Sequence[ViewBatch | LateBatch]) -> list[bool]:
        """Write batches in one transaction, in this order; False for each one that is already written.

        If a batch cannot be written, nothing is, and BatchCommitError names its query. All other errors are of the
        store as a whole: it is unavailable, or another pipeline has claimed it.
        """
        return self._batches.commit(batches)

    def commit_rows(
        self,
        view: str,
        rows: pa.Table,
        *,
        run: str,
        batch: int,
        late_rows: Sequence[LateRow] = (),
        signs: Sequence[int] | None = None,
        continues: str | None = None,
        offsets: Mapping[str, Mapping[str, int]] | None = None,
    ) -> bool:
        """Upsert one batch of rows by key, with its number; False if that batch is already written.

        The arguments are the fields of `ViewBatch`. Raises the errors of the batch themselves.
        """
        return self._commit_one(
            ViewBatch(
                view=view,
                rows=rows,
                run=run,
                batch=batch,
                late_rows=late_rows,
                signs=signs,
                continues=continues,
                offsets=offsets,
            )
        )

    def rehearse_rows(self, view: str, rows: pa.Table, signs: Sequence[int] | None = None) -> None:
        """Upsert rows and roll back; raises the errors that `commit_rows` would raise."""
        with suppress(_RehearsedError), self.writing() as db:
            layout = tables.layout_of(db, view)
            tables.upsert(db, layout, encode_rows(layout.shape, rows, signs), tables.position_of(db, view))
            raise _RehearsedError

    def commit_late(
        self,
        view: str,
        rows: pa.Table,
        numbers: Sequence[int],
        *,
        affected: Callable[[dict[str, Any]], bool],
        signs: Sequence[int] | None = None,
    ) -> None:
        """Replace the affected rows of the view by the affected ones of these rows.

        The rows were recomputed with the late rows of these numbers, which are marked as reprocessed.
        """
        with self.writing() as db:
            layout = tables.layout_of(db, view)
            shape = layout.shape
            table = db.execute(f"select _key, {columns_of(shape)} from {table_of(view)}").fetchall()
            changed: dict[str, StoredRow | Retraction] = {
                key: Retraction(tuple(row)) for key, *row in table if affected(decode_row(shape, row))
            }
            for key, row in encode_rows(shape, rows, signs).items():
                if not isinstance(row, Retraction) and affected(decode_row(shape, row)):
                    changed[key] = row
            tables.upsert(db, layout, changed, tables.position_of(db, view))
            late.mark_reprocessed(db, view, numbers)

    def record_late(self, query: str, late_rows: Sequence[LateRow], *, run: str, batch: int) -> bool:
        """Record the late rows of a query that writes to a sink; False if the batch is already recorded."""
        return self._commit_one(LateBatch(query=query, late_rows=late_rows, run=run, batch=batch))

    def _commit_one(self, batch: ViewBatch | LateBatch) -> bool:
        try:
            (written,) = self.commit_batches([batch])
        except BatchCommitError as error:
            raise error.cause from error.cause.__cause__
        return written

    def commit_progress(self, query: str, progress: ViewProgress, *, counts: dict[str, int] | None = None) -> None:
        """Record the progress of a query without a view, and set counters, in one transaction."""
        with self.writing() as db:
            tables.set_progress(db, query, progress)
            for name, count in (counts or {}).items():
                db.execute(
                    "insert into headwater_counters values (?, ?) on conflict (name) do update set "
                    "value = excluded.value",
                    (name, count),
                )

    # -- reading ----------------------------------------------------------------------------------------------

    def views(self) -> list[ViewShape]:
        """Return the shapes of all views, ordered by name."""
        names = self.reading().execute("select name from headwater_views order by name").fetchall()
        return [self.shape(name) for (name,) in names if generations.MARK not in name]

    def shape(self, view: str) -> ViewShape:
        """Return the shape of a view; if there is none, raises InvalidError with the names of the others."""
        return tables.shape_of(self.reading(), view)

    def access(self, view: str) -> Access:
        """Return the access to a view beyond its key."""
        kept = access.kept_access(self.reading(), view)
        if kept is None:
            return Access()
        key = self.shape(view).key
        indexes = tuple(sorted(columns for columns in kept.indexes.values() if columns != key))
        return Access(indexes=indexes, search=kept.search, history=kept.history)

    def count(self, view: str) -> int:
        """Return the number of rows."""
        shape = self.shape(view)
        return int(self.reading().execute(f"select count(*) from {table_of(shape.name)}").fetchone()[0])

    def counters(self) -> dict[str, int]:
        """Return all counters, such as the number of records sent to each dead-letter topic."""
        return dict(self.reading().execute("select name, value from headwater_counters order by name"))

    def position(self, view: str) -> int:
        """Return the position of the view's last change; 0 before the first."""
        return tables.position_of(self.reading(), view)

    def rows(
        self,
        view: str,
        *,
        key: Sequence[str] = (),
        order_by: str | None = None,
        descending: bool = False,
        limit: int = 1000,
    ) -> list[dict[str, Any]]:
        """Return rows, by default in key order; `key` selects those whose key starts with its values."""
        question = by_key(self.shape(view), key, order_by=order_by, descending=descending, limit=limit)
        return self.ask(view, question).rows

    def ask(self, view: str, question: Question) -> Answer:
        """Answer a question about a view."""
        return self._queries.ask(view, question)

    def get(self, view: str, key: Sequence[Any]) -> dict[str, Any] | None:
        """Return the row of a key; None if there is none."""
        return self._queries.get(view, key)

    def identity(self) -> str:
        """Return the identity of this store, with which its tokens begin."""
        return str(self.reading().execute("select identity from headwater_store").fetchone()[0])

    def changes(self, view: str, *, after: int, limit: int = 1000) -> list[Change]:
        """Return the changes after a position, oldest first, as far back as the history goes."""
        shape = self.shape(view)
        found = self.reading().execute(
            "select position, op, before, after from headwater_changes "
            "where view = ? and position > ? and coalesce(before, after) is not null order by position limit ?",
            (view, after, limit),
        )
        return [decode_change(shape, *row) for row in found]

    def late_rows(self, view: str, *, after: int = 0, limit: int = 1000) -> list[LateRow]:
        """Return the late rows of a view after a number, in order of arrival."""
        if self.progress(view) is None:
            self.shape(view)  # Raises if there is no such view either.
        return late.read_late(self.reading(), view, after=after, limit=limit)

    def late_count(self, query: str) -> int:
        """Return the number of late rows of a query."""
        return late.last_number(self.reading(), query)

    def late_counts(self) -> dict[str, tuple[int, int]]:
        """Return, for each view with late rows, their number and how many are not reprocessed yet."""
        return late.count_late(self.reading())

    def close(self) -> None:
        """Close connections; see `Database.close`."""
        self.database.close()

    def _check_readable(self, location: Path | str) -> None:
        try:
            found = self.database.has_views()
        except BaseException:
            self.close()
            raise
        if not found:
            self.close()
            where = f"file {str(location)!r}" if isinstance(location, Path) else self.database.reading().location
            raise InvalidError(
                f"cannot read views: {where} does not exist, or has no views of this version yet",
                hint="run the app first (`headwater run APP.py`), or pass its data directory with --data",
            )
