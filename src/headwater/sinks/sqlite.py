"""Sqlite: a table in an SQLite file as a sink, exactly once.

    hw.Sqlite("shop.db", table="revenue")

A batch is one transaction: rows are upserted or deleted by key, or inserted, and the batch's number is noted
beside them. SQLite lets one writer in at a time, so the epoch that each opening raises keeps zombies out.

    headwater_progress   target -> query, run, batch, epoch, past

Values are text, integer, real or blob: timestamps as UTC text of fixed width, which sorts as times do and which
SQLite's date functions read; decimals as text, to the last digit; NaN as the text `NaN`; nested values as JSON.
"""

import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from operator import length_hint
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import ConflictError, InvalidError, RefusedError, UnavailableError
from headwater.json_values import time_texts
from headwater.sink import Batch, Guarantee, Stream
from headwater.sinks.json_rows import json_values
from headwater.sinks.net_changes import check_changes_have_key, fold
from headwater.sinks.progress import BatchAction, SinkProgress, advance, fenced, judge

_BUSY_S = 10.0
"""How long to wait for another writer; longer, and the query tries again later."""
_BLOCK_ROWS = 50_000
_PROGRESS = """create table if not exists headwater_progress (
    target text primary key, query text not null, run text, batch integer, epoch integer not null, past text)"""


@dataclass(frozen=True, slots=True)
class Sqlite:
    """A table in an SQLite file; both are made if they are not there.

    The table belongs to the query: a new run of it, after its checkpoint was thrown away, replaces all rows.
    """

    path: str | Path
    table: str = field(kw_only=True)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def open(self, stream: Stream) -> "SqliteWriter":
        """Make or check the table, and fence every writer opened before."""
        place = f"table {self.table!r} of {str(self.path)!r}"
        _check_stream(stream, place, self.table)
        with _explained(f"open {place} for {stream.query!r}"):
            db = _connect(Path(self.path))
        try:
            with _explained(f"open {place} for {stream.query!r}"), _transaction(db):
                epoch = _take_over(db, stream, place, self.table)
        except BaseException:
            db.close()
            raise
        return SqliteWriter(db, stream, place, self.table, epoch)


class SqliteWriter:
    """Writes to one table, over one connection; not thread-safe."""

    def __init__(self, db: sqlite3.Connection, stream: Stream, place: str, table: str, epoch: int) -> None:
        self._db = db
        self._stream = stream
        self._place = place
        self._table = table
        self._epoch = epoch

    def write(self, batch: Batch) -> bool:
        """Write the batch in one transaction; False if it is there already."""
        with _explained(self._attempt(batch)), _transaction(self._db):
            return self._apply(batch)

    def rehearse(self, batch: Batch) -> None:
        """Write the batch in a transaction that is rolled back."""
        with _explained(self._attempt(batch)), _transaction(self._db, end="rollback"):
            self._apply(batch)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _attempt(self, batch: Batch) -> str:
        return f"write batch {batch.number} of {self._stream.query!r} to {self._place}"

    def _apply(self, batch: Batch) -> bool:
        progress = self._progress()
        step = judge(progress, batch, self._stream, self._place)
        if step is BatchAction.SKIP:
            return False
        if step is BatchAction.START_AFRESH:
            self._db.execute(f"delete from {_quote(self._table)}")
        self._put(replace(batch, rows=batch.rows.cast(self._stream.schema)))
        self._note(advance(progress, batch))
        return True

    def _progress(self) -> SinkProgress | None:
        """How far the query is; ConflictError if somebody else has opened the table since."""
        found = self._db.execute(
            "select epoch, run, batch, past from headwater_progress where target = ?", (self._table,)
        ).fetchone()
        if found is None or found[0] != self._epoch:
            raise fenced(self._stream, self._place)
        _, run, number, past = found
        return None if run is None else SinkProgress(run=run, number=number, past=tuple(json.loads(past)))

    def _note(self, progress: SinkProgress) -> None:
        self._db.execute(
            "update headwater_progress set run = ?, batch = ?, past = ? where target = ?",
            (progress.run, progress.number, json.dumps(progress.past), self._table),
        )

    def _put(self, batch: Batch) -> None:
        key, names = self._stream.key, self._stream.schema.names
        insert = f"insert into {_quote(self._table)} ({_quoted(names)}) values ({', '.join('?' * len(names))})"
        if not key:
            self._execute(insert, batch.rows)
            return
        folded = fold(batch, key)
        # `is` finds null too, and uses the index as `=` does.
        same = " and ".join(f"{_quote(name)} is ?" for name in key)
        delete = f"delete from {_quote(self._table)} where {same}"
        self._execute(delete, folded.deletes)
        # To the index nulls are different, so such rows are looked for before; the others are found by it.
        has_null = _any_null(folded.puts, key)
        self._execute(delete, folded.puts.filter(has_null).select(list(key)))
        sets = ", ".join(f"{_quote(name)} = excluded.{_quote(name)}" for name in names if name not in key)
        then = f"update set {sets}" if sets else "nothing"
        self._execute(f"{insert} on conflict ({_quoted(key)}) do {then}", folded.puts)

    def _execute(self, statement: str, rows: pa.Table) -> None:
        for start in range(0, rows.num_rows, _BLOCK_ROWS):
            some = rows.slice(start, _BLOCK_ROWS)
            values = list(zip(*(_kept(column) for column in some.columns), strict=True))
            left = iter(values)
            try:
                self._db.executemany(statement, left)
            except (sqlite3.IntegrityError, sqlite3.DataError) as error:
                row = dict(zip(some.column_names, values[-1 - length_hint(left)], strict=True))
                raise RefusedError(
                    f"cannot write a row to {self._place}: {error}; row: {row!r}",
                    hint=f"alter the table, or leave such rows out of {self._stream.query!r}",
                ) from error


