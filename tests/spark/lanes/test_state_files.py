"""The state of a query in files: complete after each batch, small, and never without a file that it needs."""

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headwater.errors import CorruptError, InvalidError
from headwater.process.kernel import State
from headwater.process.table import Table
from headwater.spark.lanes import state_files
from headwater.spark.lanes.state_files import MAPPED_BYTES_MIN, StateFiles

SCHEMA = pl.Schema({"k": pl.Int64, "v": pl.String})
EMPTY = Table.empty(SCHEMA, ["k"])


def initial() -> dict[str, State]:
    return {"sum-0": {"groups": EMPTY, "other": EMPTY}, "top-1": {"groups": EMPTY}}


def rows(keys: Any, value: str) -> pl.DataFrame:
    return pl.DataFrame({"k": list(keys), "v": [value] * len(list(keys))}, schema=SCHEMA)


def content(states: dict[str, State]) -> dict[tuple[str, str], dict[int, str]]:
    return {
        (operator, name): dict(sorted(table.rows.iter_rows()))
        for operator, state in states.items()
        for name, table in state.items()
    }


def with_groups(states: dict[str, State], table: Table) -> dict[str, State]:
    return {**states, "sum-0": {**states["sum-0"], "groups": table}}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def steps(count: int) -> Any:
    """Return a function that changes some rows in batch n, and the content that is expected after each batch."""
    known: dict[int, str] = {}
    choice = random.Random(5)
    plan = []
    for batch in range(count):
        put = sorted(choice.sample(range(60), choice.choice([1, 3, 20])))
        gone = sorted(choice.sample(range(60), choice.choice([0, 2, 15])))
        known = {k: v for k, v in (known | dict.fromkeys(put, str(batch))).items() if k not in gone}
        plan.append((put, gone, dict(known)))
    return plan


def changed(states: dict[str, State], batch: int, put: list[int], gone: list[int]) -> dict[str, State]:
    table = states["sum-0"]["groups"].put(rows(put, str(batch)))
    return with_groups(states, table.drop(pl.DataFrame({"k": gone}, schema={"k": pl.Int64})))


