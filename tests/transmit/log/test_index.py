"""The sparse index of a segment."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from headwater.transmit.log.index import INTERVAL_BYTES, SparseIndex, load_saved


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 100)), min_size=1, max_size=40), st.integers(0, 120)
)
def test_a_search_starts_at_or_before_the_batch(batches: list[tuple[int, int]], wanted: int) -> None:
    index = SparseIndex()
    placed, position, newest = [], 0, -1
    for number, (size, timestamp) in enumerate(batches):
        index.add(number, position, newest)
        placed.append((position, timestamp))
        position, newest = position + size, max(newest, timestamp)
    offset = wanted % len(batches)
    start = index.position_of_offset(offset)
    assert placed[offset][0] - INTERVAL_BYTES < start + 3000
    assert start <= placed[offset][0]
    assert all(timestamp < wanted for at, timestamp in placed if at < index.position_of_time(wanted))


def test_a_saved_index_is_loaded_only_for_its_segment(tmp_path: Path) -> None:
    index = SparseIndex()
    index.add(0, 0, -1)
    index.add(40, 9000, 77)
    path = tmp_path / "00.index"
    index.save(path, size=12_000, next_offset=60, max_timestamp=99)
    loaded = load_saved(path, size_wanted=12_000)
    assert loaded is not None
    assert (loaded.index.position_of_offset(41), loaded.next_offset, loaded.max_timestamp) == (9000, 60, 99)
    assert load_saved(path, size_wanted=12_001) is None
    assert load_saved(tmp_path / "missing.index", size_wanted=12_000) is None


@given(st.data())
def test_a_damaged_index_is_not_loaded(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        index = SparseIndex()
        index.add(0, 0, -1)
        path = Path(directory) / "00.index"
        index.save(path, size=100, next_offset=1, max_timestamp=5)
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        assert load_saved(path, size_wanted=100) is None
