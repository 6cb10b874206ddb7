"""Generations: the checkpoint from which a query continues, and how a rebuilt view replaces the old one.

A query's checkpoint is never moved or emptied. To start over is to start a new generation, with a checkpoint
folder of its own. The number of the current generation is stored with the rows and changed in the same
transaction, so after a crash either the old generation or the new one is complete.

    headwater_generations   query -> number, continues, starting     the current generation; 0 without an entry
    headwater_rebuilds      view -> number                           the generation that is being rebuilt

During a rebuild, the rows of the new generation are in a view of their own, `name@number`, which is never listed.
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
"""Separates a name from the number of a generation; names of queries must not contain it."""

Starting = Mapping[str, Mapping[str, int]]
"""Offsets by topic and partition, as in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One checkpoint of a query.

    A generation that `continues` an earlier run keeps the rows of that run and starts at the offsets `starting`.
    Any other starts with the first record, and replaces the rows at its destination.
    """

    query: str
    number: int = 0
    continues: str | None = None
    starting: Starting | None = None

    @property
    def name(self) -> str:
        """The name of its checkpoint folder, and of its view until the rebuild is finished."""
        return f"{self.query}{MARK}{self.number}" if self.number else self.query


class Generations:
    """The generations of an app's queries, in the store of its views."""

    def __init__(self, store: "ViewStore") -> None:
        self._store = store

    def current(self, query: str) -> Generation:
        """Return the current generation."""
        return _current(self._store.reading(), query)

    def restart(self, query: str, *, continues: str | None = None, starting: Starting | None = None) -> Generation:
        """Replace the current generation by a new one.

        Unless the new one continues a run, the rows and the shape of the view are dropped.
        """
        with self._store.writing() as db:
            number = _next_number(db, query)
            generation = Generation(query=query, number=number, continues=continues, starting=starting)
            if continues is None:
                tables.drop(db, query)
            _drop_rebuild(db, query)
            _set_current(db, generation)
            return generation

    def request_rebuild(self, view: str) -> Generation:
        """Request a rebuild of a view alongside the current one, and return its generation. Idempotent."""
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
        """Cancel the rebuild of a view, and drop the rows it has so far."""
        with self._store.writing() as db:
            _drop_rebuild(db, view)

    def rebuilds(self) -> list[Generation]:
        """Return the generations that are requested or being rebuilt."""
        found = self._store.reading().execute("select view, number from headwater_rebuilds order by view")
        return [Generation(query=view, number=number) for view, number in found]

    def swap(self, generation: Generation) -> None:
        """Replace the rows, the progress and the late rows of a view by those of its rebuild.

        Subscribers are reset, so that they read the view again.
        """
        view, shadow = generation.query, generation.name
        with self._store.writing() as db:
            tables.drop(db, view)
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
        tables.drop(db, shadow)
        db.execute("delete from headwater_changes where view = ?", (shadow,))
    db.execute("delete from headwater_rebuilds where view = ?", (view,))


def _next_number(db: Db, query: str) -> int:
    requested = db.execute("select number from headwater_rebuilds where view = ?", (query,)).fetchone()
    return max(_current(db, query).number, requested[0] if requested else 0) + 1
