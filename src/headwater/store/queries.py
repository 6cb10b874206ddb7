"""Answers to questions: a view's rows at the current or an earlier position, from one snapshot of the database.

The shape of a view is cached until the store's version shows that it has changed, so a lookup by key is one
statement.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from headwater.errors import InvalidError
from headwater.sql_names import quote
from headwater.store import access, tables
from headwater.store.databases.engine import Database, Db
from headwater.store.questions import (
    Answer,
    AtLeast,
    Condition,
    Cursor,
    Operator,
    Order,
    Question,
    encode_cursor,
    token_of,
)
from headwater.store.rows import decode_row
from headwater.store.shapes import ViewShape
from headwater.store.statements import compile_question, parts_of, table_of
from headwater.store.values.columns import literal

_HEAD = (
    "select identity, version, (select max(position) from headwater_changes where view = ?) from headwater_store"
)


class HistoryGoneError(InvalidError):
    """The history no longer covers the position: a subscriber starts again, others ask for a later position."""


class _StaleError(Exception):
    """The cached shape of a view is outdated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedView:
    """The shape of a view and the statement for a lookup by key, valid for one version of the store."""

    version: int
    shape: ViewShape
    search: str | None
    by_key: str
    decimals: bool
    """True if a key column is a decimal."""


class ViewQueries:
    """Answers questions about the views in a database. Thread-safe: a cache entry is replaced as a whole."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cache: dict[str, _CachedView] = {}

    def ask(self, view: str, question: Question) -> Answer:
        """Answer a question about a view."""
        with self._database.snapshot() as db:
            identity, version, position = db.execute(_HEAD, (view,)).fetchone()
            cached, position = self._cached(db, view, version), position or 0
            if question.as_of is not None:
                check_history(db, view, question.as_of, position)
                if question.as_of == position:
                    question = replace(question, as_of=None)
            found: list[Any] = []
            for part in parts_of(question):
                statement = compile_question(cached.shape, question, db.dialect, cached.search, part)
                found += db.execute(statement.text, statement.values).fetchall()
                if len(found) > question.limit:
                    break
        width = len(cached.shape.columns)
        rows = [decode_row(cached.shape, row[:width]) for row in found[: question.limit]]
        cursor = None
        if len(found) > question.limit and (question.search is None or question.order):
            cursor = encode_cursor(Cursor(statement.order, tuple(found[question.limit - 1][width:])))
        at = position if question.as_of is None else question.as_of
        return Answer(rows=rows, position=at, token=token_of(identity, at), next=cursor)

    def get(self, view: str, key: Sequence[Any]) -> dict[str, Any] | None:
        """Return the row of a key; None if there is none.

        One statement reads the row and the version of the shapes; if the cached version matches, it is the answer.
        """
        cached = self._cache.get(view)
        if cached is not None and not cached.decimals:
            # The view may have changed since; any other error is raised again below.
            with suppress(Exception):
                return _get(self._database.reading(), cached, key)
        with self._database.snapshot() as db:
            _, version, _ = db.execute(_HEAD, (view,)).fetchone()
            return _get(db, self._cached(db, view, version), key)

    def _cached(self, db: Db, view: str, version: int) -> _CachedView:
        found = self._cache.get(view)
        if found is None or found.version != version:
            shape, kept = tables.shape_of(db, view), access.kept_access(db, view)
            columns = ", ".join(f"v.{quote(column.name)}" for column in shape.columns)
            found = _CachedView(
                version=version,
                shape=shape,
                search=None if kept is None else kept.search_tag,
                by_key=f"select s.version, v._key, {columns} from headwater_store s "
                f"left join {table_of(view)} v on v._key = ?",
                decimals=any(shape.column(name).type.startswith("decimal") for name in shape.key),
            )
            self._cache[view] = found
        return found


def _get(db: Db, cached: _CachedView, key: Sequence[Any]) -> dict[str, Any] | None:
    shape = cached.shape
    if len(key) != len(shape.key):
        raise _wrong_key_length(shape, key)
    values = [literal(name, shape.column(name).type, value) for name, value in zip(shape.key, key, strict=True)]
    if cached.decimals:  # They are stored as text, with as many digits as the type has.
        statement = compile_question(shape, by_key(shape, key), db.dialect)
        found = db.execute(statement.text, statement.values).fetchone()
        return None if found is None else decode_row(shape, found[: len(shape.columns)])
    version, present, *row = db.execute(cached.by_key, (json.dumps(values, ensure_ascii=False),)).fetchone()
    if version != cached.version:
        raise _StaleError
    return None if present is None else decode_row(shape, row)


def _wrong_key_length(shape: ViewShape, key: Sequence[Any]) -> InvalidError:
    return InvalidError(
        f"cannot look up {list(key)!r} in view {shape.name!r}: its key has {len(shape.key)} columns "
        f"({', '.join(shape.key)})"
    )


def by_key(
    shape: ViewShape,
    key: Sequence[Any],
    *,
    order_by: str | None = None,
    descending: bool = False,
    limit: int = 1000,
) -> Question:
    """Return the question for the rows whose key starts with the given values."""
    if len(key) > len(shape.key):
        raise _wrong_key_length(shape, key)
    conditions = (Condition(name, Operator.EQUAL, value) for name, value in zip(shape.key, key, strict=False))
    order = [Order(order_by, descending)] if order_by is not None else []
    if order_by is None and descending:
        order = [Order(name, True) for name in shape.key]
    return Question(where=tuple(conditions), order=tuple(order), limit=limit)


def check_history(db: Db, view: str, as_of: int, position: int) -> None:
    """Raise InvalidError if the history does not cover a position, or the view has not reached it yet."""
    if as_of > position:
        raise InvalidError(
            f"cannot read view {view!r} as of position {as_of}: it is at {position}",
            hint="use at_least to wait until the view reaches a position",
        )
    oldest = oldest_position(db, view, position)
    if as_of < oldest:
        raise HistoryGoneError(
            f"cannot read view {view!r} as of position {as_of}: its history goes back to position {oldest}, "
            f"and it is at {position}",
            hint="@app.view(..., history=N) keeps the last N changes from now on",
        )


def oldest_position(db: Db, view: str, position: int) -> int:
    """Return the earliest position that the history covers."""
    # A change without rows marks where the view was rebuilt: the history before it is lost.
    first, rebuilt = db.execute(
        "select min(position), max(case when before is null and after is null then position end) "
        "from headwater_changes where view = ?",
        (view,),
    ).fetchone()
    return position if first is None else max(first - 1, rebuilt or 0)


def has_seen(db: Db, view: str, wanted: AtLeast) -> bool:
    """Return whether a view has reached `wanted`; raises InvalidError if it never will."""
    if wanted.position is not None and tables.position_of(db, view) < wanted.position:
        return False
    if not wanted.offsets:
        return True
    progress = tables.progress_of(db, view)
    read: Mapping[str, Mapping[str, int]] = {} if progress is None else progress.note.get(tables.OFFSETS, {})
    for topic, partition, offset in wanted.offsets:
        if read and topic not in read:
            raise InvalidError(
                f"cannot wait until view {view!r} has seen {topic}:{partition}:{offset}: it reads "
                f"{', '.join(sorted(read))}, and not {topic!r}"
            )
        if read.get(topic, {}).get(str(partition), 0) <= offset:
            return False
    return True
