"""Facts about running queries: the records each batch read, its duration, its errors.

The console and the commands show nothing else about queries. Losing facts in a crash does no harm, so they are
stored separately from the views (`facts.db`) and written without waiting for the disk. The last FACTS_KEPT of each
query and kind are kept. A fact about a batch uses the field names of Spark's StreamingQueryProgress.

Thread-safe: every call uses the calling thread's own connection.
"""

import json
import sqlite3
import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from headwater.errors import UnavailableError
from headwater.store.databases.sqlite_errors import transient_errors

FACTS_KEPT = 300

_SCHEMA = """
create table if not exists facts_by_kind (
    query text not null, kind text not null, sequence integer not null, at_ms integer not null, body text not null,
    primary key (query, kind, sequence)) without rowid;
"""


class FactKind(StrEnum):
    """The subject of a fact: a query's batch or its state, or the stateful operators in it."""

    BATCH = "batch"
    OPERATORS = "operators"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact about a query; `sequence` grows by one with each fact of that query and kind."""

    query: str
    sequence: int
    at_ms: int
    body: dict[str, Any]


class FactStore:
    """The facts of one app, in the SQLite file at `path`, created if missing."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._local = threading.local()
        self._connection().executescript(_SCHEMA)

    def add(self, query: str, body: dict[str, Any], *, at_ms: int, kind: FactKind = FactKind.BATCH) -> None:
        """Append a fact and delete those that are too old; if the disk is full, the fact is lost."""
        try:
            with transient_errors(self._path):
                self._add(query, body, at_ms, kind)
        except UnavailableError:
            pass

    def _add(self, query: str, body: dict[str, Any], at_ms: int, kind: FactKind) -> None:
        db = self._connection()
        if db.in_transaction:
            db.execute("rollback")  # Left open when the disk was full.
        db.execute("begin immediate")
        ours = "from facts_by_kind where query = ? and kind = ?"
        last = db.execute(f"select max(sequence) {ours}", (query, kind)).fetchone()[0] or 0
        db.execute(
            "insert into facts_by_kind values (?, ?, ?, ?, ?)", (query, kind, last + 1, at_ms, json.dumps(body))
        )
        db.execute(f"delete {ours} and sequence <= ?", (query, kind, last + 1 - FACTS_KEPT))
        db.execute("commit")

    def forget(self, query: str) -> None:
        """Delete all facts about a query."""
        self._connection().execute("delete from facts_by_kind where query = ?", (query,))

    def queries(self) -> list[str]:
        """Return the names of the queries with facts."""
        found = self._connection().execute("select distinct query from facts_by_kind order by 1")
        return [name for (name,) in found]

    def latest(self, query: str, *, limit: int = 1, kind: FactKind = FactKind.BATCH) -> list[Fact]:
        """Return the last facts of a kind about a query, oldest first."""
        found = self._connection().execute(
            "select sequence, at_ms, body from facts_by_kind where query = ? and kind = ? "
            "order by sequence desc limit ?",
            (query, kind, limit),
        )
        facts = [Fact(query=query, sequence=s, at_ms=at, body=json.loads(body)) for s, at, body in found]
        return facts[::-1]

    def _connection(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = sqlite3.connect(self._path, timeout=30.0, isolation_level=None)
            db.execute("pragma journal_mode = wal")
            db.execute("pragma synchronous = off")
            self._local.db = db
        return db
