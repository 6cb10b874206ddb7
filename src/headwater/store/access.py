"""How a view can be asked beyond its key, in the database: indexes, words that are searched, and how much is kept.

    headwater_access   view -> indexes (tag -> columns), search (tag, columns), history
    headwater_store    one row: the store's identity, the version of its views' shapes, who writes it

Indexes and words can be added and taken away at any start of the app: they are made from the rows that are there,
and nothing is computed anew. Their names are tags that no view's name is part of, so a rebuilt view that takes
another's place keeps its own.
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.sql_names import quote
from headwater.store.columns import Value
from headwater.store.databases.engine import Db
from headwater.store.search import words_of
from headwater.store.shapes import CHANGES_KEPT, Access, ViewShape
from headwater.store.statements import columns_of, expression, table_of

SCHEMA = (
    """create table if not exists headwater_store (
    one integer primary key, identity text not null, version bigint not null, app text, epoch bigint not null)""",
    """create table if not exists headwater_access (
    view text primary key, indexes text not null, search text, history bigint not null)""",
)

_ROWS_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAccess:
    """What there is of a view's access, with the tags that are part of names in the database."""

    indexes: dict[str, tuple[str, ...]]
    search_tag: str | None
    search: tuple[str, ...]
    history: int


def open_store(db: Db) -> None:
    """Give the store its identity, once."""
    db.execute(
        "insert into headwater_store values (1, ?, 0, null, 0) on conflict (one) do nothing",
        (secrets.token_hex(4),),
    )


def raise_version(db: Db) -> None:
    """Tell readers that what they know of the views' shapes is old."""
    db.execute("update headwater_store set version = version + 1")


def kept_access(db: Db, view: str) -> KeptAccess | None:
    """What there is; None for a view without any."""
    found = db.execute("select indexes, search, history from headwater_access where view = ?", (view,)).fetchone()
    if found is None:
        return None
    tag, columns = json.loads(found[1]) if found[1] else (None, ())
    indexes = {name: tuple(columns) for name, columns in json.loads(found[0]).items()}
    return KeptAccess(indexes=indexes, search_tag=tag, search=tuple(columns), history=found[2])


def history_of(db: Db, view: str) -> int:
    """How many changes of a view are kept."""
    found = db.execute("select history from headwater_access where view = ?", (view,)).fetchone()
    return int(found[0]) if found else CHANGES_KEPT


def apply(db: Db, shape: ViewShape, access: Access) -> None:
    """Bring indexes, words and history of a view to what its app declares."""
    kept = kept_access(db, shape.name)
    wanted = {tuple(shape.key), *access.indexes}
    indexes = {} if kept is None else dict(kept.indexes)
    if (
        kept is not None
        and set(indexes.values()) == wanted
        and (kept.search, kept.history) == (access.search, access.history)
    ):
        return
    for tag, columns in list(indexes.items()):
        if columns not in wanted:
            db.execute(f"drop index {quote('by_' + tag)}")
            del indexes[tag]
    for columns in sorted(wanted - set(indexes.values())):
        tag = secrets.token_hex(6)
        _create_index(db, shape, tag, columns)
        indexes[tag] = columns
    search = _apply_search(db, shape, access.search, kept)
    db.execute(
        "insert into headwater_access values (?, ?, ?, ?) on conflict (view) do update set "
        "indexes = excluded.indexes, search = excluded.search, history = excluded.history",
        (shape.name, json.dumps(indexes), search and json.dumps(search), access.history),
    )
    raise_version(db)


def drop(db: Db, view: str) -> None:
    """Let go of what is beside a view's table; its indexes go with it."""
    forget_search(db, kept_access(db, view))
    db.execute("delete from headwater_access where view = ?", (view,))


def rename(db: Db, view: str, name: str) -> None:
    """What is beside a view's table stays with it under another name."""
    db.execute("update headwater_access set view = ? where view = ?", (name, view))


def forget_search(db: Db, kept: KeptAccess | None) -> None:
    if kept is not None and kept.search_tag is not None:
        db.dialect.drop_search(db, kept.search_tag)


def forget_words(db: Db, view: str) -> None:
    """Let go of the words of all rows: there are none any more."""
    kept = kept_access(db, view)
    if kept is not None and kept.search_tag is not None:
        db.dialect.empty_search(db, kept.search_tag)


def note_words(db: Db, shape: ViewShape, changes: Sequence[tuple[Any, str, Any, Any]]) -> None:
    """Bring the words to what changes have made of the rows: op, key, before, after each."""
    kept = kept_access(db, shape.name)
    if kept is None or kept.search_tag is None:
        return
    places = _places(shape, kept.search)
    gone = [key for _, key, _, after in changes if after is None]
    put = [
        (key, words_of(_texts(after, places)))
        for _, key, before, after in changes
        if after is not None and (before is None or _texts(before, places) != _texts(after, places))
    ]
    if gone:
        db.dialect.remove_search(db, kept.search_tag, gone)
    if put:
        db.dialect.put_search(db, kept.search_tag, put)


def _create_index(db: Db, shape: ViewShape, tag: str, columns: tuple[str, ...]) -> None:
    # With the key behind it, it also gives the order in which rows are read, and pages begin in the middle of it.
    names = (*columns, *(name for name in shape.key if name not in columns))
    parts = ", ".join(db.dialect.index_part(expression(shape, name, db.dialect, row="")) for name in names)
    db.execute(f"create index {quote('by_' + tag)} on {table_of(shape.name)} ({parts})")


def _apply_search(
    db: Db, shape: ViewShape, search: tuple[str, ...], kept: KeptAccess | None
) -> tuple[str, tuple[str, ...]] | None:
    if kept is not None and kept.search == search:
        return None if kept.search_tag is None else (kept.search_tag, search)
    forget_search(db, kept)
    if not search:
        return None
    tag = secrets.token_hex(6)
    db.dialect.create_search(db, tag)
    places = _places(shape, search)
    for rows in _all_rows(db, shape):
        db.dialect.put_search(db, tag, [(key, words_of(_texts(row, places))) for key, *row in rows])
    return tag, search


def _all_rows(db: Db, shape: ViewShape) -> Iterator[list[tuple[Any, ...]]]:
    """The rows with their keys, so many at a time."""
    select = f"select _key, {columns_of(shape)} from {table_of(shape.name)}"
    after = ""
    while rows := db.execute(f"{select} where _key > ? order by _key limit ?", (after, _ROWS_AT_ONCE)).fetchall():
        yield rows
        after = rows[-1][0]


def _places(shape: ViewShape, names: Sequence[str]) -> list[int]:
    order = [column.name for column in shape.columns]
    return [order.index(name) for name in names]


def _texts(row: Sequence[Value], places: Sequence[int]) -> list[str | None]:
    return [None if row[n] is None else str(row[n]) for n in places]