def test_each_batch_is_loaded_as_it_was_saved_with_merges_and_tombstones(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    states = files.load(-1, initial()).states
    for batch, (put, gone, expected) in enumerate(steps(40)):
        states = files.save(batch, changed(states, batch, put, gone), {"batch": batch})
        files.forget(batch)
        assert content(states)["sum-0", "groups"] == dict(sorted(expected.items()))
        loaded = StateFiles(tmp_path).load(batch, initial())
        assert content(loaded.states) == content(states)
        assert loaded.notes == {"batch": batch}


def test_a_restart_after_every_batch_gives_the_same_and_leaves_no_files_behind(tmp_path: Path) -> None:
    for batch, (put, gone, expected) in enumerate(steps(40)):
        files = StateFiles(tmp_path)
        states = files.load(batch - 1, initial()).states
        states = files.save(batch, changed(states, batch, put, gone), {})
        files.forget(batch)
        assert content(states)["sum-0", "groups"] == dict(sorted(expected.items()))
        assert len(names(tmp_path)) < 12


def test_a_batch_that_is_saved_again_replaces_its_file(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    first = files.save(0, with_groups(initial(), EMPTY.put(rows(range(50), "a"))), {})
    files.forget(0)
    files.save(1, with_groups(first, first["sum-0"]["groups"].put(rows([1], "wrong"))), {"try": 1})
    # It was not committed: the next attempt begins with the state before it.
    again = StateFiles(tmp_path)
    before = again.load(0, initial()).states
    assert content(before) == content(first)
    assert names(tmp_path) == {"0.state"}
    again.save(1, with_groups(before, before["sum-0"]["groups"].put(rows([1], "right"))), {"try": 2})
    again.forget(1)
    loaded = StateFiles(tmp_path).load(1, initial())
    assert content(loaded.states)["sum-0", "groups"][1] == "right"
    assert loaded.notes == {"try": 2}


def test_a_batch_without_changes_writes_no_run(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    states = files.save(0, with_groups(initial(), EMPTY.put(rows(range(1000), "a"))), {})
    files.forget(0)
    for batch in range(1, 6):
        states = files.save(batch, states, {})
        files.forget(batch)
    assert (tmp_path / "5.state").stat().st_size < 1000 < (tmp_path / "0.state").stat().st_size
    assert names(tmp_path) == {"0.state", "4.state", "5.state"}
    assert len(content(StateFiles(tmp_path).load(5, initial()).states)["sum-0", "groups"]) == 1000


def test_the_state_of_the_last_committed_batch_survives_a_crash_before_the_next_is_committed(
    tmp_path: Path,
) -> None:
    """The next batch merges all runs, so its file lists none of the earlier ones."""
    files = StateFiles(tmp_path)
    states = files.load(-1, initial()).states
    for batch in range(6):
        put = rows(range(100), str(batch))  # replaces everything: all runs are merged
        states = files.save(batch, with_groups(states, states["sum-0"]["groups"].put(put)), {})
        if batch == 5:
            break  # a crash between `save` and `finish`
        files.forget(batch)
    loaded = StateFiles(tmp_path).load(4, initial()).states
    assert set(content(loaded)["sum-0", "groups"].values()) == {"4"}


def test_files_that_no_batch_lists_are_removed_at_once_and_by_load(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    states = files.load(-1, initial()).states
    for batch in range(10):
        states = files.save(
            batch, with_groups(states, states["sum-0"]["groups"].put(rows(range(9), str(batch)))), {}
        )
        files.forget(batch)
        assert len(names(tmp_path)) <= 2
    files.save(10, states, {})
    StateFiles(tmp_path).load(9, initial())
    assert names(tmp_path) == {"9.state"}


def test_the_first_batches_after_a_load_remove_no_file_that_a_crash_would_need(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    states = files.load(-1, initial()).states
    for batch in range(3):
        new = rows(range(40 * batch, 40 * batch + (40 >> (2 * batch))), str(batch))
        states = files.save(batch, with_groups(states, states["sum-0"]["groups"].put(new)), {})
        files.forget(batch)
    expected = content(states)
    for batch in (3, 4, 5):
        files = StateFiles(tmp_path)
        states = files.load(batch - 1, initial()).states
        assert content(states) == expected
        everything = with_groups(states, states["sum-0"]["groups"].put(rows(range(500), str(batch))))
        stored = files.save(batch, everything, {})
        assert content(StateFiles(tmp_path).load(batch - 1, initial()).states) == expected  # a crash here
        # That load has removed the file of the batch, which is saved again.
        stored = files.save(batch, stored, {}) if not (tmp_path / f"{batch}.state").exists() else stored
        files = StateFiles(tmp_path)
        states = files.load(batch - 1, initial()).states
        everything = with_groups(states, states["sum-0"]["groups"].put(rows(range(500), str(batch))))
        expected = content(files.save(batch, everything, {}))
        files.forget(batch)


def test_an_operator_without_stored_state_begins_with_its_initial_one(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    files.save(0, {"sum-0": {"groups": EMPTY.put(rows([1], "a"))}}, {})
    loaded = content(StateFiles(tmp_path).load(0, initial()).states)
    assert loaded == {("sum-0", "groups"): {1: "a"}, ("sum-0", "other"): {}, ("top-1", "groups"): {}}


def test_large_runs_are_mapped_and_small_ones_stay_in_memory(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    large = rows(range(MAPPED_BYTES_MIN // 8), "x" * 8)
    states = with_groups(initial(), EMPTY.put(large))
    states["top-1"] = {"groups": EMPTY.put(rows([1], "small"))}
    stored = files.save(0, states, {})
    mapped = (Path("/proc/self/maps")).read_text()
    assert str(tmp_path / "0.state") in mapped
    frame = stored["sum-0"]["groups"].runs[0].frame
    address = frame.get_column("k").to_arrow().buffers()[1].address
    assert any(low <= address < high for low, high in places(mapped, tmp_path / "0.state"))
    assert content(stored) == content(states)
    # A mapped file may be removed, its rows stay readable.
    (tmp_path / "0.state").unlink()
    assert stored["sum-0"]["groups"].get(pl.DataFrame({"k": [7]})).rows() == [(7, "x" * 8)]


def places(maps: str, path: Path) -> list[tuple[int, int]]:
    found = [line.split()[0].split("-") for line in maps.splitlines() if str(path) in line]
    return [(int(low, 16), int(high, 16)) for low, high in found]


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "other"])
def test_a_damaged_file_of_the_last_batch_is_named(tmp_path: Path, damage: str) -> None:
    files = StateFiles(tmp_path)
    files.save(0, with_groups(initial(), EMPTY.put(rows(range(100), "a"))), {})
    path = tmp_path / "0.state"
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes({"empty": b"", "truncated": data[:-1], "other": b"x" * len(data)}[damage])
    with pytest.raises(CorruptError, match=r"0\.state' is missing or damaged; use `headwater rebuild`"):
        StateFiles(tmp_path).load(0, initial())


@pytest.mark.parametrize("damage", ["missing", "truncated", "zeros"])
def test_a_damaged_file_of_an_older_batch_is_named(tmp_path: Path, damage: str) -> None:
    files = StateFiles(tmp_path)
    states = files.save(0, with_groups(initial(), EMPTY.put(rows(range(100), "a"))), {})
    files.save(1, states, {})
    path = tmp_path / "0.state"
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(data[:200] if damage == "truncated" else bytes(len(data)))
    with pytest.raises(CorruptError, match=r"a run in .*0\.state' is missing or damaged"):
        StateFiles(tmp_path).load(1, initial())


def test_no_flipped_bit_is_read_as_state(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    files.save(0, with_groups(initial(), EMPTY.put(rows(range(20), "a"))), {"watermark": 1})
    path = tmp_path / "0.state"
    data = path.read_bytes()
    chance = random.Random(3)
    for at in [*chance.sample(range(len(data)), 200), *range(len(data) - 40, len(data))]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
        with pytest.raises(CorruptError, match=r"0\.state' is missing or damaged"):
            StateFiles(tmp_path).load(0, initial())


def test_a_table_with_other_columns_is_refused_with_both(tmp_path: Path) -> None:
    StateFiles(tmp_path).save(0, with_groups(initial(), EMPTY.put(rows([1], "a"))), {})
    other = {"sum-0": {"groups": Table.empty(pl.Schema({"k": pl.Int64, "v": pl.Float64}), ["k"])}}
    with pytest.raises(
        InvalidError, match=r"table 'groups' was written with columns .*String.* now it has .*Float64"
    ):
        StateFiles(tmp_path).load(0, other)


def test_state_of_another_version_of_polars_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StateFiles(tmp_path).save(0, initial(), {})
    monkeypatch.setattr(state_files, "hash_mark", lambda: 1)
    with pytest.raises(InvalidError, match="hashes keys differently"):
        StateFiles(tmp_path).load(0, initial())
