"""Views in a schema of a PostgreSQL database, with the same behaviour as in an SQLite file.

    postgresql://shop@db/shop                  in the schema `headwater`
    postgresql://shop@db/shop?schema=orders    in another one, for a second app in the same database

Values are stored as in SQLite (`columns`) and text is compared byte by byte (collation "C"), so comparisons and
orders are the same. The search index is a table with a tsvector:

    search_<tag>    _key, words

A writer locks the one row of `headwater_store` until the commit, so there is one writer at a time across machines.
An app raises the epoch in that row when it starts, which fences earlier writers (`claim`). Thread-safe: each
transaction has its own connection.
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
"""Number of idle connections to keep; readers are short-lived threads."""

_INTEGERS = ("tinyint", "smallint", "int", "bigint", "boolean")
_MARKS = re.compile(r'"(?:[^"]|"")*"|\'(?:[^\']|\'\')*\'|[?%]')


class PostgresDialect:
    """PostgreSQL requires types, and the order of nulls and the collation have to be stated."""

    table_options = ""
    key_type = 'text collate "C"'

    def column_type(self, kind: str) -> str:
        if kind in _INTEGERS:
            return "bigint"
        return "double precision" if kind in ("float", "double") else self.key_type

    def real(self, expression: str) -> str:
        return f"cast({expression} as double precision)"

    def field(self, expression: str, path: Sequence[str], kind: str) -> str:
        keys = ", ".join("'" + name.replace("'", "''") + "'" for name in path)
        return self._typed(f"(cast({expression} as json) #>> array[{keys}])", kind, boolean="boolean")

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
        # The tsquery is joined as a relation, because the rank needs it a second time.
        return SearchMatch(
            join=f"join {quote('search_' + tag)} s on s._key = v._key "
            "cross join lateral (select cast(? as tsquery) as query) q",
            condition="s.words @@ q.query",
            relevance="ts_rank(s.words, q.query)",
            parameter=query.tsquery,
        )

    def is_failure(self, error: Exception) -> bool:
        return False  # Connections raise the driver's errors as Headwater's.


class PostgresConnection:
    """A connection that runs the store's statements."""

    dialect = PostgresDialect()

    def __init__(self, connection: "psycopg.Connection[Any]", location: str) -> None:
        self.connection = connection
        self.location = location

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        with explained(f"use the store at {self.location}"):
            return self.connection.execute(to_driver(statement), parameters)

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> Any:
        with explained(f"write to the store at {self.location}"), self.connection.cursor() as cursor:
            cursor.executemany(to_driver(statement), parameters)


class _SingleStatements:
    """Runs single statements, each on any idle connection."""

    dialect = PostgresDialect()

    def __init__(self, database: "PostgresDatabase") -> None:
        self._database = database
        self.location = database.location

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        with self._database.connection() as db:
            return db.execute(statement, parameters)  # The cursor has all rows already.

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> Any:
        with self._database.connection() as db:
            return db.executemany(statement, parameters)


