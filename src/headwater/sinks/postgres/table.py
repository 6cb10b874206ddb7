"""Tables of the PostgreSQL sink: their names, columns and unique keys, and the statements on them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import InvalidError
from headwater.sink import Stream
from headwater.sinks.stream_checks import (
    ColumnType,
    ExistingColumn,
    check_changes_have_key,
    check_columns,
    check_types,
    no_unique_index,
)

if TYPE_CHECKING:
    from psycopg.sql import Composed

PROGRESS = "headwater_progress"
_NAME = re.compile(r"[^.\"\x00]+")
_NULLS_SINCE = _MERGE_SINCE = 150000
"""The server version that added `nulls not distinct` to unique indexes, and MERGE."""


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of a table and its schema; without a schema the search path decides."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return repr(self.name if self.schema is None else f"{self.schema}.{self.name}")

    @property
    def progress(self) -> "TableName":
        return TableName(self.schema, PROGRESS)

    @property
    def sql(self) -> "Composed":
        from psycopg import sql

        return sql.Composed([sql.Identifier(*(part for part in (self.schema, self.name) if part is not None))])


def parse_name(text: str) -> TableName:
    """Parse `table` or `schema.table`."""
    parts = text.split(".")
    if len(parts) > 2 or not all(_NAME.fullmatch(part) and len(part.encode()) <= 63 for part in parts):
        raise InvalidError(f"cannot use {text!r} as a table name: expected 'table' or 'schema.table'")
    return TableName(parts[0] if len(parts) == 2 else None, parts[-1])


# -- types ----------------------------------------------------------------------------------------------------


_TEXTS = ("text", "varchar", "bpchar", "citext", "name", "uuid", "json", "jsonb", "xml", "inet", "cidr")
_INTEGERS = ("int2", "int4", "int8", "numeric")


def column_type(kind: pa.DataType) -> ColumnType | None:
    """Return the column type for an Arrow type; None if there is none."""
    is_ = pa.types
    if is_.is_decimal(kind):
        return ColumnType(f"numeric({kind.precision}, {kind.scale})", ("numeric",))
    if is_.is_timestamp(kind):
        name = "timestamptz" if kind.tz else "timestamp"
        return ColumnType(name, (name,))
    if is_.is_nested(kind):
        return ColumnType("jsonb", ("jsonb", "json", "text", "varchar"))
    for matches, new, accepted in (
        (is_.is_string(kind) or is_.is_large_string(kind), "text", _TEXTS),
        (kind in (pa.int8(), pa.int16()), "smallint", _INTEGERS),
        (kind == pa.int32(), "integer", _INTEGERS[1:]),
        (kind == pa.int64(), "bigint", _INTEGERS[2:]),
        (kind == pa.float32(), "real", ("float4", "float8")),
        (kind == pa.float64(), "double precision", ("float8",)),
        (is_.is_boolean(kind), "boolean", ("bool",)),
        (is_.is_date(kind), "date", ("date",)),
        (is_.is_binary(kind) or is_.is_large_binary(kind), "bytea", ("bytea",)),
    ):
        if matches:
            return ColumnType(new, accepted)
    return None


def check_stream(stream: Stream, table: str) -> None:
    """Raise InvalidError for a stream that no PostgreSQL table can hold."""
    attempt = f"cannot write {stream.query!r} to table {table!r}"
    check_types(stream, attempt, column_type, "PostgreSQL")
    for name in stream.schema.names:
        if len(name.encode()) > 63:
            raise InvalidError(f"{attempt}: the name of column {name!r} is longer than PostgreSQL's 63 bytes")
    check_changes_have_key(stream, attempt)


# -- statements -----------------------------------------------------------------------------------------------


def _sql(text: str, **parts: Any) -> "Composed":
    from psycopg import sql

    return sql.SQL(text).format(**parts)


def _names(names: Sequence[str], prefix: str = "") -> "Composed":
    from psycopg import sql

    return sql.SQL(", ").join(sql.SQL(prefix) + sql.Identifier(name) for name in names)


def _same(text: str, names: Sequence[str]) -> "Composed":
    from psycopg import sql

    return sql.SQL(" and ").join(_sql(text, name=sql.Identifier(name)) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """A table that was created or checked, and the statements on it."""

    target: TableName
    columns: tuple[str, ...]
    key: tuple[str, ...]
    nulls_are_equal: bool
    has_merge: bool

    @property
    def delete_all(self) -> "Composed":
        return _sql("delete from {table}", table=self.target.sql)

    @property
    def copy_into(self) -> "Composed":
        columns = _names(self.columns)
        return _sql("copy {table} ({columns}) from stdin (format csv)", table=self.target.sql, columns=columns)

    @property
    def lock_progress(self) -> "Composed":
        return _sql(
            "select epoch, run, batch, past from {progress} where target = %s for update",
            progress=self.target.progress.sql,
        )

    @property
    def note_progress(self) -> "Composed":
        return _sql(
            "update {progress} set run = %s, batch = %s, past = %s, changed_at = now() where target = %s",
            progress=self.target.progress.sql,
        )

    def upsert_staged(self, stage: str, *, nulls: bool) -> "Composed":
        """Upsert the staged rows: with MERGE, which joins, or else by an index lookup for each row."""
        return self._insert_staged(stage) if nulls or not self.has_merge else self._merge_staged(stage)

    def _merge_staged(self, stage: str) -> "Composed":
        from psycopg import sql

        others = [name for name in self.columns if name not in self.key]
        sets = [_sql("{name} = s.{name}", name=sql.Identifier(name)) for name in others]
        matched = sql.SQL("update set ") + sql.SQL(", ").join(sets) if sets else sql.SQL("do nothing")
        return _sql(
            "merge into {table} t using pg_temp.{stage} s on {same} when matched then {matched} "
            "when not matched then insert ({columns}) values ({values})",
            table=self.target.sql,
            stage=sql.Identifier(stage),
            same=_same("s.{name} = t.{name}", self.key),
            matched=matched,
            columns=_names(self.columns),
            values=_names(self.columns, "s."),
        )

    def _insert_staged(self, stage: str) -> "Composed":
        from psycopg import sql

        others = [name for name in self.columns if name not in self.key]
        sets = [_sql("{name} = excluded.{name}", name=sql.Identifier(name)) for name in others]
        return _sql(
            "insert into {table} ({columns}) select {columns} from pg_temp.{stage} on conflict ({key}) do {then}",
            table=self.target.sql,
            columns=_names(self.columns),
            stage=sql.Identifier(stage),
            key=_names(self.key),
            then=sql.SQL("update set ") + sql.SQL(", ").join(sets) if sets else sql.SQL("nothing"),
        )

    def delete_staged(self, stage: str, *, nulls: bool) -> "Composed":
        from psycopg import sql

        # PostgreSQL uses the index on the key for `=` only.
        same = "d.{name} is not distinct from t.{name}" if nulls else "d.{name} = t.{name}"
        return _sql(
            "delete from {table} t using pg_temp.{stage} d where {same}",
            table=self.target.sql,
            stage=sql.Identifier(stage),
            same=_same(same, self.key),
        )


def make_stage(stage: str, target: TableName, columns: Sequence[str]) -> "Composed":
    """Create a temporary table with the types of the target's columns, emptied by each commit."""
    from psycopg import sql

    return _sql(
        "create temporary table {stage} on commit delete rows as select {columns} from {table} with no data",
        stage=sql.Identifier(stage),
        columns=_names(columns),
        table=target.sql,
    )


