"""The table of the SQLite sink: its columns, its key, the statements on it, and values as SQLite stores them."""

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import InvalidError
from headwater.json_values import time_texts
from headwater.sink import Stream
from headwater.sinks.json_rows import json_values
from headwater.sinks.stream_checks import (
    ColumnType,
    ExistingColumn,
    check_changes_have_key,
    check_columns,
    check_types,
    no_unique_index,
)
from headwater.sql_names import quote, quote_list

_ACCEPTED = {
    "integer": ("int", "bigint", "smallint", "tinyint", "boolean", "bool"),
    "real": ("double", "double precision", "float"),
    "text": ("varchar", "char", "clob", "json", "date", "datetime", "timestamp"),
}
"""Declared types that a column of a user's table may have, by the type that the sink would declare."""


@dataclass(frozen=True, slots=True)
class SqliteTable:
    """The table of one stream."""

    name: str
    stream: Stream
    attempt: str
    """The beginning of error messages."""

    def check_stream(self) -> None:
        """Raise InvalidError for a stream that no SQLite table can hold, or a reserved table name."""
        if not self.name or self.name.lower().startswith(("sqlite_", "headwater_")):
            raise InvalidError(
                f"{self.attempt}: table names must not be empty, and names starting with 'sqlite_' or "
                "'headwater_' are reserved"
            )
        check_types(self.stream, self.attempt, column_type, "SQLite")
        names = [name.lower() for name in self.stream.schema.names]
        if len(set(names)) < len(names):
            alike = ", ".join(name for name in self.stream.schema.names if names.count(name.lower()) > 1)
            raise InvalidError(f"{self.attempt}: these columns differ only in case, which SQLite ignores: {alike}")
        check_changes_have_key(self.stream, self.attempt)

    def ensure(self, db: sqlite3.Connection) -> bool:
        """Create the table, or check the existing one; return whether it existed."""
        found = db.execute(
            'select name, type, "notnull" and dflt_value is null from pragma_table_info(?)', (self.name,)
        ).fetchall()
        if found:
            existing = [
                ExistingColumn(name, kind.lower().partition("(")[0].strip(), bool(required))
                for name, kind, required in found
            ]
            check_columns(self.stream, self.attempt, column_type, existing)
            self._check_key(db)
            return True
        columns = []
        for field in self.stream.schema:
            kind = column_type(field.type)
            assert kind is not None  # check_stream has passed
            columns.append(f"{quote(field.name)} {kind.name}")
        unique = [f"unique ({quote_list(self.stream.key)})"] if self.stream.key else []
        db.execute(f"create table {quote(self.name)} ({', '.join([*columns, *unique])})")
        return False

    def has_rows(self, db: sqlite3.Connection) -> bool:
        return bool(db.execute(f"select exists (select 1 from {quote(self.name)})").fetchone()[0])

    def _check_key(self, db: sqlite3.Connection) -> None:
        if not self.stream.key:
            return
        keys = [
            [str(row[0]) for row in db.execute("select name from pragma_index_info(?)", (index,))]
            for (index,) in db.execute(
                'select name from pragma_index_list(?) where "unique" and not partial', (self.name,)
            )
        ]
        primary = db.execute("select name from pragma_table_info(?) where pk", (self.name,))
        keys.append([str(row[0]) for row in primary])
        if not any(sorted(names) == sorted(self.stream.key) for names in keys):
            raise no_unique_index(self.stream, self.attempt, keys)

    # -- statements -------------------------------------------------------------------------------------------

    @property
    def delete_all(self) -> str:
        return f"delete from {quote(self.name)}"

    @property
    def delete_by_key(self) -> str:
        # `is` matches null too, and uses the index as `=` does.
        same = " and ".join(f"{quote(name)} is ?" for name in self.stream.key)
        return f"delete from {quote(self.name)} where {same}"

    @property
    def insert(self) -> str:
        names = self.stream.schema.names
        return f"insert into {quote(self.name)} ({quote_list(names)}) values ({', '.join('?' * len(names))})"

    @property
    def upsert(self) -> str:
        others = [name for name in self.stream.schema.names if name not in self.stream.key]
        sets = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in others)
        return f"{self.insert} on conflict ({quote_list(self.stream.key)}) do " + (
            f"update set {sets}" if sets else "nothing"
        )


# -- values ---------------------------------------------------------------------------------------------------


def column_type(kind: pa.DataType) -> ColumnType | None:
    """Return the column type for an Arrow type; None if there is none."""
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
            return ColumnType(name, ("", name, *_ACCEPTED.get(name, ())))
    return None


def stored_rows(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Return rows with their values as SQLite stores them."""
    return zip(*(_stored_values(column) for column in rows.columns), strict=True)


def _stored_values(column: pa.ChunkedArray) -> list[Any]:
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
