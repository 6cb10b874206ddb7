"""Tables of the PostgreSQL sink: their names, columns and unique keys, and the statements on them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import InvalidError
from headwater.sink import Stream
from headwater.sinks.net_changes import check_changes_have_key

if TYPE_CHECKING:
    from psycopg.sql import Composed

PROGRESS = "headwater_progress"
_NAME = re.compile(r"[^.\"\x00]+")
_NULLS_SINCE = _MERGE_SINCE = 150000
"""The server's versions from which a unique index can take nulls for equal, and from which there is MERGE."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name with its schema; without one it is the first of the search path."""

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
    """Read `table` or `schema.table`."""
    parts = text.split(".")
    if len(parts) > 2 or not all(_NAME.fullmatch(part) and len(part.encode()) <= 63 for part in parts):
        raise InvalidError(f"cannot take {text!r} for a table: write 'table' or 'schema.table'")
    return TableName(parts[0] if len(parts) == 2 else None, parts[-1])


# -- types ----------------------------------------------------------------------------------------------------


_TEXTS = ("text", "varchar", "bpchar", "citext", "name", "uuid", "json", "jsonb", "xml", "inet", "cidr")
_INTEGERS = ("int2", "int4", "int8", "numeric")


def column_type(kind: pa.DataType) -> tuple[str, tuple[str, ...]] | None:
    """The type that a new column gets, and the names of those that an existing one may have; None for no type."""
    is_ = pa.types
    if is_.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})", ("numeric",)
    if is_.is_timestamp(kind):
        return ("timestamptz", ("timestamptz",)) if kind.tz else ("timestamp", ("timestamp",))
    if is_.is_nested(kind):
        return "jsonb", ("jsonb", "json", "text", "varchar")
    for matches, new, existing in (
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
            return new, existing
    return None


def check_stream(stream: Stream, table: str) -> None:
    """Raise an InvalidError for what no table could hold."""
    attempt = f"cannot write {stream.query!r} to table {table!r}"
    for field in stream.schema:
        if column_type(field.type) is None:
            raise InvalidError(
                f"{attempt}: column {field.name!r} is {field.type}, for which PostgreSQL has no type here",
                hint=f"cast it in {stream.query!r}, to a string for instance",
            )
        if len(field.name.encode()) > 63:
            raise InvalidError(
                f"{attempt}: the name of column {field.name!r} is longer than PostgreSQL's 63 bytes"
            )
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
    """A table that was made or checked, and what can be done to it."""

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
        """Put the staged rows: by MERGE, which joins, or else by a look into the index for each."""
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

        # The index of the key is used for `=` only.
        same = "d.{name} is not distinct from t.{name}" if nulls else "d.{name} = t.{name}"
        return _sql(
            "delete from {table} t using pg_temp.{stage} d where {same}",
            table=self.target.sql,
            stage=sql.Identifier(stage),
            same=_same(same, self.key),
        )


def make_stage(stage: str, target: TableName, columns: Sequence[str]) -> "Composed":
    """A table of this connection's own, emptied by each commit, with the types of the target's columns."""
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
    """Waits for a commit that is under way, and makes every writer from before a stranger."""
    return _sql(
        "insert into {progress} as known (target, query, epoch) values (%(target)s, %(query)s, 1) "
        "on conflict (target) do update set epoch = known.epoch + 1 returning query, epoch, run",
        progress=target.progress.sql,
    )


# -- making and checking --------------------------------------------------------------------------------------


def resolve(connection: Any, target: TableName) -> TableName:
    """The name with its schema: that of the table that is meant, or the one where a new table would go."""
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
            f"cannot tell in which schema table {target} is: the search path names none that exists"
        )
    return TableName(schema, target.name)


def ensure_progress(connection: Any, target: TableName) -> None:
    """Make the table of progress; who may not create tables uses one that is there."""
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
    """Make the table or check that the stream fits the one that is there; and whether it is new."""
    columns = tuple(stream.schema.names)
    found = connection.execute(
        "select a.attname, t.typname, a.attnotnull and not a.atthasdef and a.attidentity = '' "
        "from pg_attribute a join pg_type t on t.oid = a.atttypid "
        "where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped",
        (target.sql.as_string(connection),),
    ).fetchall()
    version = connection.info.server_version
    if found:
        _check_columns(
            stream, target, {name: kind for name, kind, _ in found}, [n for n, _, must in found if must]
        )
        nulls_are_equal = _check_key(connection, stream, target) if stream.key else True
    else:
        nulls_are_equal = version >= _NULLS_SINCE
        _create(connection, stream, target, nulls_are_equal=nulls_are_equal)
    shape = TableShape(
        target=target,
        columns=columns,
        key=stream.key,
        nulls_are_equal=nulls_are_equal,
        has_merge=version >= _MERGE_SINCE,
    )
    return shape, not found


