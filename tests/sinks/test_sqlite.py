"""The SQLite sink: the contract with a failure at every statement, and behaviour that is specific to SQLite."""

import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import pyarrow as pa
import pytest

import headwater as hw
from headwater.errors import ConflictError, InvalidError, RefusedError, UnavailableError
from headwater.sink import Batch, Stream
from headwater.testing.sink_contract import Place, SinkContract, batch_of, json_form, stream_of


class Failing(sqlite3.Connection):
    """Fails at a statement: before it runs, or after it ran but before the caller gets the result."""

    left = 10**9
    done_first = False

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        return self._count(super().execute, *arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        return self._count(super().executemany, *arguments)

    def _count(self, execute: Callable[..., sqlite3.Cursor], *arguments: Any) -> sqlite3.Cursor:
        Failing.left -= 1
        if Failing.left < 0 or (Failing.left == 0 and not Failing.done_first):
            raise sqlite3.OperationalError("the connection failed")
        result = execute(*arguments)
        if Failing.left == 0:
            raise sqlite3.OperationalError("the connection failed")
        return result


def failures(sink: hw.Sqlite, stream: Stream) -> Iterator[Callable[[Batch], None]]:
    connect = sqlite3.connect
    finished = False

    def write(at: int, done_first: bool, batch: Batch) -> None:
        nonlocal finished
        with mock.patch("sqlite3.connect", lambda *a, **k: connect(*a, **k, factory=Failing)):
            Failing.left = 10**9
            writer = sink.open(stream)
            Failing.left, Failing.done_first = at, done_first
            try:
                writer.write(batch)
                finished = True
            finally:
                writer.close()

    at = 0
    while not finished:
        at += 1
        for done_first in (False, True):
            yield partial(write, at, done_first)
    assert at > 4


def rows_of(sink: hw.Sqlite, stream: Stream) -> list[dict[str, Any]]:
    if not Path(sink.path).exists():
        return []
    with closing(sqlite3.connect(sink.path)) as db:
        if not db.execute("select 1 from sqlite_master where name = ?", (sink.table,)).fetchone():
            return []
        names = ", ".join(f'"{name}"' for name in stream.schema.names)
        quoted = sink.table.replace('"', '""')
        found = db.execute(f'select {names} from "{quoted}"').fetchall()
    nested = [pa.types.is_nested(field.type) for field in stream.schema]
    return [
        {
            name: json.loads(value) if is_nested and value is not None else value
            for name, is_nested, value in zip(stream.schema.names, nested, row, strict=True)
        }
        for row in found
    ]


class SqliteContract(SinkContract):
    key_types = (*SinkContract.key_types, "tinyint", "double", "timestamp_ntz", "binary", "array", "map")

    def kept(self, value: Any, kind: pa.DataType) -> Any:
        if pa.types.is_boolean(kind):
            return int(value)
        if pa.types.is_decimal(kind):
            return f"{value:.{kind.scale}f}"
        if pa.types.is_binary(kind) or (isinstance(value, float) and not math.isnan(value)):
            return value
        return json_form(value, kind)


class TestSqlite(SqliteContract):
    @pytest.fixture
    def new_place(self, tmp_path: Path) -> Callable[[], Place]:
        def make() -> Place:
            sink = hw.Sqlite(tmp_path / f"{uuid4()}.db", table="results")
            return Place(
                sink=sink,
                read=lambda stream: rows_of(sink, stream),
                interruptions=lambda stream: failures(sink, stream),
            )

        return make


def test_a_killed_process_leaves_no_partial_batch(tmp_path: Path) -> None:
    """In an existing file, with its own journal mode."""
    sink = hw.Sqlite(str(tmp_path / "all.db"), table='results of "tea"')
    with closing(sqlite3.connect(sink.path)) as db:
        db.execute("create table others (x)")
    place = Place(sink=sink, read=lambda stream: rows_of(sink, stream))
    SqliteContract().test_an_interrupted_write_is_whole_or_nothing_and_can_be_done_again(lambda: place)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("k text primary key, v text", "its column 'v' is text, the rows have integer"),
        ("k text primary key", r"it has no column 'v' \(integer\)"),
        ("k text primary key, v integer, w text not null", "its column 'w' must not be null"),
        ("k text, v integer unique", r"no unique index on these columns; its unique indexes: \(v\)"),
        ("k text, v integer", "no unique index on these columns; its unique indexes: none"),
    ],
)
def test_an_unsuitable_table_is_refused(tmp_path: Path, columns: str, message: str) -> None:
    with closing(sqlite3.connect(tmp_path / "t.db")) as db:
        db.execute(f"create table t ({columns})")
    with pytest.raises(InvalidError, match=message):
        hw.Sqlite(tmp_path / "t.db", table="t").open(stream_of(key="k"))


