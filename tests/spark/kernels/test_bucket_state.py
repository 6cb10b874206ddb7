"""A bucket's state in a dictionary in place of Spark's store: writes, reads and refusals."""

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from headwater.errors import InvalidError
from headwater.process.table import Table
from headwater.spark.kernels import bucket_state as state
from headwater.spark.kernels import run_cache as local
from headwater.spark.kernels.bucket_state import BucketState
from headwater.spark.kernels.frames import from_lean, to_bytes, to_lean
from headwater.spark.kernels.run_cache import RunCache

SCHEMA = pl.Schema({"k": pl.String, "v": pl.Int64})


class Value:
    """Stands in for Spark's `ValueState`."""

    def __init__(self) -> None:
        self.value: Any = None

    def get(self) -> Any:
        return self.value

    def update(self, value: Any) -> None:
        self.value = value


class Pieces(dict[Any, Any]):
    """Stands in for Spark's `MapState`."""

    getValue, updateValue, removeKey = dict.__getitem__, dict.__setitem__, dict.__delitem__  # noqa: N815


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(local, "_cache", type(local._cache)())
    return tmp_path / "headwater" / "operator"


def rows(start: int, stop: int, v: int = 0) -> pl.DataFrame:
    return pl.DataFrame({"k": [f"a key of some length {n}" for n in range(start, stop)], "v": v}, schema=SCHEMA)


def initial() -> dict[str, Table]:
    return {"sums": Table.empty(SCHEMA, ["k"])}


def test_saved_state_is_loaded_from_files_or_from_the_store(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(state, "PIECE_ROWS", 1000)
    manifest, pieces = Value(), Pieces()
    bucket = BucketState(manifest, pieces, RunCache("operator"))
    tables, notes = bucket.load(initial())
    assert (len(tables["sums"]), notes) == (0, {})
    bucket.save({"sums": tables["sums"].put(rows(0, 5000))}, {"watermark": 7})
    assert len(pieces) == 5
    assert len(list(folder.iterdir())) == 1  # The run, mapped.
    tables, notes = bucket.load(initial())
    bucket.save({"sums": tables["sums"].put(rows(10, 20, 1))}, notes)
    assert len(pieces) == 6  # A small step writes a small run.
    for file in folder.iterdir():
        file.unlink()
    local._cache.clear()
    tables, notes = BucketState(manifest, pieces, RunCache("operator")).load(initial())
    assert notes == {"watermark": 7}
    assert (
        tables["sums"].rows.sort("k").equals(pl.concat([rows(0, 10), rows(10, 20, 1), rows(20, 5000)]).sort("k"))
    )


def test_merged_runs_are_removed_from_store_and_disk(folder: Path) -> None:
    manifest, pieces = Value(), Pieces()
    bucket = BucketState(manifest, pieces, RunCache("operator"))
    for number in range(4):
        tables, notes = bucket.load(initial())
        bucket.save({"sums": tables["sums"].put(rows(0, 5000, number))}, notes)
    assert (len(pieces), len(list(folder.iterdir()))) == (1, 1)


def test_a_partial_or_foreign_file_is_not_used(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "broken").write_bytes(b"no arrow")
    assert RunCache("operator").find("broken") is None
    assert RunCache("operator").find("missing") is None


def test_another_schema_or_hash_is_refused(monkeypatch: Any) -> None:
    manifest, pieces = Value(), Pieces()
    bucket = BucketState(manifest, pieces, RunCache("operator"))
    bucket.save({"sums": initial()["sums"].put(rows(0, 3))}, {})
    other = {"sums": Table.empty(pl.Schema({"k": pl.String, "v": pl.Float64}), ["k"])}
    with pytest.raises(InvalidError, match=r"table 'sums' was written with columns .* needs a new checkpoint"):
        bucket.load(other)
    monkeypatch.setattr(state, "hash_mark", lambda: 1)
    with pytest.raises(InvalidError, match="hashes keys differently"):
        bucket.load(initial())


def test_the_watermark_is_available_to_the_next_batch_only() -> None:
    shared = RunCache("operator")
    assert shared.watermark_before(0) is not None
    assert shared.watermark_before(3) is None
    shared.note_watermark(2, 99)
    assert (shared.watermark_before(3), shared.watermark_before(4)) == (99, None)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_constant_columns_are_left_out_and_restored(count: int) -> None:
    frame = pl.DataFrame(
        {"k": [str(n) for n in range(count)], "same": 7, "flag": True, "varies": range(count), "real": 1.5},
        schema={"k": pl.String, "same": pl.Int32, "flag": pl.Boolean, "varies": pl.Int64, "real": pl.Float64},
    ).with_columns(pl.lit(None, pl.Int64).alias("none"), pl.Series("_hash", range(count), pl.UInt64))
    table = pa.ipc.open_stream(to_bytes(to_lean(frame))).read_all()
    assert from_lean(table).equals(frame)
    assert from_lean(table).schema == frame.schema
    assert set(table.column_names) >= {"k", "real", "none", "_hash"}
    assert ("same" in table.column_names) == (count == 0)
