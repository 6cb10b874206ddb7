"""The tables of the views: shapes, rows, changes and progress. Every function runs in the caller's transaction."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.change import Op
from headwater.errors import InvalidError
from headwater.sql_names import quote
from headwater.store import access, late
from headwater.store.access import KeptAccess
from headwater.store.databases.engine import Db
from headwater.store.rows import Retraction, RowChange, StoredRow, is_same, row_text
from headwater.store.shapes import CHANGES_KEPT, ViewShape
from headwater.store.statements import columns_of, table_of
from headwater.store.values.column_types import Column

OFFSETS = "offsets"
"""In the note of a query's progress: the next offset of each partition it reads, `{"orders": {"0": 18}}`."""

_KEYS_PER_SELECT = 500  # stays below SQLite's oldest limit of 999 variables


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewProgress:
    """The last batch of a query that is in the store, its run, and a note that the query recorded with it."""

    run: str
    batch: int
    note: dict[str, Any]

    def includes(self, run: str, batch: int) -> bool:
        """Return whether the store has this batch, or a later one of the same run."""
        return self.run == run and self.batch >= batch


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    """The progress of a query, None before its first batch, and the position of its view."""

    progress: ViewProgress | None
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewLayout:
    """The shape of a view and its access; it is valid until the store's version changes."""

    shape: ViewShape
    access: KeptAccess | None

    @property
    def history(self) -> int:
        """The number of changes to keep."""
        return CHANGES_KEPT if self.access is None else self.access.history


def layout_of(db: Db, view: str) -> ViewLayout:
    return ViewLayout(shape=shape_of(db, view), access=access.kept_access(db, view))


def shape_of(db: Db, view: str) -> ViewShape:
    shape = shape_or_none(db, view)
    if shape is None:
        names = [name for (name,) in db.execute("select name from headwater_views order by name")]
        raise InvalidError(f"there is no view {view!r} in {db.location}; it has: {', '.join(names) or 'none yet'}")
    return shape


def shape_or_none(db: Db, view: str) -> ViewShape | None:
    found = db.execute("select key, columns from headwater_views where name = ?", (view,)).fetchone()
    if found is None:
        return None
    key, columns = json.loads(found[0]), json.loads(found[1])
    return ViewShape(name=view, key=tuple(key), columns=tuple(Column(*c) for c in columns))


def progress_of(db: Db, query: str) -> ViewProgress | None:
    found = db.execute("select run, batch, note from headwater_progress where query = ?", (query,)).fetchone()
    return found and ViewProgress(run=found[0], batch=found[1], note=json.loads(found[2] or "{}"))


def set_progress(db: Db, query: str, progress: ViewProgress) -> None:
    db.execute(
        "insert into headwater_progress values (?, ?, ?, ?) on conflict (query) do update set "
        "run = excluded.run, batch = excluded.batch, note = excluded.note",
        (query, progress.run, progress.batch, json.dumps(progress.note)),
    )


def query_states(db: Db, queries: Collection[str]) -> tuple[int, dict[str, QueryState]]:
    """Return the version of the store and the states of queries, with one statement."""
    marks = ", ".join(["(?)"] * len(queries))
    found = db.execute(
        f"with queries (name) as (values {marks}) select s.version, q.name, p.run, p.batch, p.note, "
        "(select max(c.position) from headwater_changes c where c.view = q.name) "
        "from queries q cross join headwater_store s left join headwater_progress p on p.query = q.name",
        tuple(queries),
    ).fetchall()
    states = {
        name: QueryState(
            progress=None if run is None else ViewProgress(run=run, batch=batch, note=json.loads(note or "{}")),
            position=position or 0,
        )
        for _, name, run, batch, note, position in found
    }
    return found[0][0], states


def position_of(db: Db, view: str) -> int:
    found = db.execute("select max(position) from headwater_changes where view = ?", (view,)).fetchone()[0]
    return int(found or 0)


def delete_rows(db: Db, layout: ViewLayout, position: int) -> int:
    """Delete every row and record the changes, so that subscribers see them; return the new position."""
    shape = layout.shape
    found = db.execute(f"select _key, {columns_of(shape)} from {table_of(shape.name)} order by _key").fetchall()
    db.execute(f"delete from {table_of(shape.name)}")
    access.clear_search(db, layout.access)
    return _record_changes(db, layout, [(Op.DELETE, row[0], row[1:], None) for row in found], position)


