"""Crash the log with a few seeds of `./dev torture log`, and test the checkers themselves.

`HEADWATER_SEED` repeats a run's choices; a higher `HEADWATER_FAULTS` makes the run of the broker longer.
"""

import os
import random
from pathlib import Path
from unittest import mock

import pytest

from support.disk import Disk, PowerLoss
from torture import clients, storage
from torture.clients import History, Value, check

SEED = int(os.environ.get("HEADWATER_SEED", random.randrange(2**32)))
FAULTS = int(os.environ.get("HEADWATER_FAULTS", "4"))

# -- the checker of histories ---------------------------------------------------------------------------------

A, B = Value("w", 0), Value("w", 1)
GOOD = [((0, 0), A), ((0, 1), B)]


@pytest.mark.parametrize(
    ("found", "history"),
    [
        ("lost-write", History(committed={A, B}, log=GOOD, committed_log=GOOD[:1])),
        ("lost-write", History(acknowledged=[(A, (0, 0))])),
        ("duplicate", History(log=[((0, 0), A), ((1, 0), A)])),
        ("aborted-read", History(aborted={A}, committed_log=GOOD, log=GOOD)),
        ("aborted-read", History(aborted={B}, polls={"r": GOOD}, log=GOOD)),
        ("inconsistent-offsets", History(acknowledged=[(A, (0, 1))], log=GOOD, committed_log=GOOD)),
        ("inconsistent-offsets", History(polls={"r": [((0, 0), B)]}, log=GOOD)),
        ("reordered", History(log=[((0, 0), B), ((0, 1), A)])),
        ("nonmonotonic-poll", History(polls={"r": [GOOD[1], GOOD[0]]})),
        ("poll-skip", History(polls={"r": [GOOD[1]]}, committed_log=GOOD)),
    ],
)
def test_the_checker_finds_each_anomaly(found: str, history: History) -> None:
    assert found in check(history)


def test_the_checker_accepts_a_correct_history() -> None:
    good = History(
        acknowledged=[(A, (0, 0))], committed={B}, polls={"r": GOOD}, log=GOOD, committed_log=GOOD, aborted=set()
    )
    assert check(good) == {}


# -- the disk that loses power --------------------------------------------------------------------------------


def crash_after(folder: Path, operations: int, seed: int) -> dict[str, bytes]:
    """Write two files, sync one, rename it, crash after some operations, and return the files that are left."""
    disk = Disk(folder, random.Random(seed), operations)
    try:
        with disk.watching():
            for name in ("a", "b"):
                with (folder / name).open("wb") as file:
                    file.write(b"one")
                    file.write(b"two")
                    if name == "a":
                        os.fsync(file.fileno())
            fd = os.open(folder, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
            (folder / "a").replace(folder / "c")
    except PowerLoss:
        pass
    disk.lose_power()
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_crash_keeps_synced_data_and_some_of_the_rest(tmp_path: Path) -> None:
    seen: set[tuple[tuple[str, bytes], ...]] = set()
    for seed in range(200):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        left = crash_after(folder, operations=100, seed=seed)
        assert {*left} in ({"a", "b"}, {"b", "c"})
        assert left.get("a", left.get("c")) == b"onetwo"
        assert left["b"] in {b"onetwo"[:n] + bytes(z) for n in range(7) for z in range(4)}
        seen.add(tuple(sorted(left.items())))
    assert len(seen) > 10
    (tmp_path / "early").mkdir()
    assert set(crash_after(tmp_path / "early", operations=3, seed=1)) <= {"a"}


# -- the runs -------------------------------------------------------------------------------------------------


def test_storage_survives_power_loss_at_any_operation() -> None:
    seen = storage.Report()
    for seed in range(SEED, SEED + 5):
        print(f"HEADWATER_SEED={seed}")
        seen.add(storage.run(seed))
    print(seen)
    assert seen.crashes >= 5 * storage.CRASHES


def test_the_checker_finds_storage_that_does_not_sync() -> None:
    """Without syncs, acknowledged records are lost, and the checker of storage must notice it."""
    with (
        mock.patch.object(storage.PartitionLog, "sync", lambda log: log.end_offset),
        pytest.raises(storage.Violation, match="were acknowledged"),
    ):
        for seed in range(50):
            storage.run(seed)


def test_a_broker_keeps_its_guarantees_through_kills_and_pauses() -> None:
    print(f"HEADWATER_SEED={SEED}")
    report = clients.run(SEED, FAULTS)
    print(report)
    assert report.crashes + report.stops >= FAULTS
