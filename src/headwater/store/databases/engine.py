"""What the store asks of a database, so that the same statements run on SQLite and on PostgreSQL.

Statements are written with `?` for values and with what both have: `on conflict`, `nulls first`, text that is
compared byte by byte. What they do differently is a `Dialect`: types, JSON, and words that are searched.

A place is a path, of an SQLite file, or an address that begins with `postgresql://`.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

ADDRESSES = ("postgresql://", "postgres://")


@dataclass(frozen=True, slots=True)
class SearchMatch:
    """How rows are found by words: what to join to the rows `v`, the condition, and how well a row fits."""

    join: str
    condition: str
    relevance: str
    """Greatest first."""
    parameter: str


class Dialect(Protocol):
    """Where the databases differ."""

    @property
    def table_options(self) -> str:
        """Behind `create table (...)`."""

    @property
    def key_type(self) -> str:
        """The type of text that is compared byte by byte."""

    def column_type(self, kind: str) -> str:
        """The type of a column for what Spark calls `kind`; see `columns` for what is kept."""

    def real(self, expression: str) -> str:
        """A number out of text."""

    def field(self, expression: str, path: Sequence[str], kind: str) -> str:
        """A field of a nested value that is kept as JSON."""

    def element(self, expression: str, number: int, kind: str) -> str:
        """A value out of a row that is kept as a JSON list."""

    def index_part(self, expression: str) -> str:
        """An expression in `create index`, in the order in which rows are read."""

    def create_search(self, db: "Db", tag: str) -> None: ...

    def drop_search(self, db: "Db", tag: str) -> None: ...

    def empty_search(self, db: "Db", tag: str) -> None: ...

    def put_search(self, db: "Db", tag: str, words: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Note the words of rows, by key, in the place of those that were noted."""

    def remove_search(self, db: "Db", tag: str, keys: Sequence[str]) -> None: ...

    def match(self, tag: str, query: "SearchQuery") -> SearchMatch: ...


class SearchQuery(Protocol):
    """What is searched for, in both languages."""

    @property
    def fts5(self) -> str: ...

    @property
    def tsquery(self) -> str: ...


class Db(Protocol):
    """A connection, inside a transaction or not."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def place(self) -> str:
        """What messages call it."""

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Any:
        """Rows as tuples: `fetchone`, `fetchall`, or iterate."""

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]], /) -> Any: ...


class Database(Protocol):
    """Where views are kept. Thread-safe; one writer at a time."""

    def has_views(self) -> bool:
        """Whether the tables are there."""

    def reading(self) -> Db:
        """To read one statement at a time."""

    def snapshot(self) -> AbstractContextManager[Db]:
        """To read with several statements what was there at one moment."""

    def writing(self) -> AbstractContextManager[Db]:
        """A transaction that is committed at the end; other writers wait."""

    def take_over(self, app: str) -> None:
        """Make every other one that writes for an app a stranger, where there can be such."""

    def close(self) -> None: ...


def is_address(place: Path | str) -> bool:
    """Whether a place is a server's."""
    return isinstance(place, str) and place.startswith(ADDRESSES)


def open_database(place: Path | str, *, read_only: bool = False) -> Database:
    """The database at a place."""
    if is_address(place):
        from headwater.store.databases.postgres import PostgresDatabase

        return PostgresDatabase(str(place), read_only=read_only)
    from headwater.store.databases.sqlite import SqliteDatabase

    return SqliteDatabase(Path(place), read_only=read_only)
