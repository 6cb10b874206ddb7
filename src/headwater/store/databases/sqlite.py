"""Views in one SQLite file.

Thread-safe: one writer at a time (a lock here, SQLite's own between processes); each reading thread has a
connection of its own, and WAL lets it read while a batch is written.

The search index is an FTS5 table and, because FTS5 identifies rows by number only, a table of the rows' numbers:

    search_<tag>         words       the FTS5 table
    search_<tag>_rows    number, _key
"""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headwater.errors import InvalidError
from headwater.sql_names import quote
from headwater.store.databases.engine import Db, SearchMatch, SearchQuery
from headwater.store.databases.sqlite_errors import is_failure, transient_errors

BUSY_TIMEOUT_S = 30.0
STATEMENTS_KEPT = 256
"""Prepared statements to cache per connection; without them, reads cost a third more."""


class SqliteDialect:
    """SQLite stores values of any type in any column."""

    table_options = "without rowid"
    key_type = "text"

    def column_type(self, kind: str) -> str:
        return ""

    def real(self, expression: str) -> str:
        return f"cast({expression} as real)"

    def field(self, expression: str, path: Sequence[str], kind: str) -> str:
        keys = "".join(f'."{name}"' for name in path).replace("'", "''")
        return f"json_extract({expression}, '${keys}')"

    def element(self, expression: str, number: int, kind: str) -> str:
        found = f"json_extract({expression}, '$[{number}]')"
        if kind not in ("double", "float"):
            return found
        return f"case {found} when 'Infinity' then 9e999 when '-Infinity' then -9e999 else {found} end"

    def index_part(self, expression: str) -> str:
        return expression

    def create_search(self, db: Db, tag: str) -> None:
        # The words are already folded; FTS5 only splits them at spaces.
        words = "fts5(words, tokenize = 'unicode61 remove_diacritics 0')"
        try:
            db.execute(f"create virtual table {_search(tag)} using {words}")
        except sqlite3.OperationalError as error:
            if "no such module" not in str(error):
                raise
            raise InvalidError(
                "cannot create the search index of a view: the SQLite of this Python has no FTS5",
                hint="use another Python, or store the views in PostgreSQL (--store)",
            ) from error
        db.execute(f"create table {_numbers(tag)} (number integer primary key, _key text unique not null)")

    def drop_search(self, db: Db, tag: str) -> None:
        db.execute(f"drop table {_search(tag)}")
        db.execute(f"drop table {_numbers(tag)}")

    def empty_search(self, db: Db, tag: str) -> None:
        db.execute(f"delete from {_search(tag)}")
        db.execute(f"delete from {_numbers(tag)}")

    def put_search(self, db: Db, tag: str, words: Sequence[tuple[str, Sequence[str]]]) -> None:
        db.executemany(
            f"insert into {_numbers(tag)} (_key) values (?) on conflict (_key) do nothing",
            ((key,) for key, _ in words),
        )
        db.executemany(
            f"insert or replace into {_search(tag)} (rowid, words) "
            f"values ((select number from {_numbers(tag)} where _key = ?), ?)",
            ((key, " ".join(found)) for key, found in words),
        )

    def remove_search(self, db: Db, tag: str, keys: Sequence[str]) -> None:
        db.executemany(
            f"delete from {_search(tag)} where rowid = (select number from {_numbers(tag)} where _key = ?)",
            ((key,) for key in keys),
        )
        db.executemany(f"delete from {_numbers(tag)} where _key = ?", ((key,) for key in keys))

    def match(self, tag: str, query: SearchQuery) -> SearchMatch:
        return SearchMatch(
            join=f"join {_numbers(tag)} n on n._key = v._key join {_search(tag)} s on s.rowid = n.number",
            condition=f"s.{_search(tag)} match ?",
            relevance="-s.rank",
            parameter=query.fts5,
        )

    def is_failure(self, error: Exception) -> bool:
        return is_failure(error)


def _search(tag: str) -> str:
    return quote("search_" + tag)


def _numbers(tag: str) -> str:
    return quote(f"search_{tag}_rows")


class SqliteConnection(sqlite3.Connection):
    """A connection with its dialect and its location."""

    dialect = SqliteDialect()
    location = ""


class SqliteDatabase:
    """The SQLite file at `path`."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._read_only = read_only
        self._local = threading.local()
        self._write_lock = threading.Lock()
        if not read_only:
            path.parent.mkdir(parents=True, exist_ok=True)

    def has_views(self) -> bool:
        """Return whether the tables exist; the file may be missing, or too new to have them."""
        if not self.path.exists():
            return False
        tables = "select 1 from sqlite_master where name = 'headwater_store'"
        return self.reading().execute(tables).fetchone() is not None

    def reading(self) -> SqliteConnection:
        db: SqliteConnection | None = getattr(self._local, "db", None)
        if db is None:
            mode = "ro" if self._read_only else "rwc"
            db = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                factory=SqliteConnection,
                cached_statements=STATEMENTS_KEPT,
            )
            db.location = repr(str(self.path))
            if not self._read_only:
                db.execute("pragma journal_mode = wal")
                # Spark discards a batch once the commit returns, so it must be on disk by then.
                db.execute("pragma synchronous = full")
            self._local.db = db
        return db

    @contextmanager
    def snapshot(self) -> Iterator[SqliteConnection]:
        db = self.reading()
        if db.in_transaction:  # Inside a transaction of the same thread: use it.
            yield db
            return
        db.execute("begin")
        try:
            yield db
        finally:
            db.execute("commit")

    @contextmanager
    def writing(self) -> Iterator[SqliteConnection]:
        with self._write_lock, transient_errors(self.path):
            db = self.reading()
            db.execute("begin immediate")
            try:
                yield db
                db.execute("commit")
            except BaseException:
                if db.in_transaction:  # SQLite rolls back by itself on a full disk.
                    db.execute("rollback")
                raise

    def claim(self, app: str) -> None:
        """Do nothing: the lock on the app's data directory excludes other writers."""

    def close(self) -> None:
        """Close this thread's connection; those of other threads close with their threads."""
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is not None:
            db.close()
            self._local.db = None
