"""Views in one SQLite file: rows, recent changes, and the batch each query has reached, changed together.

Tables, all in `views.db`:

    headwater_views      name, key columns, all columns       what there is
    headwater_progress   query -> run, batch                  how far each query has come
    headwater_changes    view, position, op, before, after    the last CHANGES_KEPT changes of each view
    headwater_late       view, number, row, how late, ...     rows that came after their window had closed
    headwater_generations, headwater_rebuilds                 which checkpoint counts, see `generations`
    view_<name>          _key, then the view's columns        the rows

A batch's rows and its number are written in one transaction, and a number that is already there is skipped:
this is what makes a restarted query exact. `run` is the identity of the query's checkpoint. A new run starts
from the first record again, so its first batch empties the view in the same transaction.

Thread-safe: one writer at a time (a lock here, SQLite's own between processes); each reading thread has a
connection of its own, and WAL lets it read while a batch is written.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.change import Change
from headwater.errors import ConflictError, InvalidError
from headwater.store import generations, late, tables
from headwater.store.columns import Value, parse_value, sorting
from headwater.store.late import LateRow
from headwater.store.room import waits_for_room
from headwater.store.tables import Progress, ViewShape

BUSY_TIMEOUT_S = 30.0

_SCHEMA = """
begin immediate;
create table if not exists headwater_views (
    name text primary key, key text not null, columns text not null);
create table if not exists headwater_progress (
    query text primary key, run text not null, batch integer not null, note text);
create table if not exists headwater_changes (
    view text not null, position integer not null, op text not null,
    key text not null, before text, after text,
    primary key (view, position)) without rowid;
