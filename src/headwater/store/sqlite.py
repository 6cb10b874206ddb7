"""Views in one SQLite file: rows, recent changes, and the batch each query has reached, changed together.

Tables, all in `views.db`:

    headwater_views      name, key columns, all columns       what there is
    headwater_progress   query -> run, batch                  how far each query has come
    headwater_changes    view, position, op, before, after    the last CHANGES_KEPT changes of each view
    headwater_late       view, number, row, how late, ...     rows that came after their window had closed
    view_<name>          _key, then the view's columns        the rows

A batch's rows and its number are written in one transaction, and a number that is already there is skipped:
this is what makes a restarted query exact. `run` is the identity of the query's checkpoint. A new run starts
from the first record again, so its first batch empties the view in the same transaction.

Thread-safe: one writer at a time (a lock here, SQLite's own between processes); each reading thread has a
connection of its own, and WAL lets it read while a batch is written.
"""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.change import Change, Op
from headwater.errors import ConflictError, InvalidError
from headwater.store import late
from headwater.store.columns import Column, Value, decode_value, encode_column, parse_value, sorting
from headwater.store.late import LateRow
from headwater.store.room import waits_for_room

CHANGES_KEPT = 10_000
"""Enough for a browser tab to come back after minutes and miss nothing; older followers start from the rows."""

