"""The interface of a database, so that the same statements run on SQLite and on PostgreSQL.

Statements use `?` for parameters and only features of both databases: `on conflict`, `nulls first`, text that is
compared byte by byte. A `Dialect` has the differences: types, JSON, and text search.

A location is the path of an SQLite file, or an address that begins with `postgresql://`.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

ADDRESSES = ("postgresql://", "postgres://")


@dataclass(frozen=True, slots=True)
class SearchMatch:
    """The SQL of a text search: the join to the rows `v`, the condition, and the relevance of a row."""

    join: str
    condition: str
    relevance: str
    """Higher is better."""
    parameter: str


class Dialect(Protocol):
    """The differences between the databases."""

    @property
    def table_options(self) -> str:
        """The options after `create table (...)`."""

    @property
    def key_type(self) -> str:
        """The type for text that is compared byte by byte."""

    def column_type(self, kind: str) -> str:
        """Return the column type for a Spark type; `columns` describes the stored values."""

    def real(self, expression: str) -> str:
        """Convert text to a number."""

    def field(self, expression: str, path: Sequence[str], kind: str) -> str:
        """Extract a field of a nested value that is stored as JSON."""

    def element(self, expression: str, number: int, kind: str) -> str:
        """Extract a value of a row that is stored as a JSON list."""

    def index_part(self, expression: str) -> str:
        """Return an expression for `create index`, in the order in which rows are read."""

    def create_search(self, db: "Db", tag: str) -> None: ...

    def drop_search(self, db: "Db", tag: str) -> None: ...

    def empty_search(self, db: "Db", tag: str) -> None: ...

    def put_search(self, db: "Db", tag: str, words: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Index the words of rows by key, replacing earlier ones."""

    def remove_search(self, db: "Db", tag: str, keys: Sequence[str]) -> None: ...

    def match(self, tag: str, query: "SearchQuery") -> SearchMatch: ...

    def is_failure(self, error: Exception) -> bool:
        """Return whether an error of the driver is a failure of the database, and not of a statement's values."""


class SearchQuery(Protocol):
    """A text search in the query languages of both databases."""

    @property
    def fts5(self) -> str: ...

    @property
    def tsquery(self) -> str: ...


class Db(Protocol):
    """A connection, in a transaction or not."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def location(self) -> str:
        """The database, for messages."""

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Any:
        """Return a cursor over tuples: `fetchone`, `fetchall`, or iterate."""

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]], /) -> Any: ...


class Database(Protocol):
    """A database of views. Thread-safe; one writer at a time."""

    def has_views(self) -> bool:
        """Return whether the tables exist."""

    def reading(self) -> Db:
        """Return a connection for single reading statements."""

    def snapshot(self) -> AbstractContextManager[Db]:
        """Run several reading statements on one snapshot."""

    def writing(self) -> AbstractContextManager[Db]:
        """Run a transaction that is committed at the end; other writers wait."""

    def claim(self, app: str) -> None:
        """Fence every other writer; raises ConflictError if the views belong to another app."""

    def close(self) -> None: ...


def is_address(location: Path | str) -> bool:
    """Return whether a location is the address of a server."""
    return isinstance(location, str) and location.startswith(ADDRESSES)


def open_database(location: Path | str, *, read_only: bool = False) -> Database:
    """Open the database at a location."""
    if is_address(location):
        from headwater.store.databases.postgres import PostgresDatabase

        return PostgresDatabase(str(location), read_only=read_only)
    from headwater.store.databases.sqlite import SqliteDatabase

    return SqliteDatabase(Path(location), read_only=read_only)
