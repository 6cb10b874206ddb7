"""Files are replaced in one step."""

from pathlib import Path

import pytest

from headwater.files import replace_durably, replacing


def test_a_file_is_replaced_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "note"
    path.write_bytes(b"old")
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")
        assert (temporary.parent, path.read_bytes()) == (tmp_path, b"old")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"note": b"new"}


def test_a_block_that_raises_leaves_the_old_file_only(tmp_path: Path) -> None:
    path = tmp_path / "note"
    replace_durably(path, b"old")
    with pytest.raises(OSError, match="full"), replacing(path) as temporary:
        temporary.write_bytes(b"ne")
        raise OSError("full")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"note": b"old"}


def test_two_writers_do_not_share_a_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "note"
    with replacing(path) as first, replacing(path) as second:
        first.write_bytes(b"first")
        second.write_bytes(b"second")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"note": b"first"}
