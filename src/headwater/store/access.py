"""Access to a view beyond its key, in the database: indexes, the text search index, and the length of the history.

    headwater_access   view -> indexes (tag -> columns), search (tag, columns), history
    headwater_store    one row: the store's identity, the version of its views' shapes, the app that writes it

Indexes can be added and removed at any start of the app: they are built from the rows in the view, and nothing is
recomputed. They are named by random tags rather than by the view, so a rebuilt view that replaces another keeps
its own.
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.sql_names import quote
from headwater.store.databases.engine import Db
from headwater.store.search import split_words
from headwater.store.shapes import Access, ViewShape
from headwater.store.statements import columns_of, expression, table_of
from headwater.store.values.columns import Value

SCHEMA = (
    """create table if not exists headwater_store (
    one integer primary key, identity text not null, version bigint not null, app text, epoch bigint not null)""",
    """create table if not exists headwater_access (
    view text primary key, indexes text not null, search text, history bigint not null)""",
)

_BLOCK_ROWS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAccess:
    """A view's access as it is in the database, with the tags that name its indexes."""

    indexes: dict[str, tuple[str, ...]]
    search_tag: str | None
    search: tuple[str, ...]
    history: int


def open_store(db: Db) -> None:
    """Give a new store its identity."""
    db.execute(
        "insert into headwater_store values (1, ?, 0, null, 0) on conflict (one) do nothing",
        (secrets.token_hex(4),),
    )


def raise_version(db: Db) -> None:
    """Invalidate the view shapes that readers have cached."""
    db.execute("update headwater_store set version = version + 1")


def kept_access(db: Db, view: str) -> KeptAccess | None:
    """Return a view's access; None if none is recorded."""
    found = db.execute("select indexes, search, history from headwater_access where view = ?", (view,)).fetchone()
    if found is None:
        return None
    tag, columns = json.loads(found[1]) if found[1] else (None, ())
    indexes = {name: tuple(columns) for name, columns in json.loads(found[0]).items()}
    return KeptAccess(indexes=indexes, search_tag=tag, search=tuple(columns), history=found[2])


def apply(db: Db, shape: ViewShape, access: Access) -> None:
    """Change the indexes, the search index and the history of a view to what its app declares."""
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
    """Drop a view's search index and its entry; its other indexes are dropped with its table."""
    _drop_search(db, kept_access(db, view))
    db.execute("delete from headwater_access where view = ?", (view,))


def rename(db: Db, view: str, name: str) -> None:
    """Assign a view's access to its new name."""
    db.execute("update headwater_access set view = ? where view = ?", (name, view))


def _drop_search(db: Db, kept: KeptAccess | None) -> None:
    if kept is not None and kept.search_tag is not None:
        db.dialect.drop_search(db, kept.search_tag)


def clear_search(db: Db, kept: KeptAccess | None) -> None:
    """Empty a view's search index, because all its rows were deleted."""
    if kept is not None and kept.search_tag is not None:
        db.dialect.empty_search(db, kept.search_tag)


def update_search(
    db: Db, shape: ViewShape, kept: KeptAccess | None, changes: Sequence[tuple[Any, str, Any, Any]]
) -> None:
    """Apply changes (operation, key, before, after) to a view's search index."""
    if kept is None or kept.search_tag is None:
        return
    indices = _indices(shape, kept.search)
    deleted = [key for _, key, _, after in changes if after is None]
    put = [
        (key, split_words(_texts(after, indices)))
        for _, key, before, after in changes
        if after is not None and (before is None or _texts(before, indices) != _texts(after, indices))
    ]
    if deleted:
        db.dialect.remove_search(db, kept.search_tag, deleted)
    if put:
        db.dialect.put_search(db, kept.search_tag, put)


def _create_index(db: Db, shape: ViewShape, tag: str, columns: tuple[str, ...]) -> None:
    # The key columns follow, so that the index also gives the order of rows, and a page can start inside it.
    names = (*columns, *(name for name in shape.key if name not in columns))
    parts = ", ".join(db.dialect.index_part(expression(shape, name, db.dialect, row="")) for name in names)
    db.execute(f"create index {quote('by_' + tag)} on {table_of(shape.name)} ({parts})")


def _apply_search(
    db: Db, shape: ViewShape, search: tuple[str, ...], kept: KeptAccess | None
) -> tuple[str, tuple[str, ...]] | None:
    if kept is not None and kept.search == search:
        return None if kept.search_tag is None else (kept.search_tag, search)
    _drop_search(db, kept)
    if not search:
        return None
    tag = secrets.token_hex(6)
    db.dialect.create_search(db, tag)
    indices = _indices(shape, search)
    for rows in _all_rows(db, shape):
        db.dialect.put_search(db, tag, [(key, split_words(_texts(row, indices))) for key, *row in rows])
    return tag, search


def _all_rows(db: Db, shape: ViewShape) -> Iterator[list[tuple[Any, ...]]]:
    """Yield blocks of rows with their keys."""
    select = f"select _key, {columns_of(shape)} from {table_of(shape.name)}"
    after = ""
    while rows := db.execute(f"{select} where _key > ? order by _key limit ?", (after, _BLOCK_ROWS)).fetchall():
        yield rows
        after = rows[-1][0]


def _indices(shape: ViewShape, names: Sequence[str]) -> list[int]:
    order = [column.name for column in shape.columns]
    return [order.index(name) for name in names]


def _texts(row: Sequence[Value], indices: Sequence[int]) -> list[str | None]:
    return [None if row[n] is None else str(row[n]) for n in indices]