def copy_stage(stage: str, columns: Sequence[str]) -> "Composed":
    from psycopg import sql

    return _sql(
        "copy pg_temp.{stage} ({columns}) from stdin (format csv)",
        stage=sql.Identifier(stage),
        columns=_names(columns),
    )


def raise_epoch(target: TableName) -> "Composed":
    """Raise the epoch, which waits for a commit in progress and fences every earlier writer."""
    return _sql(
        "insert into {progress} as known (target, query, epoch) values (%(target)s, %(query)s, 1) "
        "on conflict (target) do update set epoch = known.epoch + 1 returning query, epoch, run",
        progress=target.progress.sql,
    )


# -- creating and checking ------------------------------------------------------------------------------------


def resolve(connection: Any, target: TableName) -> TableName:
    """Return the name with its schema: the schema of the existing table, or the one for a new table."""
    if target.schema is not None:
        return target
    found = connection.execute(
        "select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where c.relname = %s and pg_table_is_visible(c.oid)",
        (target.name,),
    ).fetchone()
    (schema,) = found or connection.execute("select current_schema()").fetchone()
    if schema is None:
        raise InvalidError(
            f"cannot find the schema of table {target}: the search path names no schema that exists",
            hint="name the schema, as in 'schema.table'",
        )
    return TableName(schema, target.name)


