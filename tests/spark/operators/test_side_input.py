"""Side inputs: changes between versions, repeated batches, and errors."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from headwater.errors import CorruptError, InvalidError
from headwater.spark.operators.side_input import (
    BYTES_MAX,
    NOTHING,
    VERSIONS_KEPT,
    Loader,
    Offset,
    SideStreamReader,
    Versions,
)

SCHEMA = StructType().add("code", "string").add("name", "string").add("since", "timestamp")
START: Offset = {NOTHING: {}}


def reader(load: Path | Callable[[], Any], folder: Path) -> SideStreamReader:
    return SideStreamReader(Loader(load, SCHEMA), Versions(folder / "copies"), every_s=0)


def latest(side: SideStreamReader) -> Offset:
    return side.latestOffset(START, ReadAllAvailable())


def changes(side: SideStreamReader, start: Offset, end: Offset) -> set[tuple[Any, ...]]:
    parts: Sequence[Any] = side.partitions(start, end)
    rows = [row for part in parts for batch in side.read(part) for row in batch.to_pylist()]
    return {(row["code"], row["name"], row["_change"]) for row in rows}


def write(path: Path, *rows: str) -> None:
    path.write_text("\n".join(["code,name,since", *rows, ""]))


def test_changes_lead_from_one_version_to_the_next(tmp_path: Path) -> None:
    file = tmp_path / "countries.csv"
    write(file, "007,Ulm,2026-01-01T00:00:00", "008,Bonn,")
    side = reader(file, tmp_path)
    first = latest(side)
    assert changes(side, START, first) == {("007", "Ulm", 1), ("008", "Bonn", 1)}
    assert latest(side) == first
    assert changes(side, first, first) == set()
    write(file, "008,Bonn,", "007,Kiel,2026-01-01T00:00:00", "009,Rome,")
    second = latest(side)
    assert changes(side, first, second) == {("007", "Ulm", -1), ("007", "Kiel", 1), ("009", "Rome", 1)}
    # Touched, with the same content.
    write(file, "008,Bonn,", "007,Kiel,2026-01-01T00:00:00", "009,Rome,")
    assert latest(side) == second


def test_a_repeated_batch_reads_the_same_rows(tmp_path: Path) -> None:
    file = tmp_path / "countries.csv"
    write(file, "007,Ulm,")
    first = latest(reader(file, tmp_path))
    write(file, "007,Kiel,")
    again = reader(file, tmp_path)
    assert changes(again, START, first) == {("007", "Ulm", 1)}
    assert changes(again, first, latest(again)) == {("007", "Ulm", -1), ("007", "Kiel", 1)}


def test_a_run_with_once_keeps_the_version_it_began_with(tmp_path: Path) -> None:
    file = tmp_path / "countries.csv"
    write(file, "007,Ulm,")
    side = reader(file, tmp_path)
    side.prepareForTriggerAvailableNow()
    write(file, "007,Kiel,")
    assert changes(side, START, latest(side)) == {("007", "Ulm", 1)}


@pytest.mark.parametrize(
    "nothing", [[], {}, pl.DataFrame(), pa.table({})], ids=["list", "dict", "polars", "arrow"]
)
def test_a_function_may_return_no_rows(tmp_path: Path, nothing: Any) -> None:
    found: list[Any] = [[{"code": "007", "name": "Ulm", "since": None}], nothing]
    side = reader(lambda: found.pop(0), tmp_path)
    first = latest(side)
    assert changes(side, first, latest(side)) == {("007", "Ulm", -1)}


def test_old_versions_are_deleted(tmp_path: Path) -> None:
    file = tmp_path / "countries.csv"
    side, seen = reader(file, tmp_path), []
    for number in range(VERSIONS_KEPT + 3):
        write(file, f"007,name {number},")
        seen.append(latest(side))
        side.commit(seen[-1])
    assert len(list((tmp_path / "copies").iterdir())) == VERSIONS_KEPT
    assert changes(side, seen[-2], seen[-1])
    with pytest.raises(CorruptError, match=r"is no longer in .*headwater rebuild"):
        side.partitions(seen[0], seen[-1])


@pytest.mark.parametrize("make", [pl.DataFrame, lambda rows: pa.table(pl.DataFrame(rows).to_arrow()), list])
def test_a_function_returns_the_rows(tmp_path: Path, make: Callable[[Any], Any]) -> None:
    names = ["Ulm"]
    side = reader(
        lambda: make([{"code": "7", "name": name, "since": None, "more": 1} for name in names]), tmp_path
    )
    first = latest(side)
    assert changes(side, START, first) == {("7", "Ulm", 1)}
    names.append("Bonn")
    assert changes(side, first, latest(side)) == {("7", "Bonn", 1)}


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
def test_files_of_several_kinds(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"countries{suffix}"
    rows = pl.DataFrame({"code": ["7"], "name": ["Ulm"], "since": [None]}, schema_overrides={"since": pl.Datetime})
    {".json": rows.write_json, ".jsonl": rows.write_ndjson, ".parquet": rows.write_parquet}[suffix](file)
    side = reader(file, tmp_path)
    assert changes(side, START, latest(side)) == {("7", "Ulm", 1)}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", None, "none.csv': the file does not exist"),
        ("rows.xml", "<a/>", "does not end with .csv, .json"),
        ("rows.csv", "code,town\n7,Ulm\n", "no column 'name', 'since'; it has: code, town"),
        ("rows.csv", "code,name,since\n7,Ulm,soon\n", "does not match its schema"),
        ("rows.parquet", "code", "cannot load side input .*rows.parquet"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_refused(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InvalidError, match=message):
        latest(reader(tmp_path / name, tmp_path))


def test_too_large_a_side_input_is_refused(tmp_path: Path) -> None:
    large = pl.DataFrame({"code": ["7"], "name": ["x" * (BYTES_MAX + 1)], "since": [None]})
    with pytest.raises(InvalidError, match="at most 67,108,864 are allowed; write the rows to a topic"):
        latest(reader(lambda: large, tmp_path))
