"""Generations: from which checkpoint a query goes on, and how a rebuilt view takes the old one's place.

A query's checkpoint is never moved or emptied. To begin anew is to begin a new generation, in a folder of its own;
which one counts is noted beside the rows and changed in the same transaction as they, so a crash finds the old
generation whole or the new one, never something between.

    headwater_generations   query -> number, continues, starting     the one that counts; 0 where nothing is noted
    headwater_rebuilds      view -> number                           the one that is being computed beside it

While it is being computed, a generation's rows are in a view of their own, `name@number`, that no list shows.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.store import late, tables
from headwater.store.databases.engine import Db

if TYPE_CHECKING:
    from headwater.store.views import ViewStore

SCHEMA = (
    """create table if not exists headwater_generations (
    query text primary key, number integer not null, continues text, starting text)""",
    """create table if not exists headwater_rebuilds (
    view text primary key, number integer not null)""",
)

MARK = "@"
"""Between a name and a generation's number; no name of a user's has it."""

Starting = Mapping[str, Mapping[str, int]]
"""Topic, partition, offset, as JSON has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One checkpoint of a query.

    One that `continues` a run before it keeps what that run has written and begins at `starting`; any other begins
    with the first record, and empties the place it writes to.
    """

    query: str
    number: int = 0
    continues: str | None = None
    starting: Starting | None = None

    @property
    def name(self) -> str:
        """Of its folder; and of its rows, until they take the place of those before."""
        return f"{self.query}{MARK}{self.number}" if self.number else self.query


class Generations:
    """The generations of an app's queries, in the file of its views."""

    def __init__(self, store: "ViewStore") -> None:
        self._store = store

    def current(self, query: str) -> Generation:
        """The generation that counts."""
        return _current(self._store.reading(), query)

    def restart(self, query: str, *, continues: str | None = None, starting: Starting | None = None) -> Generation:
        """Begin a new generation in the place of the one there is.

        Unless it continues a run, a view's rows are forgotten with the old one, and its shape.
        """
        with self._store.writing() as db:
            number = _next_number(db, query)
            generation = Generation(query=query, number=number, continues=continues, starting=starting)
            if continues is None:
                tables.forget(db, query)
            _drop_rebuild(db, query)
            _set_current(db, generation)
            return generation

    def ask_rebuild(self, view: str) -> Generation:
        """Have the view computed anew beside the one there is; the same answer if that is asked for already."""
        with self._store.writing() as db:
            found = db.execute("select number from headwater_rebuilds where view = ?", (view,)).fetchone()
            number = found[0] if found else _next_number(db, view)
            db.execute(
                "insert into headwater_rebuilds values (?, ?) on conflict (view) do update set "
                "number = excluded.number",
                (view, number),
            )
            return Generation(query=view, number=number)

    def drop_rebuild(self, view: str) -> None:
        """Forget that the view is to be computed anew, and what there is of it."""
        with self._store.writing() as db:
            _drop_rebuild(db, view)

    def rebuilds(self) -> list[Generation]:
        """What is to be computed anew, or being so."""
        found = self._store.reading().execute("select view, number from headwater_rebuilds order by view")
        return [Generation(query=view, number=number) for view, number in found]

    def swap(self, generation: Generation) -> None:
        """Put the rows, the progress and the late rows of a rebuilt view in the place of the view's.

        Whoever follows the view is told to read it again.
        """
        view, shadow = generation.query, generation.name
        with self._store.writing() as db:
            tables.forget(db, view)
            tables.rename(db, shadow, view)
            db.execute("delete from headwater_changes where view = ?", (shadow,))
            db.execute("update headwater_progress set query = ? where query = ?", (view, shadow))
            late.rename_late(db, shadow, view)
            _set_current(db, generation)
            db.execute("delete from headwater_rebuilds where view = ?", (view,))


def _current(db: Db, query: str) -> Generation:
    found = db.execute(
        "select number, continues, starting from headwater_generations where query = ?", (query,)
    ).fetchone()
    if found is None:
        return Generation(query=query)
    starting = json.loads(found[2]) if found[2] else None
    return Generation(query=query, number=found[0], continues=found[1], starting=starting)


def _set_current(db: Db, generation: Generation) -> None:
    db.execute(
        "insert into headwater_generations values (?, ?, ?, ?) on conflict (query) do update set "
        "number = excluded.number, continues = excluded.continues, starting = excluded.starting",
        (
            generation.query,
            generation.number,
            generation.continues,
            None if generation.starting is None else json.dumps(generation.starting),
        ),
    )


def _drop_rebuild(db: Db, view: str) -> None:
    found = db.execute("select number from headwater_rebuilds where view = ?", (view,)).fetchone()
    if found:
        shadow = Generation(query=view, number=found[0]).name
        tables.forget(db, shadow)
        db.execute("delete from headwater_changes where view = ?", (shadow,))
    db.execute("delete from headwater_rebuilds where view = ?", (view,))


def _next_number(db: Db, query: str) -> int:
    asked = db.execute("select number from headwater_rebuilds where view = ?", (query,)).fetchone()
    return max(_current(db, query).number, asked[0] if asked else 0) + 1