def ensure_progress(connection: Any, target: TableName) -> None:
    """Create the progress table unless it exists, so that a role without the right to create tables can write."""
    found = connection.execute("select to_regclass(%s)", (target.progress.sql.as_string(connection),)).fetchone()
    if found[0] is not None:
        return
    connection.execute(
        _sql(
            "create table {progress} (target text primary key, query text not null, run text, "
            "batch bigint, epoch bigint not null, past text[] not null default '{{}}', "
            "changed_at timestamptz not null default now())",
            progress=target.progress.sql,
        )
    )


def ensure_table(connection: Any, stream: Stream, target: TableName) -> tuple[TableShape, bool]:
    """Create the table, or check that the stream fits the existing one; also return whether it is new."""
    found = connection.execute(
        "select a.attname, t.typname, a.attnotnull and not a.atthasdef and a.attidentity = '' "
        "from pg_attribute a join pg_type t on t.oid = a.atttypid "
        "where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped",
        (target.sql.as_string(connection),),
    ).fetchall()
    version = connection.info.server_version
    if found:
        attempt = f"cannot write {stream.query!r} to table {target}"
        check_columns(stream, attempt, column_type, [ExistingColumn(*column) for column in found])
        nulls_are_equal = _check_key(connection, stream, target, attempt) if stream.key else True
    else:
        nulls_are_equal = version >= _NULLS_SINCE
        _create(connection, stream, target, nulls_are_equal=nulls_are_equal)
    shape = TableShape(
        target=target,
        columns=tuple(stream.schema.names),
        key=stream.key,
        nulls_are_equal=nulls_are_equal,
        has_merge=version >= _MERGE_SINCE,
    )
    return shape, not found


def _create(connection: Any, stream: Stream, target: TableName, *, nulls_are_equal: bool) -> None:
    from psycopg import sql

    parts = []
    for column in stream.schema:
        kind = column_type(column.type)
        assert kind is not None  # check_stream has passed
        parts.append(_sql("{name} {kind}", name=sql.Identifier(column.name), kind=sql.SQL(kind.name)))
    if stream.key:
        nulls = "unique nulls not distinct" if nulls_are_equal else "unique"
        parts.append(_sql("{nulls} ({key})", nulls=sql.SQL(nulls), key=_names(stream.key)))
    connection.execute(_sql("create table {table} ({parts})", table=target.sql, parts=sql.SQL(", ").join(parts)))


def _check_key(connection: Any, stream: Stream, target: TableName, attempt: str) -> bool:
    """Find the unique index over exactly the key columns; return whether it treats nulls as equal or has none."""
    equal = "i.indnullsnotdistinct" if connection.info.server_version >= _NULLS_SINCE else "false"
    found = connection.execute(
        f"select i.indisprimary or {equal}, array_agg(a.attname::text), bool_and(a.attnotnull) from pg_index i "
        "join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey[:i.indnkeyatts - 1]) "
        "where i.indrelid = to_regclass(%s) and i.indisunique and i.indpred is null and i.indexprs is null "
        f"group by i.indexrelid, i.indisprimary, {equal}",
        (target.sql.as_string(connection),),
    ).fetchall()
    fitting = [equal or never_null for equal, names, never_null in found if sorted(names) == sorted(stream.key)]
    if not fitting:
        raise no_unique_index(stream, attempt, [names for _, names, _ in found])
    return any(fitting)


def has_rows(connection: Any, target: TableName) -> bool:
    """Return whether the table has any rows."""
    return bool(connection.execute(_sql("select exists (select from {table})", table=target.sql)).fetchone()[0])


def sort_by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Sort rows by the key columns that Arrow can order, so that the server scans its index once."""
    plain = [name for name in key if not pa.types.is_nested(rows.schema.field(name).type)]
    return rows.sort_by([(name, "ascending") for name in plain]) if plain else rows


def find_null_key(rows: pa.Table, key: Sequence[str]) -> dict[str, Any] | None:
    """Return the first row with a null in a key column; None if there is none."""
    for name in key:
        if rows.column(name).null_count:
            index = rows.column(name).is_null().index(True).as_py()
            return dict(rows.slice(index, 1).to_pylist()[0])
    return None
