"""The tables behind the views, inside a transaction that somebody else holds: shapes, rows, changes, progress."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.change import Change, Op
from headwater.errors import InvalidError
from headwater.json_values import finite
from headwater.sql_names import quote
from headwater.store import access, late
from headwater.store.columns import Column, Value, decode_value, encode_column
from headwater.store.databases.engine import Db
from headwater.store.shapes import ViewShape
from headwater.store.statements import columns_of, table_of

OFFSETS = "offsets"
"""In the note of a query's progress: how far it has read, `{"orders": {"0": 18}}`, the next offset each."""

_KEYS_PER_SELECT = 500  # stays below SQLite's oldest limit of 999 variables


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewProgress:
    """The last batch of a query that is in the store, of which run, and a note the query left with it."""

    run: str
    batch: int
    note: dict[str, Any]

    def includes(self, run: str, batch: int) -> bool:
        """Return whether the store has this batch, or a later one of the same run."""
        return self.run == run and self.batch >= batch


def shape_of(db: Db, view: str) -> ViewShape:
    shape = shape_or_none(db, view)
    if shape is None:
        names = [name for (name,) in db.execute("select name from headwater_views order by name")]
        raise InvalidError(f"there is no view {view!r} in {db.place}; it has: {', '.join(names) or 'none yet'}")
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


def position_of(db: Db, view: str) -> int:
    found = db.execute("select max(position) from headwater_changes where view = ?", (view,)).fetchone()[0]
    return int(found or 0)


def clear(db: Db, shape: ViewShape, position: int) -> int:
    """Delete every row, as changes, so that whoever follows the view sees it happen."""
    found = db.execute(f"select _key, {columns_of(shape)} from {table_of(shape.name)} order by _key").fetchall()
    db.execute(f"delete from {table_of(shape.name)}")
    access.forget_words(db, shape.name)
    return _note_changes(db, shape.name, [(Op.DELETE, row[0], row[1:], None) for row in found], position)


def upsert(
    db: Db,
    shape: ViewShape,
    rows: "dict[str, tuple[Value, ...] | Retraction]",
    position: int,
) -> None:
    before = _known_rows(db, shape, list(rows))
    changes: list[_RowChange] = []
    for key, row in rows.items():
        known = before.get(key)
        if isinstance(row, Retraction):
            if known is not None and (row.put or _is_same(shape, known, row.row)):
                changes.append((Op.DELETE, key, known, None))
        elif known != row:
            changes.append((Op.INSERT if known is None else Op.UPDATE, key, known, row))
    marks = ", ".join("?" * (len(shape.columns) + 1))
    sets = ", ".join(f"{quote(c.name)} = excluded.{quote(c.name)}" for c in shape.columns)
    db.executemany(
        f"insert into {table_of(shape.name)} values ({marks}) on conflict (_key) do update set {sets}",
        ((key, *after) for _, key, _, after in changes if after is not None),
    )
    db.executemany(
        f"delete from {table_of(shape.name)} where _key = ?",
        ((key,) for _, key, _, after in changes if after is None),
    )
    access.note_words(db, shape, changes)
    _note_changes(db, shape.name, changes, position)


def _known_rows(db: Db, shape: ViewShape, keys: list[str]) -> dict[str, tuple[Value, ...]]:
    known: dict[str, tuple[Value, ...]] = {}
    for start in range(0, len(keys), _KEYS_PER_SELECT):
        some = keys[start : start + _KEYS_PER_SELECT]
        marks = ", ".join("?" * len(some))
        found = db.execute(
            f"select _key, {columns_of(shape)} from {table_of(shape.name)} where _key in ({marks})", some
        )
        known.update((row[0], row[1:]) for row in found)
    return known


def _note_changes(
    db: Db,
    view: str,
    changes: "Sequence[_RowChange]",
    position: int,
) -> int:
    db.executemany(
        "insert into headwater_changes values (?, ?, ?, ?, ?, ?)",
        (
            (view, position + n, op, key, _row_text(before), _row_text(after))
            for n, (op, key, before, after) in enumerate(changes, 1)
        ),
    )
    last = position + len(changes)
    kept = access.history_of(db, view)
    db.execute("delete from headwater_changes where view = ? and position <= ?", (view, last - kept))
    return last


def _row_text(row: tuple[Value, ...] | None) -> str | None:
    """A row as a list in JSON, which has no infinity."""
    if row is None:
        return None
    return json.dumps([finite(v) if isinstance(v, float) and math.isinf(v) else v for v in row])


