"""Questions are asked: a view's rows, at the present or an earlier position, at one moment of the database.

What a view looks like is remembered until the store's version says that it has changed; so a row by its key is
one statement.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from headwater.errors import InvalidError
from headwater.sql_names import quote
from headwater.store import access, tables
from headwater.store.columns import literal
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
from headwater.store.shapes import ViewShape
from headwater.store.statements import compile_question, parts_of, table_of


class HistoryGoneError(InvalidError):
    """The rows as of a position cannot be told any more: a subscriber begins again, others ask for later ones."""


_HEAD = (
    "select identity, version, (select max(position) from headwater_changes where view = ?) from headwater_store"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedView:
    """What is remembered of a view, for as long as the store has this version."""

    version: int
    shape: ViewShape
    search: str | None
    by_key: str
    decimals: bool
    """Whether there are any in the key."""


class ShapeCache:
    """What is known of views. Thread-safe: an entry is replaced whole."""

    def __init__(self) -> None:
        self._known: dict[str, CachedView] = {}

    def latest(self, view: str) -> CachedView | None:
        """What was known last, if anything."""
        return self._known.get(view)

    def known(self, db: Db, view: str, version: int) -> CachedView:
        found = self._known.get(view)
        if found is None or found.version != version:
            shape, kept = tables.shape_of(db, view), access.kept_access(db, view)
            columns = ", ".join(f"v.{quote(column.name)}" for column in shape.columns)
            found = CachedView(
                version=version,
                shape=shape,
                search=None if kept is None else kept.search_tag,
                by_key=f"select s.version, v._key, {columns} from headwater_store s "
                f"left join {table_of(view)} v on v._key = ?",
                decimals=any(shape.column(name).type.startswith("decimal") for name in shape.key),
            )
            self._known[view] = found
        return found


def ask(database: Database, shapes: ShapeCache, view: str, question: Question) -> Answer:
    """Answer a question about a view."""
    with database.snapshot() as db:
        identity, version, position = db.execute(_HEAD, (view,)).fetchone()
        known, position = shapes.known(db, view, version), position or 0
        if question.as_of is not None:
            check_history(db, view, question.as_of, position)
            if question.as_of == position:
                question = replace(question, as_of=None)
        found: list[Any] = []
        for part in parts_of(question):
            statement = compile_question(known.shape, question, db.dialect, known.search, part)
            found += db.execute(statement.text, statement.values).fetchall()
            if len(found) > question.limit:
                break
    width = len(known.shape.columns)
    rows = [tables.decode_row(known.shape, row[:width]) for row in found[: question.limit]]
    cursor = None
    if len(found) > question.limit and (question.search is None or question.order):
        cursor = encode_cursor(Cursor(statement.order, tuple(found[question.limit - 1][width:])))
    at = position if question.as_of is None else question.as_of
    return Answer(rows=rows, position=at, token=token_of(identity, at), next=cursor)


def get(database: Database, shapes: ShapeCache, view: str, key: Sequence[Any]) -> dict[str, Any] | None:
    """The row of a key; None if there is none.

    One statement brings the row and the version of the shapes; if that is the one we know, it is the answer.
    """
    known = shapes.latest(view)
    if known is not None and not known.decimals:
        with suppress(Exception):  # The view may have changed under us; if it is anything else, it comes again.
            return _get(database.reading(), known, key)
    with database.snapshot() as db:
        _, version, _ = db.execute(_HEAD, (view,)).fetchone()
        return _get(db, shapes.known(db, view, version), key)


def _get(db: Db, known: CachedView, key: Sequence[Any]) -> dict[str, Any] | None:
    shape = known.shape
    kept = [literal(*column, value) for column, value in zip(_key_columns(shape, key), key, strict=True)]
    if known.decimals:  # Kept as text, with as many digits as the type has.
        statement = compile_question(shape, by_key(shape, key), db.dialect)
        found = db.execute(statement.text, statement.values).fetchone()
        return None if found is None else tables.decode_row(shape, found[: len(shape.columns)])
    version, present, *row = db.execute(known.by_key, (json.dumps(kept, ensure_ascii=False),)).fetchone()
    if version != known.version:
        raise _StaleError
    return None if present is None else tables.decode_row(shape, row)


class _StaleError(Exception):
    """What is known of the view is not what it is now."""


def _key_columns(shape: ViewShape, key: Sequence[Any]) -> list[tuple[str, str]]:
    if len(key) != len(shape.key):
        raise InvalidError(
            f"cannot look up {list(key)!r} in view {shape.name!r}: its key has {len(shape.key)} columns "
            f"({', '.join(shape.key)})"
        )
    return [(name, shape.column(name).type) for name in shape.key]


def by_key(
    shape: ViewShape,
    key: Sequence[Any],
    *,
    order_by: str | None = None,
    descending: bool = False,
    limit: int = 1000,
) -> Question:
    """The question for the rows whose key starts with the given values."""
    if len(key) > len(shape.key):
        raise InvalidError(
            f"cannot look up {list(key)!r} in view {shape.name!r}: its key has {len(shape.key)} columns "
            f"({', '.join(shape.key)})"
        )
    conditions = (Condition(name, Operator.EQUAL, value) for name, value in zip(shape.key, key, strict=False))
    order = [Order(order_by, descending)] if order_by is not None else []
    if order_by is None and descending:
        order = [Order(name, True) for name in shape.key]
    return Question(where=tuple(conditions), order=tuple(order), limit=limit)


def check_history(db: Db, view: str, as_of: int, position: int) -> None:
    """Raise an InvalidError if the rows as of a position cannot be told any more, or not yet."""
    if as_of > position:
        raise InvalidError(
            f"cannot read view {view!r} as of position {as_of}: it is at {position}",
            hint="at_least waits until it is there",
        )
    oldest = oldest_position(db, view, position)
    if as_of < oldest:
        raise HistoryGoneError(
            f"cannot read view {view!r} as of position {as_of}: its history goes back to position {oldest}, "
            f"and it is at {position}",
            hint="@app.view(..., history=N) keeps the last N changes from then on",
        )


def oldest_position(db: Db, view: str, position: int) -> int:
    """The earliest position as of which the rows are known."""
    # A change of nothing is where the view was made anew: what was before it is gone.
    first, anew = db.execute(
        "select min(position), max(case when before is null and after is null then position end) "
        "from headwater_changes where view = ?",
        (view,),
    ).fetchone()
    return position if first is None else max(first - 1, anew or 0)


def has_seen(db: Db, view: str, wanted: AtLeast) -> bool:
    """Whether a view is as fresh as wanted; an InvalidError if it never will be."""
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
