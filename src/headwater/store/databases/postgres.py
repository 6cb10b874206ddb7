"""Views in a schema of PostgreSQL, with the same behaviour as in a file.

    postgresql://shop@db/shop                  in the schema `headwater`
    postgresql://shop@db/shop?schema=orders    in another one, for a second app in the same database

Values are kept as in SQLite (`columns`), text compared byte by byte (collation "C"); so rows compare the same and
come in the same order. Words are beside the rows, as a tsvector with an index:

    search_<tag>    _key, words

Who writes holds the one row of `headwater_store` until the commit, so there is one writer at a time, on whatever
machine. An app that runs raises the epoch in that row first; another that thinks it is the one finds that it is
not (`take_over`). Thread-safe: each transaction has a connection for itself.
"""

import math
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from headwater.errors import ConflictError, InvalidError
from headwater.postgresql import connect, explained
from headwater.sql_names import quote
from headwater.store.databases.engine import Db, SearchMatch, SearchQuery

if TYPE_CHECKING:
    import psycopg

SCHEMA = "headwater"
IDLE_MAX = 8
"""Connections that are kept for the next one; an app's readers are threads that come and go."""

_INTEGERS = ("tinyint", "smallint", "int", "bigint", "boolean")
_MARKS = re.compile(r'"(?:[^"]|"")*"|\'(?:[^\']|\'\')*\'|[?%]')


class PostgresDialect:
    """PostgreSQL wants types, and says itself in which order nulls and texts come."""

    table_options = ""
    key_type = 'text collate "C"'

    def column_type(self, kind: str) -> str:
        if kind in _INTEGERS:
            return "bigint"
        return "double precision" if kind in ("float", "double") else self.key_type

    def real(self, expression: str) -> str:
        return f"cast({expression} as double precision)"

    def field(self, expression: str, path: Sequence[str], kind: str) -> str:
        way = ", ".join("'" + name.replace("'", "''") + "'" for name in path)
        return self._typed(f"(cast({expression} as json) #>> array[{way}])", kind, boolean="boolean")

    def element(self, expression: str, number: int, kind: str) -> str:
        return self._typed(f"(cast({expression} as json) ->> {number})", kind, boolean="bigint")

    def _typed(self, text: str, kind: str, *, boolean: str) -> str:
        if kind == "boolean":
            return f"cast(cast({text} as {boolean}) as int)"
        if kind in _INTEGERS:
            return f"cast({text} as bigint)"
        return self.real(text) if kind in ("float", "double") else f'{text} collate "C"'

    def index_part(self, expression: str) -> str:
        return f"({expression}) nulls first"

    def create_search(self, db: Db, tag: str) -> None:
        name = quote("search_" + tag)
        db.execute(f"create table {name} (_key {self.key_type} primary key, words tsvector not null)")
        db.execute(f"create index on {name} using gin (words)")

    def drop_search(self, db: Db, tag: str) -> None:
        db.execute(f"drop table {quote('search_' + tag)}")

    def empty_search(self, db: Db, tag: str) -> None:
        db.execute(f"delete from {quote('search_' + tag)}")

    def put_search(self, db: Db, tag: str, words: Sequence[tuple[str, Sequence[str]]]) -> None:
        db.executemany(
            f"insert into {quote('search_' + tag)} values (?, cast(? as tsvector)) "
            "on conflict (_key) do update set words = excluded.words",
            ((key, " ".join(f"'{word}':{n}" for n, word in enumerate(found, 1))) for key, found in words),
        )

    def remove_search(self, db: Db, tag: str, keys: Sequence[str]) -> None:
        db.executemany(f"delete from {quote('search_' + tag)} where _key = ?", ((key,) for key in keys))

    def match(self, tag: str, query: SearchQuery) -> SearchMatch:
        # The query is found again by its place in the join, since the rank needs it a second time.
        return SearchMatch(
            join=f"join {quote('search_' + tag)} s on s._key = v._key "
            "cross join lateral (select cast(? as tsquery) as query) q",
            condition="s.words @@ q.query",
            relevance="ts_rank(s.words, q.query)",
            parameter=query.tsquery,
        )


class PostgresConnection:
    """A connection that takes statements as the store writes them."""

    dialect = PostgresDialect()

    def __init__(self, connection: "psycopg.Connection[Any]", place: str) -> None:
        self.connection = connection
        self.place = place

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        with explained(f"use the store at {self.place}"):
            return self.connection.execute(marked(statement), parameters)

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> Any:
        with explained(f"write to the store at {self.place}"), self.connection.cursor() as cursor:
            cursor.executemany(marked(statement), parameters)


class _Single:
    """Takes single statements, each with whatever connection is free."""

    dialect = PostgresDialect()

    def __init__(self, database: "PostgresDatabase") -> None:
        self._database = database
        self.place = database.place

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        with self._database.connection() as db:
            return db.execute(statement, parameters)  # All rows have come with the answer.

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> Any:
        with self._database.connection() as db:
            return db.executemany(statement, parameters)