create table if not exists headwater_counters (
    name text primary key, value integer not null);
{late}
{generations}
commit;
"""


class ViewStore:
    """The views of one app, in the SQLite file at `path`."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._read_only = read_only
        self._local = threading.local()
        self._write_lock = threading.Lock()
        if read_only:
            self._check_readable()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            with waits_for_room(path):
                self.reading().executescript(_SCHEMA.format(late=late.SCHEMA, generations=generations.SCHEMA))
                late.allow_nulls(self.reading())

    # -- writing ----------------------------------------------------------------------------------------------

    def declare(self, shape: ViewShape) -> None:
        """Create the view, or check that the one that is there has the same shape."""
        tables.check_names(shape)
        with self.writing() as db:
            known = tables.shape_or_none(db, shape.name)
            if known == shape:
                return
            if known is not None:
                raise ConflictError(
                    f"cannot continue view {shape.name!r}: it was {tables.describe(known)}, the app now gives "
                    f"{tables.describe(shape)}",
                    hint=f"headwater rebuild {shape.name}: compute it anew from the log; or give it another name",
                )
            tables.create(db, shape)

    def progress(self, query: str) -> Progress | None:
        """How far `query` has come; None if it has never committed."""
        return tables.progress_of(self.reading(), query)

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
    ) -> bool:
        """Upsert one batch of rows by key, with its number; False if that batch is already there.

        A run that is new here starts with an empty view, unless it `continues` the one that was here before.

        With `signs` the rows are changes: one with a sign below 0 takes back the row that is there, if it is the
        one it was (fractions aside: a batch that is run again may round otherwise).
        """
        with self.writing() as db:
            known = tables.progress_of(db, view)
            if known is not None and known.run == run and known.batch >= batch:
                return False
            shape = tables.shape_of(db, view)
            position = tables.position_of(db, view)
            if known is not None and known.run not in (run, continues):
                position = tables.clear(db, shape, position)
                late.clear_late(db, view)
            late.add_late(db, view, batch, late_rows)
            tables.upsert(db, shape, tables.encode_rows(shape, rows, signs), position)
            tables.set_progress(db, view, Progress(run=run, batch=batch, note={}))
            return True

    def commit_late(
        self,
        view: str,
        rows: pa.Table,
        numbers: Sequence[int],
        *,
        affected: Callable[[dict[str, Any]], bool],
        signs: Sequence[int] | None = None,
    ) -> None:
        """Put the affected of these rows in the place of the affected rows that are there.

        The rows were computed again with the late rows of these numbers, which are noted to be in now.
        """
        with self.writing() as db:
            shape = tables.shape_of(db, view)
            table = db.execute(f"select _key, {tables.columns_of(shape)} from {tables.table_of(view)}").fetchall()
            changed: dict[str, tuple[Value, ...] | tables.TakenBack] = {
                key: tables.TakenBack(tuple(row)) for key, *row in table if affected(tables.decode_row(shape, row))
            }
            for key, row in tables.encode_rows(shape, rows, signs).items():
                if not isinstance(row, tables.TakenBack) and affected(tables.decode_row(shape, row)):
                    changed[key] = row
            tables.upsert(db, shape, changed, tables.position_of(db, view))
            late.mark_reprocessed(db, view, numbers)

    def note_late(self, query: str, late_rows: Sequence[LateRow], *, run: str, batch: int) -> bool:
        """Keep the late rows of a query whose rows go elsewhere; False if that batch's are already there."""
        with self.writing() as db:
            known = tables.progress_of(db, query)
            if known is not None and known.run == run and known.batch >= batch:
                return False
            if known is not None and known.run != run:
                late.clear_late(db, query)
            late.add_late(db, query, batch, late_rows)
            tables.set_progress(db, query, Progress(run=run, batch=batch, note={}))
            return True

    def commit_progress(self, query: str, progress: Progress, *, counts: dict[str, int] | None = None) -> None:
        """Note how far a query without a view has come, and set counters, in one transaction."""
        with self.writing() as db:
            tables.set_progress(db, query, progress)
            for name, count in (counts or {}).items():
                db.execute("insert or replace into headwater_counters values (?, ?)", (name, count))

    # -- reading ----------------------------------------------------------------------------------------------

    def views(self) -> list[ViewShape]:
        """The views there are, by name."""
        names = self.reading().execute("select name from headwater_views order by name").fetchall()
        return [self.shape(name) for (name,) in names if generations.MARK not in name]

    def shape(self, view: str) -> ViewShape:
        """The shape of a view; an InvalidError that names the others if there is none."""
        return tables.shape_of(self.reading(), view)

    def count(self, view: str) -> int:
        """The number of rows."""
        shape = self.shape(view)
        return int(self.reading().execute(f"select count(*) from {tables.table_of(shape.name)}").fetchone()[0])

    def counters(self) -> dict[str, int]:
        """All counters, such as the records sent to each dead-letter topic."""
        return dict(self.reading().execute("select name, value from headwater_counters order by name"))

    def position(self, view: str) -> int:
        """The position of the view's last change; 0 before the first."""
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
        """Rows in the order of the key or of a column: all, or those whose key starts with the given values."""
        shape = self.shape(view)
        order_names = shape.key if order_by is None else (order_by, *shape.key)
        if len(key) > len(shape.key):
            raise InvalidError(
                f"cannot look up {list(key)!r} in view {view!r}: its key has {len(shape.key)} columns "
                f"({', '.join(shape.key)})"
            )
        names = shape.key[: len(key)]
        wanted = [parse_value(shape.column(name), text) for name, text in zip(names, key, strict=True)]
        conditions = " and ".join(f"{tables.quote(name)} = ?" for name in names) or "true"
        direction = " desc" if descending else ""
        order = ", ".join(
            sorting(shape.column(name)).replace("?", tables.quote(name)) + direction for name in order_names
        )
        found = self.reading().execute(
            f"select {tables.columns_of(shape)} from {tables.table_of(view)} "
            f"where {conditions} order by {order} limit ?",
            (*wanted, limit),
        )
        return [tables.decode_row(shape, row) for row in found]

    def changes(self, view: str, *, after: int, limit: int = 1000) -> list[Change]:
        """The changes behind a position, oldest first, as far back as they are kept."""
        shape = self.shape(view)
        found = self.reading().execute(
            "select position, op, before, after from headwater_changes "
            "where view = ? and position > ? and coalesce(before, after) is not null order by position limit ?",
            (view, after, limit),
        )
        return [tables.decode_change(shape, *row) for row in found]

    def late_rows(self, view: str, *, after: int = 0, limit: int = 1000) -> list[LateRow]:
        """The rows that came too late for the view, behind a number, in the order they came."""
        if self.progress(view) is None:
            self.shape(view)  # Neither a query that has committed nor a view: this says so.
        return late.read_late(self.reading(), view, after=after, limit=limit)

    def late_counts(self) -> dict[str, tuple[int, int]]:
        """For each view with late rows: how many, and how many still to be reprocessed."""
        return late.count_late(self.reading())

    def close(self) -> None:
        """Close this thread's connection; other threads' close with their threads."""
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is not None:
            db.close()
            self._local.db = None

    # -- inside -----------------------------------------------------------------------------------------------

    def _check_readable(self) -> None:
        """The file may be missing, or so new that its tables are not there yet."""
        tables = "select 1 from sqlite_master where name = 'headwater_views'"
        if not self.path.exists() or self.reading().execute(tables).fetchone() is None:
            raise InvalidError(
                f"cannot read views: there is no file {str(self.path)!r} with views yet",
                hint="run the app first (`headwater run APP.py`), or name its folder with --data",
            )

    def reading(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            mode = "ro" if self._read_only else "rwc"
            db = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
            )
            if not self._read_only:
                db.execute("pragma journal_mode = wal")
                # Spark forgets a batch once we return, so it must be on the disk by then.
                db.execute("pragma synchronous = full")
            self._local.db = db
        return db

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        with self._write_lock, waits_for_room(self.path):
            db = self.reading()
            db.execute("begin immediate")
            try:
                yield db
                db.execute("commit")
            except BaseException:
                if db.in_transaction:  # SQLite has rolled back by itself where the disk was full.
                    db.execute("rollback")
                raise
