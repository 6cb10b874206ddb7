"""The Delta sink: the contract, and behaviour that is specific to Delta."""

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import headwater as hw
from headwater.errors import ConflictError, InvalidError
from headwater.sink import Batch, Stream
from headwater.sinks import delta
from headwater.testing.sink_contract import Place, SinkContract

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})
PLAIN = Stream(query="shop.totals", schema=SCHEMA)
KEYED = replace(PLAIN, key=("k",), changes=True)


def batch_of(number: int, keys: Any, value: int = 0, run: str = "r") -> Batch:
    keys = list(keys)
    return Batch(run=run, number=number, rows=pa.table({"k": keys, "v": [value] * len(keys)}, schema=SCHEMA))


def rows_in(path: Path) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(str(path)):
        return []
    return pa.table(DeltaTable(path).to_pyarrow_table()).to_pylist()


class TestContract(SinkContract):
    kills = 3

    @pytest.fixture
    def new_place(self, tmp_path: Path) -> Callable[[], Place]:
        def make() -> Place:
            path = tmp_path / str(uuid4())
            return Place(sink=hw.Delta(path), read=lambda stream: rows_in(path))

        return make


def test_small_files_are_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "_COMPACT_EVERY", 10)
    monkeypatch.setattr(delta, "_COMPACT_FILES", 5)
    with closing(hw.Delta(tmp_path).open(PLAIN)) as writer:
        for number in range(25):
            assert writer.write(batch_of(number, [number]))
    assert len(DeltaTable(tmp_path).file_uris()) == 6
    assert sorted(row["k"] for row in rows_in(tmp_path)) == list(range(25))
    with closing(hw.Delta(tmp_path).open(PLAIN)) as writer:
        assert not writer.write(batch_of(24, [24]))


def test_a_writer_that_is_fenced_between_its_check_and_its_commit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, stream in enumerate((PLAIN, KEYED)):
        path = tmp_path / str(n)
        zombie = hw.Delta(path).open(stream)
        zombie.write(batch_of(0, [1, 2]))
        with closing(hw.Delta(path).open(stream)):
            monkeypatch.setattr(zombie, "_check_epoch", lambda table: None)
            with pytest.raises(Exception, match="Concurrent transaction"):
                zombie.write(batch_of(1, [1]))
        assert [row["k"] for row in rows_in(path)] == [1, 2]


def test_a_foreign_table_is_not_changed(tmp_path: Path) -> None:
    write_deltalake(tmp_path, batch_of(0, [1]).rows)
    with pytest.raises(ConflictError, match="was not created by Headwater"):
        hw.Delta(tmp_path).open(PLAIN)
    assert len(rows_in(tmp_path)) == 1


@pytest.mark.parametrize(
    ("schema", "key", "message"),
    [
        ({"a b": pa.int64()}, (), "'a b' has a character"),
        ({"k": pa.duration("us")}, (), "no type for column 'k', duration"),
        ({"k": pa.list_(pa.int64())}, ("k",), "'k' cannot be a key"),
        ({"k": pa.float64()}, ("k",), "'k' cannot be a key"),
        ({"k": pa.int64()}, ("z",), "no column 'z'"),
    ],
)
def test_columns_that_delta_cannot_store_are_refused(
    tmp_path: Path, schema: Any, key: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        hw.Delta(tmp_path / "t").open(Stream(query="q", schema=pa.schema(schema), key=key))
    assert not (tmp_path / "t").exists()


def test_a_missing_package_is_named_with_its_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(InvalidError, match="'deltalake' is missing") as caught:
        hw.Delta(tmp_path).open(PLAIN)
    assert caught.value.hint == "pip install 'headwater[delta]'"


def test_an_impossible_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidError, match=r"Delta table '.*/file/t': .*Not a directory"):
        hw.Delta(tmp_path / "file" / "t").open(PLAIN)