# -- the table ------------------------------------------------------------------------------------------------


def _connect(path: Path) -> sqlite3.Connection:
    if not path.absolute().parent.is_dir():
        raise InvalidError(f"cannot open {str(path)!r}: there is no folder {str(path.absolute().parent)!r}")
    is_new = not path.exists()
    db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    if is_new:
        with suppress(sqlite3.OperationalError):  # Another who opens it at this moment does the same.
            db.execute("pragma journal_mode = wal")  # Readers need not wait; a file of the user's stays as it is.
    db.execute("pragma synchronous = full")  # Spark forgets a batch when we say that it is there.
    return db


def _take_over(db: sqlite3.Connection, stream: Stream, place: str, table: str) -> int:
    db.execute(_PROGRESS)
    columns_of = 'select name, type, "notnull" and dflt_value is null from pragma_table_info(?)'
    found = db.execute(columns_of, (table,)).fetchall()
    if found:
        types = {name: kind.lower().partition("(")[0].strip() for name, kind, _ in found}
        _check_columns(stream, place, types, [name for name, _, must in found if must])
        _check_key(db, stream, place, table)
    else:
        columns = [f"{_quote(f.name)} {column_type(f.type)}" for f in stream.schema]
        unique = [f"unique ({_quoted(stream.key)})"] if stream.key else []
        db.execute(f"create table {_quote(table)} ({', '.join([*columns, *unique])})")
    query, epoch, run = db.execute(
        "insert into headwater_progress (target, query, epoch) values (?, ?, 1) "
        "on conflict (target) do update set epoch = epoch + 1 returning query, epoch, run",
        (table, stream.query),
    ).fetchone()
    if query != stream.query:
        raise ConflictError(
            f"cannot write {stream.query!r} to {place}: it belongs to {query!r}, whose rows these are",
            hint=f"name another table; or, if {query!r} is no more, empty the table and delete its row from "
            "headwater_progress",
        )
    if found and run is None and db.execute(f"select exists (select 1 from {_quote(table)})").fetchone()[0]:
        raise InvalidError(
            f"cannot write {stream.query!r} to {place}: it has rows that headwater_progress does not know",
            hint="empty the table, name another one, or bring the progress back with the rows it belongs to",
        )
    return int(epoch)


def _check_stream(stream: Stream, place: str, table: str) -> None:
    attempt = f"cannot write {stream.query!r} to {place}"
    if not table or table.lower().startswith(("sqlite_", "headwater_")):
        raise InvalidError(f"{attempt}: that is no name for a table of yours")
    for column in stream.schema:
        if column_type(column.type) is None:
            raise InvalidError(
                f"{attempt}: column {column.name!r} is {column.type}, for which SQLite has no type here",
                hint=f"cast it in {stream.query!r}, to a string for instance",
            )
    names = [name.lower() for name in stream.schema.names]
    if len(set(names)) < len(names):
        alike = ", ".join(name for name in stream.schema.names if names.count(name.lower()) > 1)
        raise InvalidError(
            f"{attempt}: SQLite does not tell upper from lower case, and so not these columns: {alike}"
        )
    check_changes_have_key(stream, attempt)