BUSY_TIMEOUT_S = 30.0
_KEYS_PER_SELECT = 500  # stays below SQLite's oldest limit of 999 variables

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
commit;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewShape:
    """What a view looks like: its name, its key columns in order, and all its columns."""

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        names = ", ".join(c.name for c in self.columns)
        raise InvalidError(f"view {self.name!r} has no column {name!r}; it has: {names}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The last batch of a query that is in the store, of which run, and a note the query left with it."""

    run: str
    batch: int
    note: dict[str, Any]


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
                self._connection().executescript(_SCHEMA.format(late=late.SCHEMA))

    # -- writing ----------------------------------------------------------------------------------------------

    def declare(self, shape: ViewShape) -> None:
        """Create the view, or check that the one that is there has the same shape."""
        _check_names(shape)
        with self._write() as db:
            known = self._shape_or_none(db, shape.name)
            if known == shape:
                return
            if known is not None:
                raise ConflictError(
                    f"cannot continue view {shape.name!r}: it was {_describe(known)}, the app now gives "
                    f"{_describe(shape)}",
                    hint=f"give the changed view a new name, or rebuild all from the log: stop the app and "
                    f"remove {str(self.path.parent / 'checkpoints')!r} and {str(self.path)!r}",
                )
            columns = ", ".join(_quote(c.name) for c in shape.columns)
            key = ", ".join(_quote(name) for name in shape.key)
            table = _table(shape.name)
            db.execute(f"create table {table} (_key text primary key, {columns}) without rowid")
            db.execute(f"create index {_quote('by_key_' + shape.name)} on {table} ({key})")
            db.execute(
                "insert into headwater_views values (?, ?, ?)",
                (shape.name, json.dumps(shape.key), json.dumps([[c.name, c.type] for c in shape.columns])),
            )

    def progress(self, query: str) -> Progress | None:
        """How far `query` has come; None if it has never committed."""
        return self._progress(self._connection(), query)

    def commit_rows(
        self,
        view: str,
        rows: pa.Table,
        *,
        run: str,
        batch: int,
        late_rows: Sequence[LateRow] = (),
        signs: Sequence[int] | None = None,
    ) -> bool:
        """Upsert one batch of rows by key, with its number; False if that batch is already there.

        With `signs` the rows are changes: one with a sign below 0 takes back the row that is there, if it is the
        one it was (fractions aside: a batch that is run again may round otherwise).
        """
        with self._write() as db:
            known = self._progress(db, view)
            if known is not None and known.run == run and known.batch >= batch:
                return False
            shape = self._shape(db, view)
            position = self._position(db, view)
            if known is not None and known.run != run:
                position = self._clear(db, shape, position)
                late.clear_late(db, view)
            late.add_late(db, view, batch, late_rows)
            self._upsert(db, shape, _encode_rows(shape, rows, signs), position)
            self._set_progress(db, view, Progress(run=run, batch=batch, note={}))
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
        with self._write() as db:
            shape = self._shape(db, view)
            table = db.execute(f"select _key, {_columns(shape)} from {_table(view)}").fetchall()
            changed: dict[str, tuple[Value, ...] | _TakenBack] = {
                key: _TakenBack(tuple(row)) for key, *row in table if affected(_decode_row(shape, row))
            }
            for key, row in _encode_rows(shape, rows, signs).items():
                if not isinstance(row, _TakenBack) and affected(_decode_row(shape, row)):
                    changed[key] = row
            self._upsert(db, shape, changed, self._position(db, view))
            late.mark_reprocessed(db, view, numbers)

    def note_late(self, query: str, late_rows: Sequence[LateRow], *, run: str, batch: int) -> bool:
        """Keep the late rows of a query whose rows go elsewhere; False if that batch's are already there."""
        with self._write() as db:
            known = self._progress(db, query)
            if known is not None and known.run == run and known.batch >= batch:
                return False
            if known is not None and known.run != run:
                late.clear_late(db, query)
            late.add_late(db, query, batch, late_rows)
            self._set_progress(db, query, Progress(run=run, batch=batch, note={}))
            return True

    def commit_progress(self, query: str, progress: Progress, *, counts: dict[str, int] | None = None) -> None:
        """Note how far a query without a view has come, and set counters, in one transaction."""
        with self._write() as db:
            self._set_progress(db, query, progress)
            for name, count in (counts or {}).items():
                db.execute("insert or replace into headwater_counters values (?, ?)", (name, count))

    # -- reading ----------------------------------------------------------------------------------------------

    def views(self) -> list[ViewShape]:
        """The views there are, by name."""
        names = self._connection().execute("select name from headwater_views order by name").fetchall()
        return [self.shape(name) for (name,) in names]

    def shape(self, view: str) -> ViewShape:
        """The shape of a view; an InvalidError that names the others if there is none."""
        return self._shape(self._connection(), view)

    def count(self, view: str) -> int:
        """The number of rows."""
        shape = self.shape(view)
        return int(self._connection().execute(f"select count(*) from {_table(shape.name)}").fetchone()[0])

    def counters(self) -> dict[str, int]:
        """All counters, such as the records sent to each dead-letter topic."""
        return dict(self._connection().execute("select name, value from headwater_counters order by name"))

    def position(self, view: str) -> int:
        """The position of the view's last change; 0 before the first."""
        return self._position(self._connection(), view)

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
        conditions = " and ".join(f"{_quote(name)} = ?" for name in names) or "true"
        direction = " desc" if descending else ""
        order = ", ".join(
            sorting(shape.column(name)).replace("?", _quote(name)) + direction for name in order_names
        )
        found = self._connection().execute(
            f"select {_columns(shape)} from {_table(view)} where {conditions} order by {order} limit ?",
            (*wanted, limit),
        )
        return [_decode_row(shape, row) for row in found]

    def changes(self, view: str, *, after: int, limit: int = 1000) -> list[Change]:
        """The changes behind a position, oldest first, as far back as they are kept."""
        shape = self.shape(view)
        found = self._connection().execute(
            "select position, op, before, after from headwater_changes "
            "where view = ? and position > ? order by position limit ?",
            (view, after, limit),
        )
        return [_decode_change(shape, *row) for row in found]

    def late_rows(self, view: str, *, after: int = 0, limit: int = 1000) -> list[LateRow]:
        """The rows that came too late for the view, behind a number, in the order they came."""
        if self.progress(view) is None:
            self.shape(view)  # Neither a query that has committed nor a view: this says so.
        return late.read_late(self._connection(), view, after=after, limit=limit)

    def late_counts(self) -> dict[str, tuple[int, int]]:
        """For each view with late rows: how many, and how many still to be reprocessed."""
        return late.count_late(self._connection())

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
        if not self.path.exists() or self._connection().execute(tables).fetchone() is None:
            raise InvalidError(
                f"cannot read views: there is no file {str(self.path)!r} with views yet",
                hint="run the app first (`headwater run APP.py`), or name its folder with --data",
            )

    def _connection(self) -> sqlite3.Connection:
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
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._write_lock, waits_for_room(self.path):
            db = self._connection()
            db.execute("begin immediate")
            try:
                yield db
                db.execute("commit")
            except BaseException:
                if db.in_transaction:  # SQLite has rolled back by itself where the disk was full.
                    db.execute("rollback")
                raise

    def _shape(self, db: sqlite3.Connection, view: str) -> ViewShape:
        shape = self._shape_or_none(db, view)
        if shape is None:
            names = [name for (name,) in db.execute("select name from headwater_views order by name")]
            raise InvalidError(
                f"there is no view {view!r} in {str(self.path)!r}; it has: {', '.join(names) or 'none yet'}"
            )
        return shape

    def _shape_or_none(self, db: sqlite3.Connection, view: str) -> ViewShape | None:
        found = db.execute("select key, columns from headwater_views where name = ?", (view,)).fetchone()
        if found is None:
            return None
        key, columns = json.loads(found[0]), json.loads(found[1])
        return ViewShape(name=view, key=tuple(key), columns=tuple(Column(*c) for c in columns))

    def _progress(self, db: sqlite3.Connection, query: str) -> Progress | None:
        found = db.execute("select run, batch, note from headwater_progress where query = ?", (query,)).fetchone()
        return found and Progress(run=found[0], batch=found[1], note=json.loads(found[2] or "{}"))

    def _set_progress(self, db: sqlite3.Connection, query: str, progress: Progress) -> None:
        db.execute(
            "insert or replace into headwater_progress values (?, ?, ?, ?)",
            (query, progress.run, progress.batch, json.dumps(progress.note)),
        )

    def _position(self, db: sqlite3.Connection, view: str) -> int:
        found = db.execute("select max(position) from headwater_changes where view = ?", (view,)).fetchone()[0]
        return int(found or 0)

    def _clear(self, db: sqlite3.Connection, shape: ViewShape, position: int) -> int:
        """Delete every row, as changes, so that whoever follows the view sees it happen."""
        found = db.execute(f"select _key, {_columns(shape)} from {_table(shape.name)} order by _key").fetchall()
        db.execute(f"delete from {_table(shape.name)}")
        return self._note_changes(db, shape.name, [(Op.DELETE, row[0], row[1:], None) for row in found], position)

    def _upsert(
        self,
        db: sqlite3.Connection,
        shape: ViewShape,
        rows: "dict[str, tuple[Value, ...] | _TakenBack]",
        position: int,
    ) -> None:
        before = self._known_rows(db, shape, list(rows))
        changes: list[_RowChange] = []
        for key, row in rows.items():
            known = before.get(key)
            if isinstance(row, _TakenBack):
                if known is not None and _is_same(shape, known, row.row):
                    changes.append((Op.DELETE, key, known, None))
            elif known != row:
                changes.append((Op.INSERT if known is None else Op.UPDATE, key, known, row))
        marks = ", ".join("?" * (len(shape.columns) + 1))
        db.executemany(
            f"insert or replace into {_table(shape.name)} values ({marks})",
            ((key, *after) for _, key, _, after in changes if after is not None),
        )
        db.executemany(
            f"delete from {_table(shape.name)} where _key = ?",
            ((key,) for _, key, _, after in changes if after is None),
        )
        self._note_changes(db, shape.name, changes, position)

    def _known_rows(
        self, db: sqlite3.Connection, shape: ViewShape, keys: list[str]
    ) -> dict[str, tuple[Value, ...]]:
        known: dict[str, tuple[Value, ...]] = {}
        for start in range(0, len(keys), _KEYS_PER_SELECT):
            some = keys[start : start + _KEYS_PER_SELECT]
            marks = ", ".join("?" * len(some))
            found = db.execute(
                f"select _key, {_columns(shape)} from {_table(shape.name)} where _key in ({marks})", some
            )
            known.update((row[0], row[1:]) for row in found)
        return known

    def _note_changes(
        self,
        db: sqlite3.Connection,
        view: str,
        changes: "Sequence[_RowChange]",
        position: int,
    ) -> int:
        db.executemany(
            "insert into headwater_changes values (?, ?, ?, ?, ?, ?)",
            (
                (view, position + n, op, key, before and json.dumps(before), after and json.dumps(after))
                for n, (op, key, before, after) in enumerate(changes, 1)
            ),
        )
        last = position + len(changes)
        db.execute("delete from headwater_changes where view = ? and position <= ?", (view, last - CHANGES_KEPT))
        return last


_RowChange = tuple[Op, str, tuple[Value, ...] | None, tuple[Value, ...] | None]


@dataclass(frozen=True, slots=True)
class _TakenBack:
    """In the place of a row: this one is to go, if it is the one that is there."""

    row: tuple[Value, ...]


def _encode_rows(
    shape: ViewShape, rows: pa.Table, signs: Sequence[int] | None = None
) -> dict[str, tuple[Value, ...] | _TakenBack]:
    """Rows by key; where a batch has a key twice, the last one stands."""
    columns = {c.name: encode_column(rows.column(c.name)) for c in shape.columns}
    keys = zip(*(columns[name] for name in shape.key), strict=True)
    values = zip(*columns.values(), strict=True)
    found: dict[str, tuple[Value, ...] | _TakenBack] = {}
    for number, (key, row) in enumerate(zip(keys, values, strict=True)):
        name = json.dumps(key, ensure_ascii=False)
        if signs is None or signs[number] > 0:
            found[name] = row
            continue
        present = found.get(name, row)
        if not isinstance(present, _TakenBack) and _is_same(
            shape, present, row
        ):  # Else another has its key by now.
            found[name] = _TakenBack(row)
    return found


def _is_same(shape: ViewShape, one: Sequence[Value], other: Sequence[Value]) -> bool:
    """Whether two rows agree in all but fractions."""
    columns = zip(shape.columns, one, other, strict=True)
    return all(a == b for column, a, b in columns if column.type not in ("double", "float"))


def _decode_row(shape: ViewShape, row: Sequence[Value]) -> dict[str, Any]:
    return {c.name: decode_value(c, value) for c, value in zip(shape.columns, row, strict=True)}


def _decode_change(shape: ViewShape, position: int, op: str, before: str | None, after: str | None) -> Change:
    rows = [text and _decode_row(shape, json.loads(text)) for text in (before, after)]
    present = rows[1] or rows[0]
    assert isinstance(present, dict)  # a change has at least one side
    return Change(
        op=Op(op),
        key=tuple(present[name] for name in shape.key),
        before=rows[0] or None,
        after=rows[1] or None,
        position=position,
    )


def _check_names(shape: ViewShape) -> None:
    """SQLite does not tell upper from lower case, and one column's name is ours."""
    seen = {"_key": "_key"}
    for column in shape.columns:
        other = seen.setdefault(column.name.lower(), column.name)
        if other != column.name or column.name.lower() == "_key":
            raise InvalidError(
                f"cannot keep view {shape.name!r}: its column {column.name!r} has the same name as {other!r}"
            )


def _describe(shape: ViewShape) -> str:
    columns = ", ".join(f"{c.name} {c.type}" for c in shape.columns)
    return f"({columns}) by key ({', '.join(shape.key)})"


def _table(view: str) -> str:
    return _quote("view_" + view)


def _columns(shape: ViewShape) -> str:
    return ", ".join(_quote(c.name) for c in shape.columns)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
