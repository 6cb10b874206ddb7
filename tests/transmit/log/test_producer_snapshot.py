"""Producer snapshots next to the segments: the newest valid one is used."""

from pathlib import Path

from headwater.transmit.log.producer_snapshot import load_snapshots, save_snapshot


def test_the_newest_snapshot_comes_first_and_two_are_kept(tmp_path: Path) -> None:
    for offset in (3, 20, 100):
        save_snapshot(tmp_path, offset, b"%d" % offset)
    assert list(load_snapshots(tmp_path, 100)) == [(100, b"100"), (20, b"20")]


def test_a_damaged_or_truncated_snapshot_is_skipped(tmp_path: Path) -> None:
    save_snapshot(tmp_path, 3, b"three")
    save_snapshot(tmp_path, 9, b"nine")
    newest = max(tmp_path.iterdir())
    for damaged in (newest.read_bytes()[:-1], newest.read_bytes()[:-1] + b"E", b"HW", b""):
        newest.write_bytes(damaged)
        assert list(load_snapshots(tmp_path, 9)) == [(3, b"three")]


def test_a_snapshot_ahead_of_the_log_is_removed(tmp_path: Path) -> None:
    save_snapshot(tmp_path, 9, b"nine")
    assert list(load_snapshots(tmp_path, 8)) == []
    assert list(tmp_path.iterdir()) == []