class PostgresDatabase:
    """A schema of the database at `address`."""

    def __init__(self, address: str, *, read_only: bool = False) -> None:
        self._address, self.schema = split_schema(address)
        self.place = f"{hide_password(self._address)}, schema {self.schema!r}"
        self._read_only = read_only
        self._epoch: int | None = None
        self._idle: list[PostgresConnection] = []
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        if not read_only:
            self._make_schema()

    def has_views(self) -> bool:
        found = self.reading().execute(
            "select 1 from information_schema.tables where table_schema = ? and table_name = 'headwater_store'",
            (self.schema,),
        )
        return found.fetchone() is not None

    def reading(self) -> Db:
        return _Single(self)

    @contextmanager
    def snapshot(self) -> Iterator[PostgresConnection]:
        with self.connection() as db, explained(f"read the store at {self.place}"), db.connection.transaction():
            db.execute("set transaction isolation level repeatable read, read only")
            yield db

    @contextmanager
    def writing(self) -> Iterator[PostgresConnection]:
        attempt = f"write to the store at {self.place}"
        with self._write_lock, self.connection() as db, explained(attempt), db.connection.transaction():
            if self._is_made(db):
                (epoch,) = db.execute("select epoch from headwater_store for update").fetchone() or (None,)
                if self._epoch is not None and epoch != self._epoch:
                    raise ConflictError(
                        f"cannot {attempt}: another pipeline has taken it over",
                        hint="one app writes to a store; give this one another schema (`?schema=NAME`) or stop it",
                    )
            else:
                # Two that make the same tables at the same time would fail on names in the catalog.
                db.execute("select pg_advisory_xact_lock(hashtext(?))", (self.schema,))
            yield db

    def take_over(self, app: str) -> None:
        """Make every other one that writes here a stranger; ConflictError if the views are another app's."""
        with self.writing() as db:
            (owner,) = db.execute("select app from headwater_store").fetchone()
            if owner not in (None, app):
                raise ConflictError(
                    f"cannot keep the views of app {app!r} at {self.place}: those of app {owner!r} are there",
                    hint=f"name another schema: the address with ?schema={app}",
                )
            (epoch,) = db.execute(
                "update headwater_store set app = ?, epoch = epoch + 1 returning epoch", (app,)
            ).fetchone()
        self._epoch = epoch

    def close(self) -> None:
        """Close the connections that nobody uses at this moment."""
        with self._lock:
            idle, self._idle = self._idle, []
        for db in idle:
            db.connection.close()

    @contextmanager
    def connection(self) -> Iterator[PostgresConnection]:
        """A connection for the caller alone; one that broke is not given to anybody again."""
        with self._lock:
            db = self._idle.pop() if self._idle else None
        db = db or self._connect()
        try:
            yield db
        finally:
            if db.connection.closed:
                self.close()  # The others are to the same server, and most likely broke with it.
            else:
                with self._lock:
                    keep = len(self._idle) < IDLE_MAX
                    if keep:
                        self._idle.append(db)
                if not keep:
                    db.connection.close()

    def _connect(self) -> PostgresConnection:
        from psycopg.types.numeric import FloatLoader

        class NumberLoader(FloatLoader):
            """Not a number is kept as the text, as in SQLite."""

            def load(self, data: Any) -> Any:
                value = super().load(data)
                return "NaN" if math.isnan(value) else value

        connection = connect(self._address, for_whom="views")
        connection.adapters.register_loader("float8", NumberLoader)
        db = PostgresConnection(connection, self.place)
        try:
            db.execute("select set_config('search_path', ?, false)", (quote(self.schema),))
        except BaseException:
            connection.close()
            raise
        return db

    def _make_schema(self) -> None:
        with self.connection() as db, db.connection.transaction():
            db.execute("select pg_advisory_xact_lock(hashtext(?))", (self.schema,))
            known = db.execute("select 1 from pg_namespace where nspname = ?", (self.schema,)).fetchone()
            if known is None:
                db.execute(f"create schema {quote(self.schema)}")

    def _is_made(self, db: PostgresConnection) -> bool:
        return (
            db.execute("select to_regclass(?)", (f"{quote(self.schema)}.headwater_store",)).fetchone()[0]
            is not None
        )


@lru_cache(maxsize=1024)
def marked(statement: str) -> str:
    """A statement with the marks that the driver takes for values.

    >>> marked('select "what?" from t where a = ? and b % 2 = 0')
    'select "what?" from t where a = %s and b %% 2 = 0'
    """
    return _MARKS.sub(lambda found: {"?": "%s", "%": "%%"}.get(found[0], found[0].replace("%", "%%")), statement)


def split_schema(address: str) -> tuple[str, str]:
    """An address as the driver takes it, and the schema that is named in it."""
    parts = urlsplit(address)
    given = parse_qsl(parts.query, keep_blank_values=True)
    schema = dict(given).get("schema", SCHEMA)
    if not schema or len(schema.encode()) > 63:
        raise InvalidError(f"cannot keep views in schema {schema!r}: that is no name for one")
    query = urlencode([(name, value) for name, value in given if name != "schema"])
    return urlunsplit(parts._replace(query=query)), schema


def hide_password(address: str) -> str:
    """An address that may be shown and kept."""
    parts = urlsplit(address)
    user, at, host = parts.netloc.rpartition("@")
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name != "password"])
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host, query=query))
