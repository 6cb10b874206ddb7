"""Sqlite: a table in an SQLite file as a sink, exactly once.

    hw.Sqlite("shop.db", table="revenue")

A batch is one transaction: rows are upserted or deleted by key, or inserted, and the batch number is recorded with
them. SQLite has one writer at a time, and every `open` raises the epoch, so the transaction of an earlier writer
finds an epoch that is not its own and fails.

    headwater_progress   target -> query, run, batch, epoch, past

Values are text, integer, real or blob: timestamps are UTC text of fixed width, which sorts by time and which
SQLite's date functions read; decimals are text with all digits; NaN is the text `NaN`; nested values are JSON.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from operator import length_hint
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import InvalidError, RefusedError, UnavailableError
from headwater.sink import Batch, Guarantee, Stream
from headwater.sinks.net_changes import net_changes
from headwater.sinks.progress import SinkProgress, fenced, next_step
from headwater.sinks.sqlite_table import SqliteTable, stored_rows
from headwater.sinks.stream_checks import check_table_owner, foreign_rows

_BUSY_S = 10.0
"""Time to wait for another writer; after that the query retries later."""
_BLOCK_ROWS = 50_000
_PROGRESS_TABLE = "headwater_progress"
_CREATE_PROGRESS = """create table if not exists headwater_progress (
    target text primary key, query text not null, run text, batch integer, epoch integer not null, past text)"""


@dataclass(frozen=True, slots=True)
class Sqlite:
    """A table in an SQLite file; both are created if missing.

    The table belongs to the query: a new run, after the query's checkpoint was deleted, replaces all rows.
    """

    path: str | Path
    table: str = field(kw_only=True)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def open(self, stream: Stream) -> "SqliteWriter":
        """Create or check the table, and fence every writer opened before."""
        destination = f"table {self.table!r} of {str(self.path)!r}"
        table = SqliteTable(self.table, stream, f"cannot write {stream.query!r} to {destination}")
        table.check_stream()
        with _sqlite_errors(f"open {destination} for {stream.query!r}"):
            db = _connect(Path(self.path))
        try:
            with _sqlite_errors(f"open {destination} for {stream.query!r}"), _transaction(db):
                epoch = _open_table(db, table)
        except BaseException:
            db.close()
            raise
        return SqliteWriter(db, table, destination, epoch)


class SqliteWriter:
    """Writes to one table over one connection; not thread-safe."""

    def __init__(self, db: sqlite3.Connection, table: SqliteTable, destination: str, epoch: int) -> None:
        self._db = db
        self._table = table
        self._stream = table.stream
        self._destination = destination
        self._epoch = epoch

    def write(self, batch: Batch) -> bool:
        """Write the batch in one transaction; False if it is already written."""
        with _sqlite_errors(self._attempt(batch)), _transaction(self._db):
            return self._apply(batch)

    def rehearse(self, batch: Batch) -> None:
        """Write the batch in a transaction that is rolled back."""
        with _sqlite_errors(self._attempt(batch)), _transaction(self._db, end="rollback"):
            self._apply(batch)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _attempt(self, batch: Batch) -> str:
        return f"write batch {batch.number} of {self._stream.query!r} to {self._destination}"

    def _apply(self, batch: Batch) -> bool:
        step = next_step(self._read_progress(), batch, self._stream, self._destination)
        if step is None:
            return False
        if step.replaces:
            self._db.execute(self._table.delete_all)
        self._write_rows(replace(batch, rows=batch.rows.cast(self._stream.schema)))
        self._write_progress(step.progress)
        return True

    def _read_progress(self) -> SinkProgress | None:
        """Return the query's progress; raises ConflictError if another writer has opened the table since."""
        found = self._db.execute(
            "select epoch, run, batch, past from headwater_progress where target = ?", (self._table.name,)
        ).fetchone()
        if found is None or found[0] != self._epoch:
            raise fenced(self._stream, self._destination)
        _, run, number, past = found
        return None if run is None else SinkProgress(run=run, number=number, past=tuple(json.loads(past)))

    def _write_progress(self, progress: SinkProgress) -> None:
        self._db.execute(
            "update headwater_progress set run = ?, batch = ?, past = ? where target = ?",
            (progress.run, progress.number, json.dumps(progress.past), self._table.name),
        )

    def _write_rows(self, batch: Batch) -> None:
        key = self._stream.key
        if not key:
            self._execute(self._table.insert, batch.rows)
            return
        net = net_changes(batch, key)
        self._execute(self._table.delete_by_key, net.deletes)
        # A unique index treats nulls as different, so rows with a null in the key are deleted before the upsert.
        has_null = _any_null(net.puts, key)
        self._execute(self._table.delete_by_key, net.puts.filter(has_null).select(list(key)))
        self._execute(self._table.upsert, net.puts)

    def _execute(self, statement: str, rows: pa.Table) -> None:
        for start in range(0, rows.num_rows, _BLOCK_ROWS):
            block = rows.slice(start, _BLOCK_ROWS)
            values = list(stored_rows(block))
            remaining = iter(values)
            try:
                self._db.executemany(statement, remaining)
            except (sqlite3.IntegrityError, sqlite3.DataError) as error:
                row = dict(zip(block.column_names, values[-1 - length_hint(remaining)], strict=True))
                raise RefusedError(
                    f"cannot write a row to {self._destination}: {error}; row: {row!r}",
                    hint=f"alter the table, or filter such rows out in {self._stream.query!r}",
                ) from error


def _any_null(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    has_null = rows.column(key[0]).is_null()
    for name in key[1:]:
        has_null = pc.or_(has_null, rows.column(name).is_null())
    return has_null


# -- opening --------------------------------------------------------------------------------------------------


def _connect(path: Path) -> sqlite3.Connection:
    if not path.absolute().parent.is_dir():
        raise InvalidError(f"cannot open {str(path)!r}: there is no folder {str(path.absolute().parent)!r}")
    is_new = not path.exists()
    db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    if is_new:
        with suppress(sqlite3.OperationalError):  # Another writer that opens the file now does the same.
            db.execute("pragma journal_mode = wal")  # Readers do not wait. A user's own file keeps its mode.
    db.execute("pragma synchronous = full")  # Spark discards a batch once `write` has returned.
    return db


def _open_table(db: sqlite3.Connection, table: SqliteTable) -> int:
    """Create or check the table, raise its epoch and return it."""
    db.execute(_CREATE_PROGRESS)
    existed = table.ensure(db)
    owner, epoch, run = db.execute(
        "insert into headwater_progress (target, query, epoch) values (?, ?, 1) "
        "on conflict (target) do update set epoch = epoch + 1 returning query, epoch, run",
        (table.name, table.stream.query),
    ).fetchone()
    check_table_owner(owner, table.stream, table.attempt, _PROGRESS_TABLE)
    if existed and run is None and table.has_rows(db):
        raise foreign_rows(table.attempt, _PROGRESS_TABLE)
    return int(epoch)


@contextmanager
def _transaction(db: sqlite3.Connection, *, end: str = "commit") -> Iterator[None]:
    db.execute("begin immediate")
    try:
        yield
        db.execute(end)
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise


@contextmanager
def _sqlite_errors(attempt: str) -> Iterator[None]:
    """Raise SQLite's errors as ours: a full disk or another writer is transient, everything else is not."""
    try:
        yield
    except sqlite3.OperationalError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR")):
            raise UnavailableError(f"cannot {attempt}: {error}") from error
        raise InvalidError(f"cannot {attempt}: {error}") from error
    except sqlite3.Error as error:
        raise InvalidError(f"cannot {attempt}: {error}") from error