class PostgresDatabase:
    """A schema of the database at `address`."""

    def __init__(self, address: str, *, read_only: bool = False) -> None:
        self._address, self.schema = split_schema(address)
        self.location = f"{hide_password(self._address)}, schema {self.schema!r}"
        self._read_only = read_only
        self._epoch: int | None = None
        self._store_exists = False
        self._idle: list[PostgresConnection] = []
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        if not read_only:
            self._create_schema()

    def has_views(self) -> bool:
        found = self.reading().execute(
            "select 1 from information_schema.tables where table_schema = ? and table_name = 'headwater_store'",
            (self.schema,),
        )
        return found.fetchone() is not None

    def reading(self) -> Db:
        return _SingleStatements(self)

    @contextmanager
    def snapshot(self) -> Iterator[PostgresConnection]:
        with self.connection() as db, explained(f"read the store at {self.location}"), db.connection.transaction():
            db.execute("set transaction isolation level repeatable read, read only")
            yield db

    @contextmanager
    def writing(self) -> Iterator[PostgresConnection]:
        attempt = f"write to the store at {self.location}"
        with self._write_lock, self.connection() as db, explained(attempt), db.connection.transaction():
            if self._has_store(db):
                (epoch,) = db.execute("select epoch from headwater_store for update").fetchone() or (None,)
                if self._epoch is not None and epoch != self._epoch:
                    raise ConflictError(
                        f"cannot {attempt}: another pipeline has claimed it since",
                        hint="a store has one writer: stop one of them, or use another schema (`?schema=NAME`)",
                    )
            else:
                # Without a lock, two apps that create the tables at once would fail on a name in the catalog.
                db.execute("select pg_advisory_xact_lock(hashtext(?))", (self.schema,))
            yield db

    def claim(self, app: str) -> None:
        """Fence every other writer; raises ConflictError if the views belong to another app."""
        with self.writing() as db:
            (owner,) = db.execute("select app from headwater_store").fetchone()
            if owner not in (None, app):
                raise ConflictError(
                    f"cannot store the views of app {app!r} at {self.location}: it has the views of app {owner!r}",
                    hint=f"use another schema: add ?schema={app} to the address",
                )
            (epoch,) = db.execute(
                "update headwater_store set app = ?, epoch = epoch + 1 returning epoch", (app,)
            ).fetchone()
        self._epoch = epoch

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for db in idle:
            db.connection.close()

    @contextmanager
    def connection(self) -> Iterator[PostgresConnection]:
        """Lend a connection to the caller; a broken one is not reused."""
        with self._lock:
            db = self._idle.pop() if self._idle else None
        db = db or self._connect()
        try:
            yield db
        finally:
            if db.connection.closed:
                self.close()  # The idle ones go to the same server, and are most likely broken too.
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
            """Loads NaN as the text `NaN`, as SQLite stores it."""

            def load(self, data: Any) -> Any:
                value = super().load(data)
                return "NaN" if math.isnan(value) else value

        connection = connect(self._address, for_whom="views")
        connection.adapters.register_loader("float8", NumberLoader)
        db = PostgresConnection(connection, self.location)
        try:
            db.execute("select set_config('search_path', ?, false)", (quote(self.schema),))
        except BaseException:
            connection.close()
            raise
        return db

    def _create_schema(self) -> None:
        with self.connection() as db, db.connection.transaction():
            db.execute("select pg_advisory_xact_lock(hashtext(?))", (self.schema,))
            known = db.execute("select 1 from pg_namespace where nspname = ?", (self.schema,)).fetchone()
            if known is None:
                db.execute(f"create schema {quote(self.schema)}")

    def _has_store(self, db: PostgresConnection) -> bool:
        if not self._store_exists:
            name = f"{quote(self.schema)}.headwater_store"
            self._store_exists = db.execute("select to_regclass(?)", (name,)).fetchone()[0] is not None
        return self._store_exists


@lru_cache(maxsize=1024)
def to_driver(statement: str) -> str:
    """Convert a statement to the parameter style of the driver.

    >>> to_driver('select "what?" from t where a = ? and b % 2 = 0')
    'select "what?" from t where a = %s and b %% 2 = 0'
    """
    return _MARKS.sub(lambda found: {"?": "%s", "%": "%%"}.get(found[0], found[0].replace("%", "%%")), statement)


def split_schema(address: str) -> tuple[str, str]:
    """Split an address into the driver's address and the schema named in it."""
    parts = urlsplit(address)
    given = parse_qsl(parts.query, keep_blank_values=True)
    schema = dict(given).get("schema", SCHEMA)
    if not schema or len(schema.encode()) > 63:
        raise InvalidError(f"cannot store views in schema {schema!r}: a schema name has 1 to 63 bytes")
    query = urlencode([(name, value) for name, value in given if name != "schema"])
    return urlunsplit(parts._replace(query=query)), schema


def hide_password(address: str) -> str:
    """Return the address without its password, for messages and files."""
    parts = urlsplit(address)
    user, at, host = parts.netloc.rpartition("@")
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name != "password"])
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host, query=query))
