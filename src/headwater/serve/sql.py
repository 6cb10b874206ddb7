"""Federated SQL on DuckDB: views, topics, Parquet files and PostgreSQL tables in one statement.

    revenue                  a view; all views of a statement are read as of the same moment
    topic.orders             all records of a topic: key, value, partition, offset, timestamp
    pg.customers             a PostgreSQL table; with its schema: pg.sales.customers
    'out/*.parquet'          files, read by DuckDB itself

The tables that a statement names are read into memory, whole, before it runs; no others are read. Nothing can be
written. DuckDB loads no extension from the network, which is why this module reads the views and PostgreSQL.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import InvalidError
from headwater.json_values import json_part, or_null
from headwater.postgresql import connect, explained
from headwater.record import EARLIEST, LATEST, TopicPartition
from headwater.store.arrow import rows_as_arrow
from headwater.store.location import check_address
from headwater.store.views import ViewStore
from headwater.transmit.client.client import Client
from headwater.transmit.records.to_arrow import to_arrow

if TYPE_CHECKING:
    import duckdb

TOPICS, POSTGRES = "topic", "pg"
_ROWS_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSources:
    """The addresses of the view store, the log and PostgreSQL; None if there is none."""

    store: Path | str | None = None
    servers: str | None = None
    postgres: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The names of the columns, and the rows as JSON values."""

    columns: list[str]
    rows: list[list[Any]]


def run_sql(statement: str, places: SqlSources) -> Result:
    """Run one statement that only reads; raise InvalidError if it cannot be run."""
    duckdb = _duckdb()
    config = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",  # A table name must never refer to a Python variable.
    }
    with closing(duckdb.connect(config=config)) as db:
        try:
            _fill(db, named_tables(db, statement), places)
            found = db.sql(statement).to_arrow_table()
        except duckdb.Error as error:
            raise InvalidError(f"cannot run the statement: {error}") from error
    # Two columns may have the same name, so rows are lists.
    columns = [[or_null(json_part(c.type))(value) for value in c.to_pylist()] for c in found.columns]
    rows = [list(row) for row in zip(*columns, strict=True)] if columns else []
    return Result(found.column_names, rows)


def named_tables(db: "duckdb.DuckDBPyConnection", statement: str) -> set[tuple[str, ...]]:
    """Return the tables that a statement names, split at dots; raise InvalidError unless it only reads."""
    ((text,),) = db.execute("select json_serialize_sql(?)", [statement]).fetchall()
    parsed = json.loads(text)
    if parsed.get("error"):
        raise InvalidError(
            f"cannot run the statement: {parsed['error_message']}",
            hint="give one statement that only reads, such as `select ... from ...`",
        )
    if len(parsed["statements"]) != 1:
        raise InvalidError(f"cannot run {len(parsed['statements'])} statements at once: expected one")
    return set(_tables(parsed))


def _tables(node: Any) -> Iterator[tuple[str, ...]]:
    if isinstance(node, list):
        for each in node:
            yield from _tables(each)
    elif isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            parts = (node["catalog_name"], node["schema_name"], node["table_name"])
            yield tuple(part for part in parts if part)
        for each in node.values():
            yield from _tables(each)


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise InvalidError(
            "cannot run SQL: DuckDB is not installed", hint="pip install 'headwater[sql]'"
        ) from error
    return duckdb


def _fill(db: "duckdb.DuckDBPyConnection", names: set[tuple[str, ...]], places: SqlSources) -> None:
    """Read the named tables and create them under these names in DuckDB."""
    for catalog, read in ((TOPICS, _read_topics), (POSTGRES, _read_postgres)):
        wanted = sorted(name for name in names if len(name) > 1 and name[0] == catalog)
        if wanted:
            db.execute(f"attach ':memory:' as {catalog}").fetchall()
            for name, table in read(wanted, places):
                _put(db, name, table)
    plain = sorted(name[0] for name in names if len(name) == 1)
    if plain and places.store is not None:
        for view, table in _read_views(plain, places.store):
            _put(db, (view,), table)


def _put(db: "duckdb.DuckDBPyConnection", name: Sequence[str], table: pa.Table) -> None:
    quoted = [f'"{part.replace(chr(34), chr(34) * 2)}"' for part in name]
    if len(quoted) == 3:
        db.execute(f"create schema if not exists {'.'.join(quoted[:2])}").fetchall()
    db.register("headwater_input", table)
    db.execute(f"create table {'.'.join(quoted)} as select * from headwater_input").fetchall()
    db.unregister("headwater_input")


def _read_views(names: Sequence[str], place: Path | str) -> Iterator[tuple[str, pa.Table]]:
    """Yield the views among the names; other names may be files, or be defined by the statement itself."""
    with closing(ViewStore(place, read_only=True)) as store, store.database.snapshot() as db:
        known = {shape.name.lower(): shape for shape in store.views()}
        for name in names:
            if name.lower() in known:
                yield name, rows_as_arrow(db, known[name.lower()])


def _read_topics(names: Sequence[Sequence[str]], places: SqlSources) -> Iterator[tuple[Sequence[str], pa.Table]]:
    if places.servers is None:
        raise InvalidError("cannot read topics: no address of the log given", hint="--bootstrap-servers HOST:PORT")
    with Client(places.servers) as client:
        known = client.topics()
        for name in names:
            topic = ".".join(name[1:])
            if topic not in known:
                raise InvalidError(f"there is no topic {topic!r} at {places.servers}; quote names with dots")
            yield name, _read_topic(client, [TopicPartition(topic, n) for n in known[topic].leaders])


def _read_topic(client: Client, partitions: Sequence[TopicPartition]) -> pa.Table:
    start, end = client.offsets(partitions, EARLIEST), client.offsets(partitions, LATEST)
    batches = [to_arrow(b"", partitions[0], 0, 0)]
    for partition in partitions:
        at = start[partition]
        while at < end[partition]:
            data, next_offset = client.read(partition, at)
            batches.append(to_arrow(data, partition, at, end[partition]))
            at = next_offset
    found = pa.Table.from_batches(batches).select(["key", "value", "partition", "offset", "timestamp"])
    for number, name in enumerate(("key", "value")):
        found = found.set_column(number, name, _text(found.column(name)))
    return found


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column as text if every value is valid UTF-8, otherwise unchanged."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return column


def _read_postgres(names: Sequence[Sequence[str]], places: SqlSources) -> Iterator[tuple[Sequence[str], pa.Table]]:
    if places.postgres is None:
        raise InvalidError(
            "cannot read PostgreSQL tables: no address of PostgreSQL given",
            hint="--pg postgresql://USER@HOST/DATABASE, or HEADWATER_PG",
        )
    from psycopg import sql

    with closing(connect(check_address(places.postgres), for_whom="headwater sql")) as connection:
        for name in names:
            wanted = ".".join(name[1:])
            select = sql.SQL("select * from {}").format(sql.Identifier(*name[1:]))
            with (
                explained(f"read table {wanted!r} of PostgreSQL"),
                connection.transaction(),
                connection.cursor("headwater_sql") as cursor,
            ):
                cursor.execute(select)
                found = _fetch(cursor)
            yield name, found


def _fetch(cursor: Any) -> pa.Table:
    names = [column.name for column in cursor.description]
    columns: list[list[Any]] = [[] for _ in names]
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        for column, values in zip(columns, zip(*rows, strict=True), strict=True):
            column += values
    return pa.table([_array(column) for column in columns], names=names)


def _array(values: Sequence[Any]) -> pa.Array:
    """Return the values as an Arrow array; values without an Arrow type, such as network addresses, as text."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return pa.array([None if value is None else str(value) for value in values])