def create(db: Db, shape: ViewShape) -> None:
    """Make an empty view."""
    columns = ", ".join(f"{quote(c.name)} {db.dialect.column_type(c.type)}".rstrip() for c in shape.columns)
    key = f"_key {db.dialect.key_type} primary key"
    db.execute(f"create table {table_of(shape.name)} ({key}, {columns}) {db.dialect.table_options}")
    db.execute(
        "insert into headwater_views values (?, ?, ?)",
        (shape.name, json.dumps(shape.key), json.dumps([[c.name, c.type] for c in shape.columns])),
    )
    access.raise_version(db)


def forget(db: Db, view: str) -> None:
    """Let go of a view as if it had never been there, but for the position it had come to."""
    if shape_or_none(db, view) is None:
        return
    access.drop(db, view)
    db.execute(f"drop table {table_of(view)}")
    db.execute("delete from headwater_views where name = ?", (view,))
    last = position_of(db, view)
    db.execute("delete from headwater_changes where view = ?", (view,))
    # A change of nothing, which is never shown: whoever follows misses one, and so reads the rows anew.
    db.execute("insert into headwater_changes values (?, ?, ?, '[]', null, null)", (view, last + 1, Op.DELETE))
    db.execute("delete from headwater_progress where query = ?", (view,))
    late.clear_late(db, view)
    access.raise_version(db)


def rename(db: Db, view: str, name: str) -> None:
    """Give a view's rows another name, under which there must be none."""
    shape_of(db, view)
    db.execute(f"alter table {table_of(view)} rename to {table_of(name)}")
    db.execute("update headwater_views set name = ? where name = ?", (name, view))
    access.rename(db, view, name)
    access.raise_version(db)


_RowChange = tuple[Op, str, tuple[Value, ...] | None, tuple[Value, ...] | None]


@dataclass(frozen=True, slots=True)
class Retraction:
    """In the place of a row: this one is to go, if it is the one that is there.

    One that was `put` in the same batch would have taken the place of whatever is there, so that goes too.
    """

    row: tuple[Value, ...]
    put: bool = False


def encode_rows(
    shape: ViewShape, rows: pa.Table, signs: Sequence[int] | None = None
) -> dict[str, tuple[Value, ...] | Retraction]:
    """Rows by key; where a batch has a key twice, the last one stands."""
    columns = {c.name: encode_column(rows.column(c.name)) for c in shape.columns}
    keys = zip(*(columns[name] for name in shape.key), strict=True)
    values = zip(*columns.values(), strict=True)
    found: dict[str, tuple[Value, ...] | Retraction] = {}
    for number, (key, row) in enumerate(zip(keys, values, strict=True)):
        name = json.dumps(key, ensure_ascii=False)
        if signs is None or signs[number] > 0:
            found[name] = row
            continue
        present = found.get(name)
        if present is None:
            found[name] = Retraction(row)
        elif not isinstance(present, Retraction) and _is_same(
            shape, present, row
        ):  # Else another has its key by now.
            found[name] = Retraction(row, put=True)
    return found


def _is_same(shape: ViewShape, one: Sequence[Value], other: Sequence[Value]) -> bool:
    """Whether two rows agree in all but fractions."""
    columns = zip(shape.columns, one, other, strict=True)
    return all(a == b for column, a, b in columns if column.type not in ("double", "float"))


def decode_row(shape: ViewShape, row: Sequence[Value]) -> dict[str, Any]:
    return {c.name: decode_value(c, value) for c, value in zip(shape.columns, row, strict=True)}


def decode_change(shape: ViewShape, position: int, op: str, before: str | None, after: str | None) -> Change:
    rows = [text and decode_row(shape, json.loads(text)) for text in (before, after)]
    present = rows[1] or rows[0]
    assert isinstance(present, dict)  # a change has at least one side
    return Change(
        op=Op(op),
        key=tuple(present[name] for name in shape.key),
        before=rows[0] or None,
        after=rows[1] or None,
        position=position,
    )


def check_names(shape: ViewShape) -> None:
    """SQLite does not tell upper from lower case, and one column's name is ours."""
    seen = {"_key": "_key"}
    for column in shape.columns:
        other = seen.setdefault(column.name.lower(), column.name)
        if other != column.name or column.name.lower() == "_key":
            raise InvalidError(
                f"cannot keep view {shape.name!r}: its column {column.name!r} has the same name as {other!r}"
            )


def describe(shape: ViewShape) -> str:
    columns = ", ".join(f"{c.name} {c.type}" for c in shape.columns)
    return f"({columns}) by key ({', '.join(shape.key)})"