def test_a_suitable_table_is_used(tmp_path: Path) -> None:
    sink = hw.Sqlite(tmp_path / "t.db", table="t")
    with closing(sqlite3.connect(sink.path)) as db:
        db.execute("create table t (n integer default 7, v bigint, k varchar(10) primary key)")
    with closing(sink.open(stream_of(key="k"))) as writer:
        writer.write(batch_of(0, [("a", 1, 1)], signed=False))
    with closing(sqlite3.connect(sink.path)) as db:
        assert db.execute("select * from t").fetchall() == [(7, 1, "a")]


def test_a_refused_row_is_named(tmp_path: Path) -> None:
    sink = hw.Sqlite(tmp_path / "t.db", table="t")
    with closing(sqlite3.connect(sink.path)) as db:
        db.execute("create table t (k text primary key, v integer constraint positive check (v > 0))")
    with closing(sink.open(stream_of(key="k"))) as writer:
        with pytest.raises(InvalidError, match=r"table 't' of .*: CHECK constraint failed: positive; row: .*-5"):
            writer.write(batch_of(0, [("b", 1, 1), ("a", -5, 1), ("c", 2, 1)], signed=False))
        with pytest.raises(RefusedError, match="CHECK constraint failed"):
            writer.rehearse(batch_of(0, [("a", -5, 1)], signed=False))
        assert writer.write(batch_of(0, [("b", 1, 1)], signed=False)), "the writer continues"


def test_foreign_rows_are_not_touched(tmp_path: Path) -> None:
    sink = hw.Sqlite(tmp_path / "t.db", table="t")
    with closing(sqlite3.connect(sink.path)) as db, db:
        db.execute("create table t (k text, v integer)")
        db.execute("insert into t values ('mine', 1)")
    with pytest.raises(InvalidError, match="headwater_progress has no record"):
        sink.open(stream_of())


def test_a_table_belongs_to_one_query(tmp_path: Path) -> None:
    sink = hw.Sqlite(tmp_path / "t.db", table="t")
    sink.open(stream_of()).close()
    with pytest.raises(ConflictError, match=r"belongs to 'app\.q'"):
        sink.open(Stream(query="app.other", schema=stream_of().schema))


def test_a_locked_file_is_unavailable_until_the_lock_is_released(tmp_path: Path) -> None:
    sink = hw.Sqlite(tmp_path / "t.db", table="t")
    with (
        mock.patch("headwater.sinks.sqlite._BUSY_S", 0.05),
        closing(sink.open(stream_of())) as writer,
        closing(sqlite3.connect(sink.path, isolation_level=None)) as other,
    ):
        other.execute("begin immediate")
        with pytest.raises(UnavailableError, match="locked"):
            writer.write(batch_of(0, [("a", 1, 1)], signed=False))
        other.execute("rollback")
        assert writer.write(batch_of(0, [("a", 1, 1)], signed=False))


def test_an_impossible_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="there is no folder"):
        hw.Sqlite(tmp_path / "missing" / "t.db", table="t").open(stream_of())
    with pytest.raises(InvalidError, match="names starting with 'sqlite_' or 'headwater_' are reserved"):
        hw.Sqlite(tmp_path / "t.db", table="headwater_progress").open(stream_of())
    (tmp_path / "text").write_text("this is not a database, and too long to be an empty one " * 10)
    with pytest.raises(InvalidError, match="not a database"):
        hw.Sqlite(tmp_path / "text", table="t").open(stream_of())
    alike = pa.schema({"k": pa.string(), "K": pa.string()})
    with pytest.raises(InvalidError, match="differ only in case, which SQLite ignores: k, K"):
        hw.Sqlite(tmp_path / "t.db", table="t").open(Stream(query="app.q", schema=alike))