def upsert(db: Db, layout: ViewLayout, rows: dict[str, StoredRow | Retraction], position: int) -> int:
    """Insert, update and delete rows, and record the changes; return the new position."""
    shape = layout.shape
    changes = _changes(shape, rows, _known_rows(db, shape, list(rows)))
    put = [(key, *after) for _, key, _, after in changes if after is not None]
    deleted = [(key,) for _, key, _, after in changes if after is None]
    if put:
        marks = ", ".join("?" * (len(shape.columns) + 1))
        sets = ", ".join(f"{quote(c.name)} = excluded.{quote(c.name)}" for c in shape.columns)
        db.executemany(
            f"insert into {table_of(shape.name)} values ({marks}) on conflict (_key) do update set {sets}", put
        )
    if deleted:
        db.executemany(f"delete from {table_of(shape.name)} where _key = ?", deleted)
    access.update_search(db, shape, layout.access, changes)
    return _record_changes(db, layout, changes, position)


def _changes(
    shape: ViewShape, rows: dict[str, StoredRow | Retraction], before: dict[str, StoredRow]
) -> list[RowChange]:
    changes: list[RowChange] = []
    for key, row in rows.items():
        known = before.get(key)
        if isinstance(row, Retraction):
            if known is not None and (row.put or is_same(shape, known, row.row)):
                changes.append((Op.DELETE, key, known, None))
        elif known != row:
            changes.append((Op.INSERT if known is None else Op.UPDATE, key, known, row))
    return changes


def _known_rows(db: Db, shape: ViewShape, keys: list[str]) -> dict[str, StoredRow]:
    known: dict[str, StoredRow] = {}
    for start in range(0, len(keys), _KEYS_PER_SELECT):
        block = keys[start : start + _KEYS_PER_SELECT]
        marks = ", ".join("?" * len(block))
        found = db.execute(
            f"select _key, {columns_of(shape)} from {table_of(shape.name)} where _key in ({marks})", block
        )
        known.update((row[0], row[1:]) for row in found)
    return known


def _record_changes(db: Db, layout: ViewLayout, changes: Sequence[RowChange], position: int) -> int:
    view, last = layout.shape.name, position + len(changes)
    if changes:
        db.executemany(
            "insert into headwater_changes values (?, ?, ?, ?, ?, ?)",
            (
                (view, position + n, op, key, row_text(before), row_text(after))
                for n, (op, key, before, after) in enumerate(changes, 1)
            ),
        )
    if last > layout.history:
        db.execute("delete from headwater_changes where view = ? and position <= ?", (view, last - layout.history))
    return last


def create(db: Db, shape: ViewShape) -> None:
    """Create an empty view."""
    columns = ", ".join(f"{quote(c.name)} {db.dialect.column_type(c.type)}".rstrip() for c in shape.columns)
    key = f"_key {db.dialect.key_type} primary key"
    db.execute(f"create table {table_of(shape.name)} ({key}, {columns}) {db.dialect.table_options}")
    db.execute(
        "insert into headwater_views values (?, ?, ?)",
        (shape.name, json.dumps(shape.key), json.dumps([[c.name, c.type] for c in shape.columns])),
    )
    access.raise_version(db)


def drop(db: Db, view: str) -> None:
    """Drop a view with its changes, progress and late rows; only its position is kept."""
    if shape_or_none(db, view) is None:
        return
    access.drop(db, view)
    db.execute(f"drop table {table_of(view)}")
    db.execute("delete from headwater_views where name = ?", (view,))
    last = position_of(db, view)
    db.execute("delete from headwater_changes where view = ?", (view,))
    # A change without rows, which is never delivered: subscribers find a gap and read the rows again.
    db.execute("insert into headwater_changes values (?, ?, ?, '[]', null, null)", (view, last + 1, Op.DELETE))
    db.execute("delete from headwater_progress where query = ?", (view,))
    late.clear_late(db, view)
    access.raise_version(db)


def rename(db: Db, view: str, name: str) -> None:
    """Rename a view; no view may have the new name."""
    shape_of(db, view)
    db.execute(f"alter table {table_of(view)} rename to {table_of(name)}")
    db.execute("update headwater_views set name = ? where name = ?", (name, view))
    access.rename(db, view, name)
    access.raise_version(db)


def check_names(shape: ViewShape) -> None:
    """Raise InvalidError if two column names differ only in case, which SQLite ignores, or one is `_key`."""
    seen = {"_key": "_key"}
    for column in shape.columns:
        other = seen.setdefault(column.name.lower(), column.name)
        if other != column.name or column.name.lower() == "_key":
            raise InvalidError(
                f"cannot store view {shape.name!r}: its column {column.name!r} has the same name as {other!r}"
            )


def describe(shape: ViewShape) -> str:
    columns = ", ".join(f"{c.name} {c.type}" for c in shape.columns)
    return f"({columns}) by key ({', '.join(shape.key)})"