def _check_columns(stream: Stream, place: str, types: dict[str, str], must: list[str]) -> None:
    wrong = []
    for column in stream.schema:
        kind = column_type(column.type)
        if column.name not in types:
            wrong.append(f"it has no column {column.name!r} ({kind})")
        elif types[column.name] not in ("", kind, *_FITTING.get(str(kind), ())):
            wrong.append(f"its column {column.name!r} is {types[column.name]}, the rows have {kind}")
    names = stream.schema.names
    wrong += [f"its column {n!r} must not be null and the rows have none" for n in must if n not in names]
    if wrong:
        raise InvalidError(
            f"cannot write {stream.query!r} to {place}: {'; '.join(wrong)}",
            hint="alter the table, name another one, or drop it to have it made anew",
        )


def _check_key(db: sqlite3.Connection, stream: Stream, place: str, table: str) -> None:
    if not stream.key:
        return
    keys = [
        tuple(row[0] for row in db.execute("select name from pragma_index_info(?)", (index,)))
        for (index,) in db.execute(
            'select name from pragma_index_list(?) where "unique" and not partial', (table,)
        )
    ]
    keys.append(tuple(row[0] for row in db.execute("select name from pragma_table_info(?) where pk", (table,))))
    if not any(sorted(map(str, found)) == sorted(stream.key) for found in keys):
        there = ", ".join(f"({', '.join(map(str, found))})" for found in keys if found) or "none"
        raise InvalidError(
            f"cannot write {stream.query!r} to {place}: its key is ({', '.join(stream.key)}), and the table has "
            f"no unique index on that; it has {there}",
            hint="create such an index, or name another table",
        )


# -- values ---------------------------------------------------------------------------------------------------


_FITTING = {
    "integer": ("int", "bigint", "smallint", "tinyint", "boolean", "bool"),
    "real": ("double", "double precision", "float"),
    "text": ("varchar", "char", "clob", "json", "date", "datetime", "timestamp"),
}
"""Declared types that a column may have which the user made."""


def column_type(kind: pa.DataType) -> str | None:
    """The type that a new column gets; None if there is none."""
    is_ = pa.types
    for matches, name in (
        (is_.is_integer(kind) and kind != pa.uint64(), "integer"),
        (is_.is_boolean(kind), "integer"),
        (kind in (pa.float32(), pa.float64()), "real"),
        (is_.is_binary(kind) or is_.is_large_binary(kind), "blob"),
        (is_.is_string(kind) or is_.is_large_string(kind) or is_.is_nested(kind), "text"),
        (is_.is_decimal(kind) or is_.is_date(kind) or is_.is_timestamp(kind), "text"),
    ):
        if matches:
            return name
    return None


def _kept(column: pa.ChunkedArray) -> list[Any]:
    """The values as SQLite keeps them."""
    kind = column.type
    if pa.types.is_nested(kind):
        column = json_values(column)
    elif pa.types.is_timestamp(kind):
        column = time_texts(column)
    elif pa.types.is_decimal(kind):
        return [None if value is None else f"{value:f}" for value in column.to_pylist()]  # no exponents
    elif pa.types.is_date(kind):
        column = column.cast(pa.string())
    elif pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        return ["NaN" if value is not None and math.isnan(value) else value for value in values]
    return values


def _any_null(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    has_null = rows.column(key[0]).is_null()
    for name in key[1:]:
        has_null = pc.or_(has_null, rows.column(name).is_null())
    return has_null


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(_quote, names))


# -- running --------------------------------------------------------------------------------------------------


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
def _explained(attempt: str) -> Iterator[None]:
    """Raise what SQLite raises as an error of ours: a full disk and another writer pass, the rest does not."""
    try:
        yield
    except sqlite3.OperationalError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR")):
            raise UnavailableError(f"cannot {attempt}: {error}") from error
        raise InvalidError(f"cannot {attempt}: {error}") from error
    except sqlite3.Error as error:
        raise InvalidError(f"cannot {attempt}: {error}") from error
