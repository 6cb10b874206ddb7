"""ViewStore: rows, recent changes, and the batch each query has reached, changed together.

Tables, in an SQLite file or in a schema of PostgreSQL:

    headwater_views      name, key columns, all columns       what there is
    headwater_access     view -> indexes, search, history     how it can be asked, see `access`
    headwater_progress   query -> run, batch, note            how far each query has come
    headwater_changes    view, position, op, before, after    the last changes of each view
    headwater_late       view, number, row, how late, ...     rows that came after their window had closed
    headwater_generations, headwater_rebuilds                 which checkpoint counts, see `generations`
    headwater_store      identity, version, app, epoch        what all of these belong to
    view_<name>          _key, then the view's columns        the rows

A batch's rows and its number are written in one transaction, with indexes, words and how far the topics were read;
a number that is already there is skipped: this is what makes a restarted query exact. `run` is the identity of the
query's checkpoint. A new run starts from the first record again, so its first batch empties the view in the same
transaction.

Thread-safe: one writer at a time; readers read while a batch is written.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.change import Change
from headwater.errors import ConflictError, InvalidError
from headwater.store import access, generations, late, tables
from headwater.store import queries as asking
from headwater.store.columns import Value
from headwater.store.databases.engine import Database, Db, open_database
from headwater.store.late import LateRow
from headwater.store.questions import Answer, Question
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
)


class _RehearsedError(Exception):
    """Rolls a transaction back that was only to be tried."""


class ViewStore:
    """The views of one app, at a path or at a `postgresql://` address."""

    def __init__(self, place: Path | str, *, read_only: bool = False) -> None:
        self.database: Database = open_database(place, read_only=read_only)
        self.shapes = asking.ShapeCache()
        if read_only:
            self._check_readable(place)
        else:
            with self.database.writing() as db:
                for statement in _SCHEMA:
                    db.execute(statement)
                if isinstance(place, Path):
                    late.allow_nulls(db)
                access.open_store(db)

    def reading(self) -> Db:
        """To read one statement at a time."""
        return self.database.reading()

    @contextmanager
    def writing(self) -> Iterator[Db]:
        """A transaction, for what belongs to the store and is kept elsewhere."""
        with self.database.writing() as db:
            yield db

    def take_over(self, app: str) -> None:
        """Fence every other pipeline that writes here; ConflictError if the views are another app's."""
        self.database.take_over(app)

    # -- writing ----------------------------------------------------------------------------------------------

    def declare(self, shape: ViewShape, how: Access | None = None) -> None:
        """Create the view, or check that the one that is there has the same shape; bring its indexes to `how`."""
        tables.check_names(shape)
        how = how or Access()
        check_access(shape, how)
        with self.writing() as db:
            known = tables.shape_or_none(db, shape.name)
            if known is not None and known != shape:
                raise ConflictError(
                    f"cannot continue view {shape.name!r}: it was {tables.describe(known)}, the app now gives "
                    f"{tables.describe(shape)}",
                    hint=f"headwater rebuild {shape.name}: compute it anew from the log; or give it another name",
                )
            if known is None:
                tables.create(db, shape)
            access.apply(db, shape, how)

    def progress(self, query: str) -> ViewProgress | None:
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
        offsets: Mapping[str, Mapping[str, int]] | None = None,
    ) -> bool:
        """Upsert one batch of rows by key, with its number; False if that batch is already there.

        `offsets` says how far the batch has read in each topic, so that readers can wait for it.

        A run that is new here starts with an empty view, unless it `continues` the one that was here before.

        With `signs` the rows are changes: one with a sign below 0 takes back the row that is there, if it is the
        one it was (fractions aside: a batch that is run again may round otherwise).
        """
        with self.writing() as db:
            known = tables.progress_of(db, view)
            if known is not None and known.includes(run, batch):
                return False
            shape = tables.shape_of(db, view)
            position = tables.position_of(db, view)
            if known is not None and known.run not in (run, continues):
                position = tables.clear(db, shape, position)
                late.clear_late(db, view)
            late.add_late(db, view, batch, late_rows)
            tables.upsert(db, shape, tables.encode_rows(shape, rows, signs), position)
            note = {} if offsets is None else {tables.OFFSETS: offsets}
            tables.set_progress(db, view, ViewProgress(run=run, batch=batch, note=note))
            return True

    def rehearse_rows(self, view: str, rows: pa.Table, signs: Sequence[int] | None = None) -> None:
        """Upsert rows and take them back before anybody sees them; raises what `commit_rows` would."""
        with suppress(_RehearsedError), self.writing() as db:
            shape = tables.shape_of(db, view)
            tables.upsert(db, shape, tables.encode_rows(shape, rows, signs), tables.position_of(db, view))
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
        """Put the affected of these rows in the place of the affected rows that are there.

        The rows were computed again with the late rows of these numbers, which are noted to be in now.
        """
        with self.writing() as db:
            shape = tables.shape_of(db, view)
            table = db.execute(f"select _key, {columns_of(shape)} from {table_of(view)}").fetchall()
            changed: dict[str, tuple[Value, ...] | tables.Retraction] = {
                key: tables.Retraction(tuple(row))
                for key, *row in table
                if affected(tables.decode_row(shape, row))
            }
            for key, row in tables.encode_rows(shape, rows, signs).items():
                if not isinstance(row, tables.Retraction) and affected(tables.decode_row(shape, row)):
                    changed[key] = row
            tables.upsert(db, shape, changed, tables.position_of(db, view))
            late.mark_reprocessed(db, view, numbers)

    def note_late(self, query: str, late_rows: Sequence[LateRow], *, run: str, batch: int) -> bool:
        """Keep the late rows of a query whose rows go elsewhere; False if that batch's are already there."""
        with self.writing() as db:
            known = tables.progress_of(db, query)
            if known is not None and known.includes(run, batch):
                return False
            if known is not None and known.run != run:
                late.clear_late(db, query)
            late.add_late(db, query, batch, late_rows)
            tables.set_progress(db, query, ViewProgress(run=run, batch=batch, note={}))
            return True

    def commit_progress(self, query: str, progress: ViewProgress, *, counts: dict[str, int] | None = None) -> None:
        """Note how far a query without a view has come, and set counters, in one transaction."""
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
        """The views there are, by name."""
        names = self.reading().execute("select name from headwater_views order by name").fetchall()
        return [self.shape(name) for (name,) in names if generations.MARK not in name]

    def shape(self, view: str) -> ViewShape:
        """The shape of a view; an InvalidError that names the others if there is none."""
        return tables.shape_of(self.reading(), view)

    def access(self, view: str) -> Access:
        """How a view can be asked beyond its key."""
        kept = access.kept_access(self.reading(), view)
        if kept is None:
            return Access()
        key = self.shape(view).key
        indexes = tuple(sorted(columns for columns in kept.indexes.values() if columns != key))
        return Access(indexes=indexes, search=kept.search, history=kept.history)

    def count(self, view: str) -> int:
        """The number of rows."""
        shape = self.shape(view)
        return int(self.reading().execute(f"select count(*) from {table_of(shape.name)}").fetchone()[0])

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
        question = asking.by_key(self.shape(view), key, order_by=order_by, descending=descending, limit=limit)
        return self.ask(view, question).rows

    def ask(self, view: str, question: Question) -> Answer:
        """Answer a question about a view."""
        return asking.ask(self.database, self.shapes, view, question)

    def get(self, view: str, key: Sequence[Any]) -> dict[str, Any] | None:
        """The row of a key; None if there is none."""
        return asking.get(self.database, self.shapes, view, key)

    def identity(self) -> str:
        """What tokens of this store begin with."""
        return str(self.reading().execute("select identity from headwater_store").fetchone()[0])

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
        """Let go of connections; see `Database.close`."""
        self.database.close()

    def _check_readable(self, place: Path | str) -> None:
        try:
            found = self.database.has_views()
        except BaseException:
            self.close()
            raise
        if not found:
            self.close()
            where = self.database.reading().place if not isinstance(place, Path) else f"file {str(place)!r}"
            raise InvalidError(
                f"cannot read views: there is no {where} with views of this version yet",
                hint="run the app first (`headwater run APP.py`), or name its folder with --data",
            )
