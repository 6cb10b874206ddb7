"""The Parquet sink: the contract with a failure at every disk operation, small files, and full disks."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headwater as hw
from headwater.errors import ConflictError, CorruptError, InvalidError, UnavailableError
from headwater.sink import Batch, Stream
from headwater.sinks import manifests, parquet
from headwater.sinks.manifests import GRACE_MS, ManifestChain
from headwater.testing import Destination, SinkContract

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})
KEYED = Stream(query="shop.totals", schema=SCHEMA, key=("k",), changes=True)
PLAIN = Stream(query="shop.totals", schema=SCHEMA)


def batch_of(number: int, keys: Any, value: int = 0, sign: int | None = None) -> Batch:
    keys = list(keys)
    rows = pa.table({"k": keys, "v": [value] * len(keys)}, schema=SCHEMA)
    signs = None if sign is None else pa.array([sign] * len(keys), pa.int8())
    return Batch(run="r", number=number, rows=rows, signs=signs)


def rows_in(folder: Path) -> dict[int, int]:
    found = hw.read_parquet(folder).to_pylist()
    rows = {row["k"]: row["v"] for row in found}
    assert len(rows) == len(found)
    return rows


class Interrupted(Exception):
    """The process ended here."""


def interruptions(folder: Path, patch: pytest.MonkeyPatch, stream: Stream) -> Iterator[Callable[[Batch], None]]:
    """Yield writes that fail before the first durable disk operation, before the second, and so on."""
    ended = False

    for last in count(1):
        if ended:
            return

        def interrupt(batch: Batch, last: int = last) -> None:
            nonlocal ended
            steps = 0

            def before(work: Any) -> Any:
                def step(*args: Any, **kwargs: Any) -> Any:
                    nonlocal steps
                    steps += 1
                    if steps == last:
                        raise Interrupted
                    return work(*args, **kwargs)

                return step

            writer = hw.Parquet(folder).open(stream)
            with patch.context() as patched:
                patched.setattr(os, "fsync", before(os.fsync))
                patched.setattr(os, "link", before(os.link))
                patched.setattr(Path, "unlink", before(Path.unlink))
                patched.setattr(parquet.pq, "write_table", before(pq.write_table))
                writer.write(batch)
            ended = True

        yield interrupt


class TestContract(SinkContract):
    @pytest.fixture
    def new_destination(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Destination]:
        def make() -> Destination:
            folder = tmp_path / str(uuid4())
            return Destination(
                sink=hw.Parquet(folder),
                read=lambda stream: hw.read_parquet(folder).to_pylist() if (folder / "manifests").exists() else [],
                interruptions=lambda stream: interruptions(folder, monkeypatch, stream),
            )

        return make


def test_a_killed_process_leaves_a_whole_batch_or_none(tmp_path: Path) -> None:
    """Runs the test of the contract with a real SIGKILL instead of injected faults."""

    def make() -> Destination:
        return Destination(
            sink=hw.Parquet(tmp_path),
            read=lambda stream: hw.read_parquet(tmp_path).to_pylist() if any(tmp_path.iterdir()) else [],
        )

    contract = TestContract()
    contract.kills = 3
    contract.test_an_interrupted_write_is_atomic_and_can_be_repeated(make)


def test_small_files_are_merged(tmp_path: Path) -> None:
    with closing(hw.Parquet(tmp_path).open(PLAIN)) as writer:
        for number in range(40):
            writer.write(batch_of(number, [number]))
    assert len(hw.parquet_files(tmp_path)) == 2 + 40 % 16
    assert hw.read_parquet(tmp_path).column("k").to_pylist() == list(range(40))


def test_large_files_are_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "LARGE_BYTES", 1)
    with closing(hw.Parquet(tmp_path).open(PLAIN)) as writer:
        for number in range(20):
            writer.write(batch_of(number, [number]))
    assert len(hw.parquet_files(tmp_path)) == 20


def test_a_batch_rewrites_only_the_files_that_hold_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "RANGE_ROWS", 10)
    with closing(hw.Parquet(tmp_path).open(KEYED)) as writer:
        writer.write(batch_of(0, range(500), 0, 1))
        before = set(hw.parquet_files(tmp_path))
        assert len(before) == 50
        writer.write(batch_of(1, [7, 8], 1, 1))
        assert 0 < len(set(hw.parquet_files(tmp_path)) - before) <= 2
        assert rows_in(tmp_path) == {**dict.fromkeys(range(500), 0), 7: 1, 8: 1}
        writer.write(batch_of(2, range(250, 600), 2, 1))
        assert rows_in(tmp_path) == {
            **dict.fromkeys(range(250), 0),
            7: 1,
            8: 1,
            **dict.fromkeys(range(250, 600), 2),
        }
        writer.write(batch_of(3, range(600), 0, -1))
        assert hw.parquet_files(tmp_path) == []
        writer.write(batch_of(4, [1], 1, 1))
    assert rows_in(tmp_path) == {1: 1}


def test_other_readers_read_the_files(tmp_path: Path) -> None:
    with closing(hw.Parquet(tmp_path).open(KEYED)) as writer:
        writer.write(batch_of(0, [1, 2], 5, 1))
        writer.write(batch_of(1, [1], 5, -1))
    assert pl.read_parquet(hw.parquet_files(tmp_path)).to_dicts() == [{"k": 2, "v": 5}]


def globbed(folder: Path) -> list[int]:
    """Return the keys that readers find who take all files with the suffix, below the folder or in `data`."""
    found = sorted(pl.read_parquet(f"{folder}/**/*.parquet")["k"].to_list())
    assert sorted(pq.read_table(folder / "data").column("k").to_pylist()) == found
    rows = duckdb.sql(f"select k from read_parquet('{folder}/**/*.parquet') order by k").fetchall()
    assert [key for (key,) in rows] == found
    return found


@pytest.mark.parametrize("stream", [PLAIN, KEYED], ids=["plain", "keyed"])
def test_readers_of_all_files_see_each_row_once(tmp_path: Path, stream: Stream) -> None:
    sign = 1 if stream.key else None
    with closing(hw.Parquet(tmp_path).open(stream)) as writer:
        for number in range(20):  # Small files are merged, or rewritten.
            writer.write(batch_of(number, [number], 0, sign))
            assert globbed(tmp_path) == list(range(number + 1))
    before = hw.parquet_files(tmp_path)
    with closing(hw.Parquet(tmp_path).open(stream)) as writer:
        writer.write(replace(batch_of(0, [7], 1, sign), run="another"))
    assert globbed(tmp_path) == [7]
    assert sorted(pl.read_parquet(before)["k"].to_list()) == list(range(20))  # for ten minutes


def test_an_interrupted_write_leaves_nothing_to_readers_of_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(hw.Parquet(tmp_path).open(PLAIN)) as writer:
        writer.write(batch_of(0, [0]))
    for interrupt in interruptions(tmp_path, monkeypatch, PLAIN):
        with suppress(Interrupted):
            interrupt(batch_of(1, [1]))
        assert globbed(tmp_path) in ([0], [0, 1])
        hw.Parquet(tmp_path).open(PLAIN).close()
        assert globbed(tmp_path) == sorted(rows_in(tmp_path))


def test_a_folder_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    with closing(hw.Parquet(tmp_path).open(KEYED)) as writer:
        writer.write(batch_of(0, [1], 0, 1))
    shutil.rmtree(tmp_path / "kept")  # Earlier versions had no such folder,
    (tmp_path / "data" / "replaced.parquet").write_bytes(b"")  # and replaced files next to the others.
    before = hw.parquet_files(tmp_path)
    assert rows_in(tmp_path) == {1: 0}
    with closing(hw.Parquet(tmp_path).open(KEYED)) as writer:
        assert globbed(tmp_path) == [1]
        writer.write(batch_of(1, [1], 5, 1))
    assert hw.parquet_files(tmp_path) != before
    assert rows_in(tmp_path) == {1: 5}
    assert globbed(tmp_path) == [1]


def test_files_without_a_manifest_are_deleted_after_the_grace_period(tmp_path: Path) -> None:
    with closing(hw.Parquet(tmp_path).open(KEYED)) as writer:
        for number in range(5):
            writer.write(batch_of(number, [1], number, 1))
    (tmp_path / "kept" / "leftover").write_bytes(b"of an interrupted batch")
    (tmp_path / "manifests" / ".leftover.tmp").write_bytes(b"")
    chain = ManifestChain(tmp_path)
    newest = chain.newest()
    assert newest is not None
    now_ms = int(max(p.stat().st_mtime for p in tmp_path.rglob("*")) * 1000)
    chain.clean(newest, now_ms)
    assert len(list((tmp_path / "kept").iterdir())) == 6
    chain.clean(newest, now_ms + 2 * GRACE_MS)
    assert [str(path) for path in (tmp_path / "kept").iterdir()] == hw.parquet_files(tmp_path)
    assert len(list((tmp_path / "manifests").iterdir())) == 1
    assert rows_in(tmp_path) == {1: 4}
    with closing(hw.Parquet(tmp_path).open(KEYED)) as writer:
        assert not writer.write(batch_of(4, [1], 4, 1))
        assert writer.write(batch_of(5, [2], 5, 1))
    assert rows_in(tmp_path) == {1: 4, 2: 5}


def test_a_writer_whose_manifest_version_was_deleted_is_refused(tmp_path: Path) -> None:
    zombie = hw.Parquet(tmp_path).open(PLAIN)
    with closing(hw.Parquet(tmp_path).open(PLAIN)) as writer:
        for number in range(3):
            writer.write(batch_of(number, [number]))
    chain = ManifestChain(tmp_path)
    newest = chain.newest()
    assert newest is not None
    chain.clean(newest, 10**15)
    zombie._chain.check = lambda manifest: None  # type: ignore[attr-defined]  # it checked before it was suspended
    with pytest.raises(ConflictError, match="another writer has opened it since"):
        zombie.write(batch_of(9, [9]))
    assert sorted(rows_in(tmp_path)) == [0, 1, 2]


@pytest.mark.parametrize("where", ["data", "manifest"])
def test_a_full_disk_is_unavailable_and_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    sink = hw.Parquet(tmp_path)
    writer = sink.open(PLAIN)
    writer.write(batch_of(0, [0]))
    full = OSError(errno.ENOSPC, "full")

    def no_space(*args: Any, **kwargs: Any) -> None:
        if where == "data":
            Path(args[1]).write_bytes(b"PAR1 half a fi")
        raise full

    with monkeypatch.context() as patched:
        patched.setattr(*{"data": (pq, "write_table"), "manifest": (manifests, "_encode")}[where], no_space)
        with pytest.raises(UnavailableError, match="No space left on device"):
            writer.write(batch_of(1, [1]))
    assert sorted(rows_in(tmp_path)) == [0]
    assert list((tmp_path / "manifests").glob(".*")) == []
    writer = sink.open(PLAIN)
    assert writer.write(batch_of(1, [1]))
    assert sorted(rows_in(tmp_path)) == [0, 1]


def test_an_impossible_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidError, match=r"cannot open '.*/file/out': Not a directory"):
        hw.Parquet(tmp_path / "file" / "out").open(PLAIN)
    with pytest.raises(InvalidError, match="no sink has written there"):
        hw.read_parquet(tmp_path / "nowhere")
    with pytest.raises(InvalidError, match="no sink has written there"):
        hw.parquet_files(tmp_path / "nowhere")


def test_a_folder_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, which ignores permissions, so the error is injected."""

    def denied(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(InvalidError, match="Permission denied"):
        hw.Parquet(tmp_path / "out").open(PLAIN)


def test_a_file_system_without_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(InvalidError, match="no hard links"):
        hw.Parquet(tmp_path / "out").open(PLAIN)


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    with closing(hw.Parquet(tmp_path).open(KEYED)) as writer:
        writer.write(batch_of(0, [1], 0, 1))
    (path,) = hw.parquet_files(tmp_path)
    Path(path).write_bytes(b"PAR1 damaged")
    with pytest.raises(CorruptError, match="which the newest manifest names"):
        hw.read_parquet(tmp_path)
    Path(path).unlink()
    with (
        closing(hw.Parquet(tmp_path).open(KEYED)) as writer,
        pytest.raises(CorruptError, match="which the newest manifest names"),
    ):
        writer.write(batch_of(1, [1], 1, 1))


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    hw.Parquet(tmp_path).open(KEYED).close()
    (path,) = (tmp_path / "manifests").iterdir()
    path.write_text("{")
    with pytest.raises(CorruptError, match=path.name):
        hw.Parquet(tmp_path).open(KEYED)


def test_a_folder_belongs_to_one_query_and_one_key(tmp_path: Path) -> None:
    hw.Parquet(tmp_path).open(KEYED).close()
    with pytest.raises(ConflictError, match=r"it belongs to 'shop.totals'"):
        hw.Parquet(tmp_path).open(replace(KEYED, query="shop.others"))
    with pytest.raises(InvalidError, match="its key is k"):
        hw.Parquet(tmp_path).open(PLAIN)
    with pytest.raises(InvalidError, match="no column 'z'"):
        hw.Parquet(tmp_path).open(replace(KEYED, key=("z",)))