def _create(connection: Any, stream: Stream, target: TableName, *, nulls_are_equal: bool) -> None:
    from psycopg import sql

    parts = []
    for column in stream.schema:
        types = column_type(column.type)
        assert types is not None  # check_stream has looked
        parts.append(_sql("{name} {kind}", name=sql.Identifier(column.name), kind=sql.SQL(types[0])))
    if stream.key:
        nulls = "unique nulls not distinct" if nulls_are_equal else "unique"
        parts.append(_sql("{nulls} ({key})", nulls=sql.SQL(nulls), key=_names(stream.key)))
    connection.execute(_sql("create table {table} ({parts})", table=target.sql, parts=sql.SQL(", ").join(parts)))


def _check_columns(stream: Stream, target: TableName, types: dict[str, str], must: list[str]) -> None:
    wrong = []
    for column in stream.schema:
        known = column_type(column.type)
        assert known is not None  # check_stream has looked
        if column.name not in types:
            wrong.append(f"it has no column {column.name!r} ({known[0]})")
        elif types[column.name] not in known[1]:
            wrong.append(f"its column {column.name!r} is {types[column.name]}, the rows have {known[0]}")
    wrong += [
        f"its column {name!r} must not be null and the rows have no such column"
        for name in must
        if name not in stream.schema.names
    ]
    if wrong:
        raise InvalidError(
            f"cannot write {stream.query!r} to table {target}: {'; '.join(wrong)}",
            hint="alter the table, name another one, or drop it to have it made anew",
        )


def _check_key(connection: Any, stream: Stream, target: TableName) -> bool:
    """Find the unique index over just these columns; True if nulls are equal there, or cannot be."""
    equal = "i.indnullsnotdistinct" if connection.info.server_version >= _NULLS_SINCE else "false"
    found = connection.execute(
        f"select i.indisprimary or {equal}, array_agg(a.attname::text), bool_and(a.attnotnull) from pg_index i "
        "join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey[:i.indnkeyatts - 1]) "
        "where i.indrelid = to_regclass(%s) and i.indisunique and i.indpred is null and i.indexprs is null "
        f"group by i.indexrelid, i.indisprimary, {equal}",
        (target.sql.as_string(connection),),
    ).fetchall()
    fitting = [equal or never for equal, names, never in found if sorted(names) == sorted(stream.key)]
    if not fitting:
        keys = ", ".join(f"({', '.join(names)})" for _, names, _ in found) or "none"
        raise InvalidError(
            f"cannot write {stream.query!r} to table {target}: its key is ({', '.join(stream.key)}), and the "
            f"table has no unique index on that; it has {keys}",
            hint="create such an index, or name another table",
        )
    return any(fitting)


def check_empty(connection: Any, stream: Stream, target: TableName) -> None:
    """Rows that no batch of the query has brought would be lost with its next new run."""
    if connection.execute(_sql("select exists (select from {table})", table=target.sql)).fetchone()[0]:
        raise InvalidError(
            f"cannot write {stream.query!r} to table {target}: it has rows that {target.progress} does not know",
            hint="empty the table, name another one, or bring the progress back with the rows it belongs to",
        )


def in_order(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows by key, as far as Arrow can order it: so the server goes through its index once."""
    plain = [name for name in key if not pa.types.is_nested(rows.schema.field(name).type)]
    return rows.sort_by([(name, "ascending") for name in plain]) if plain else rows


def null_keys(rows: pa.Table, key: Sequence[str]) -> dict[str, Any] | None:
    """A row with a null in its key, if there is one."""
    for name in key:
        if rows.column(name).null_count:
            place = rows.column(name).is_null().index(True).as_py()
            return dict(rows.slice(place, 1).to_pylist()[0])
    return None
