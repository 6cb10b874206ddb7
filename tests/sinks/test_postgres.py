"""The PostgreSQL sink on a real server: the contract, and failures of the server and the connection."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

import headwater as hw
from headwater.errors import ConflictError, InvalidError, RefusedError, UnavailableError
from headwater.sink import Batch, Stream
from headwater.testing.sink_contract import Place, SinkContract, batch_of, json_form, stream_of, table
from support.postgres import PostgresServer
from support.tcp_proxy import FOREVER, Cut

_numbers = count()
CUTS = 12


def new_name() -> str:
    return f"results_{next(_numbers)}"


def rows_of(dsn: str, name: str, stream: Stream) -> list[dict[str, Any]]:
    columns = sql.SQL(", ").join(map(sql.Identifier, stream.schema.names))
    with psycopg.connect(dsn) as db:
        if db.execute("select to_regclass(%s)", (name,)).fetchone() == (None,):
            return []
        db.execute("set timezone to 'UTC'")
        found = db.execute(sql.SQL("select {} from {}").format(columns, sql.Identifier(name))).fetchall()
    singles = [f.type == pa.float32() for f in stream.schema]
    return [
        dict(zip(stream.schema.names, (float(np.float32(v)) if s and v is not None else v
                                       for s, v in zip(singles, row, strict=True)), strict=True))
        for row in found
    ]  # fmt: skip


def through(cut: Cut, name: str) -> hw.Postgres:
    return hw.Postgres(f"postgresql://postgres@127.0.0.1:{cut.port}/postgres", table=name)


def cuts(server: PostgresServer, name: str, stream: Stream) -> Iterator[Callable[[Batch], None]]:
    """Yield writes whose connection is cut after some bytes, sent or received."""
    sizes: dict[str, int] = {}

    def write(direction: str, part: float, batch: Batch) -> None:
        with Cut(server.port) as cut, closing(through(cut, name).open(stream)) as writer:
            cut.arm(direction, FOREVER if not sizes else int(sizes[direction] * part))
            writer.write(batch)
            sizes.update(cut.passed)

    yield lambda batch: write("up", 1.0, batch)
    assert sizes["up"] > 0 < sizes["down"]
    for n in range(CUTS):
        yield lambda batch, part=(n + 0.9) / CUTS: write("up", part, batch)
        yield lambda batch, part=n / CUTS: write("down", part, batch)


class TestPostgres(SinkContract):
    key_types = (*SinkContract.key_types, "tinyint", "double", "timestamp_ntz", "binary", "array")

    @pytest.fixture
    def new_place(self, postgres: PostgresServer) -> Callable[[], Place]:
        def make() -> Place:
            name = new_name()
            return Place(
                sink=hw.Postgres(postgres.dsn, table=name),
                read=lambda stream: rows_of(postgres.dsn, name, stream),
                interruptions=lambda stream: cuts(postgres, name, stream),
            )

        return make

    def kept(self, value: Any, kind: pa.DataType) -> Any:
        return json_form(value, kind) if pa.types.is_nested(kind) else value


def test_the_server_is_killed_while_it_commits(postgres: PostgresServer) -> None:
    """After a retry the batch is written once, no matter whether the first commit happened."""
    name, stream = new_name(), stream_of()
    sink = hw.Postgres(postgres.dsn, table=name)
    written: list[tuple[str, int]] = []
    for number in range(6):
        rows = [(f"{number}", n) for n in range(2000)]
        batch = batch_of(number, [(k, v, 1) for k, v in rows], signed=False)
        with closing(sink.open(stream)) as writer:
            killer = threading.Timer(0.004 * number, postgres.kill)
            killer.start()
            with suppress(UnavailableError):
                writer.write(batch)
            killer.join()
        with pytest.raises(UnavailableError):
            sink.open(stream)
        postgres.start()
        with closing(sink.open(stream)) as writer:
            writer.write(batch)
        written += rows
    found = [(row["k"], row["v"]) for row in rows_of(postgres.dsn, name, stream)]
    assert sorted(found) == sorted(written)


def test_a_lost_response_to_the_commit_does_not_repeat_the_batch(postgres: PostgresServer) -> None:
    name, stream, batch = new_name(), stream_of(), batch_of(0, [("a", 1, 1)], signed=False)
    with Cut(postgres.port) as cut, closing(through(cut, name).open(stream)) as writer:
        cut.arm("down", FOREVER)
        writer.write(batch)
        answers = cut.passed["down"]
        cut.arm("down", answers - 1)
        with pytest.raises(UnavailableError):
            writer.write(batch_of(1, [("b", 1, 1)], signed=False))
    with closing(hw.Postgres(postgres.dsn, table=name).open(stream)) as writer:
        assert writer.write(batch_of(1, [("b", 1, 1)], signed=False)) is False
    assert len(rows_of(postgres.dsn, name, stream)) == 2


def test_opening_waits_for_a_commit_in_progress(postgres: PostgresServer) -> None:
    """The writer is gone and its transaction is still open: only its end decides whether the batch is written."""
    name, stream = new_name(), stream_of()
    sink = hw.Postgres(postgres.dsn, table=name)
    sink.open(stream).close()
    with psycopg.connect(postgres.dsn) as db:
        db.execute("select * from headwater_progress where target = %s for update", (name,))
        opened = threading.Event()
        opener = threading.Thread(target=lambda: (sink.open(stream).close(), opened.set()))
        opener.start()
        assert not opened.wait(0.3)
        db.commit()
        opener.join()
        assert opened.is_set()


def test_an_existing_table_may_have_more_columns(postgres: PostgresServer) -> None:
    name, stream = new_name(), stream_of(key="k", changes=True)
    with psycopg.connect(postgres.dsn) as db:
        db.execute(f"create table {name} (id bigint generated always as identity, v numeric not null, "
                   "k varchar(10) primary key, at timestamptz default now())")  # fmt: skip
    with closing(hw.Postgres(postgres.dsn, table=name).open(stream)) as writer:
        writer.write(batch_of(0, [("a", 1, 1), ("b", 2, 1)]))
        writer.write(batch_of(1, [("a", 1, -1), ("b", 3, 1)]))
    assert rows_of(postgres.dsn, name, stream) == [{"k": "b", "v": 3}]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("k text primary key, v text", "its column 'v' is text, the rows have bigint"),
        ("k text primary key", "it has no column 'v' \\(bigint\\)"),
        ("k text primary key, v bigint, w text not null", "its column 'w' must not be null"),
        ("k text, v bigint primary key", "no unique index on these columns; its unique indexes: \\(v\\)"),
        ("k text, v bigint", "no unique index on these columns; its unique indexes: none"),
    ],
)
def test_an_unsuitable_table_is_refused(postgres: PostgresServer, columns: str, message: str) -> None:
    name = new_name()
    with psycopg.connect(postgres.dsn) as db:
        db.execute(f"create table {name} ({columns})")  # type: ignore[call-overload]
    with pytest.raises(InvalidError, match=message):
        hw.Postgres(postgres.dsn, table=name).open(stream_of(key="k"))


def test_foreign_rows_are_not_touched(postgres: PostgresServer) -> None:
    name = new_name()
    with psycopg.connect(postgres.dsn) as db:
        db.execute(f"create table {name} (k text, v bigint)")  # type: ignore[call-overload]
        db.execute(f"insert into {name} values ('mine', 1)")  # type: ignore[call-overload]
    with pytest.raises(
        InvalidError, match=f"'public.{name}': it has rows, and 'public.headwater_progress' has no record"
    ):
        hw.Postgres(postgres.dsn, table=name).open(stream_of())


def test_a_table_belongs_to_one_query(postgres: PostgresServer) -> None:
    sink = hw.Postgres(postgres.dsn, table=new_name())
    sink.open(stream_of()).close()
    with pytest.raises(ConflictError, match=r"belongs to 'app\.q'"):
        sink.open(Stream(query="app.other", schema=stream_of().schema))


def test_a_refused_row_is_named(postgres: PostgresServer) -> None:
    name, stream = new_name(), stream_of(key="k")
    with psycopg.connect(postgres.dsn) as db:
        db.execute(f"create table {name} (k varchar(3) primary key, v bigint constraint positive check (v > 0))")  # type: ignore[call-overload]
    with closing(hw.Postgres(postgres.dsn, table=name).open(stream)) as writer:
        with pytest.raises(InvalidError, match=f"'positive' of table '{name}'.*Failing row contains \\(a, -5\\)"):
            writer.write(batch_of(0, [("b", 1, 1), ("a", -5, 1)], signed=False))
        with pytest.raises(
            InvalidError, match=r"too long .* line 2, column k: \"long\"; row: {'k': 'long', 'v': 2}"
        ):
            writer.write(batch_of(0, [("long", 2, 1), ("b", 1, 1)], signed=False))
        with pytest.raises(InvalidError, match="invalid byte sequence"):
            writer.write(batch_of(0, [("\0", 1, 1)], signed=False))
        with pytest.raises(RefusedError, match="'positive'"):
            writer.rehearse(batch_of(0, [("a", -5, 1)], signed=False))
        assert writer.write(batch_of(0, [("b", 1, 1)], signed=False)), "the writer continues"
    assert rows_of(postgres.dsn, name, stream) == [{"k": "b", "v": 1}]


def test_a_rehearsal_checks_deferred_constraints(postgres: PostgresServer) -> None:
    name, stream = new_name(), stream_of()
    with psycopg.connect(postgres.dsn) as db:
        db.execute(f"create table {name} (k text unique deferrable initially deferred, v bigint)")  # type: ignore[call-overload]
    with closing(hw.Postgres(postgres.dsn, table=name).open(stream)) as writer:
        writer.write(batch_of(0, [("a", 1, 1)], signed=False))
        for attempt in (writer.rehearse, writer.write):
            with pytest.raises(RefusedError, match="duplicate key"):
                attempt(batch_of(1, [("a", 2, 1)], signed=False))


def test_null_keys_need_an_index_with_equal_nulls(postgres: PostgresServer) -> None:
    name, stream = new_name(), stream_of(key="k")
    with psycopg.connect(postgres.dsn) as db:
        db.execute(f"create table {name} (k text unique, v bigint)")  # type: ignore[call-overload]
    refused = pytest.raises(InvalidError, match=r"its key is null.*treats nulls as different")
    with closing(hw.Postgres(postgres.dsn, table=name).open(stream)) as writer, refused:
        writer.write(batch_of(0, [(None, 1, 1)], signed=False))


def test_a_refused_login_is_invalid_and_an_unreachable_server_unavailable(postgres: PostgresServer) -> None:
    address = f"127.0.0.1:{postgres.port}"
    with pytest.raises(InvalidError, match='"nobody" does not exist'):
        hw.Postgres(f"postgresql://nobody:secret@{address}/postgres", table="t").open(stream_of())
    with pytest.raises(InvalidError, match="connect to PostgreSQL"):
        hw.Postgres("nonsense", table="t").open(stream_of())
    with pytest.raises(UnavailableError):
        hw.Postgres("postgresql://postgres@127.0.0.1:1/postgres", table="t").open(stream_of())
    assert "secret" not in repr(hw.Postgres("postgresql://nobody:secret@host/db", table="t"))


def test_a_role_without_the_right_to_create_tables_uses_existing_ones(postgres: PostgresServer) -> None:
    name, stream = new_name(), stream_of(key="k", changes=True)
    hw.Postgres(postgres.dsn, table=name).open(stream).close()
    with psycopg.connect(postgres.dsn) as db:
        db.execute(f"create role {name} login")  # type: ignore[call-overload]
        db.execute(f"grant select, insert, update, delete on {name}, headwater_progress to {name}")  # type: ignore[call-overload]
    dsn = postgres.dsn.replace("postgres@", f"{name}@")
    with closing(hw.Postgres(dsn, table=name).open(stream)) as writer:
        writer.write(batch_of(0, [("a", 1, 1), ("b", 2, 1)]))
        writer.write(batch_of(1, [("a", 1, -1)]))
    assert rows_of(postgres.dsn, name, stream) == [{"k": "b", "v": 2}]
    with pytest.raises(InvalidError, match="permission denied for schema public"):
        hw.Postgres(dsn, table=new_name()).open(stream)


@pytest.mark.parametrize("name", ["", "a.b.c", 'quote"', ".", "x" * 64])
def test_an_invalid_table_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidError, match="as a table name: expected"):
        hw.Postgres("postgresql://127.0.0.1/postgres", table=name).open(stream_of())


def test_a_table_in_a_schema(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.dsn) as db:
        db.execute('create schema if not exists "Sales"')
    sink = hw.Postgres(postgres.dsn, table="Sales.Total")
    schema = pa.schema({"Key": pa.string(), 'odd "name"': pa.int32()})
    with closing(sink.open(Stream(query="app.q", schema=schema, key=("Key",)))) as writer:
        writer.write(Batch(run="r", number=0, rows=table(schema, [("a", 1)])))
    with psycopg.connect(postgres.dsn) as db:
        assert db.execute('select * from "Sales"."Total"').fetchall() == [("a", 1)]
        assert db.execute('select target, query, run, batch from "Sales".headwater_progress').fetchall() == [
            ("Total", "app.q", "r", 0)
        ]
