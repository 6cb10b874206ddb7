"""A checkpoint that was damaged by a power failure is detected, and the file is named."""

from pathlib import Path

import pytest

from headwater.errors import CorruptError
from headwater.record import TopicPartition
from headwater.spark.source.checkpoint import begun_batch, check_checkpoint

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Batch 0 is done, batch 1 is begun; with the checksum that Hadoop writes next to a file."""
    folder = tmp_path / "revenue"
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"696ca793-98c2-4f94-bf27-5e00cbf534dc"}')
    (folder / ".metadata.crc").write_bytes(bytes.fromhex("63726300 00000200 2272a381".replace(" ", "")))
    (folder / "offsets" / "0").write_text('v1\n{"conf": {}}\n{"orders": {"0": 5}}\n-')
    (folder / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (folder / "offsets" / "1").write_text('v1\n{"conf": {}}\n{"orders": {"0": 9}}\n{"users": {"0": 1}}')
    return folder


def test_the_unfinished_batch_is_found(checkpoint: Path) -> None:
    batch = begun_batch(checkpoint)
    assert batch is not None
    assert (batch.number, batch.start) == (1, {ORDERS: 5})
    assert batch.end == {ORDERS: 9, TopicPartition("users", 0): 1}
    (checkpoint / "commits" / "1").write_text("v1\n{}")
    assert begun_batch(checkpoint) is None


def test_a_complete_and_a_missing_checkpoint_are_accepted(checkpoint: Path) -> None:
    check_checkpoint(checkpoint, "revenue")
    check_checkpoint(checkpoint.with_name("new"), "revenue")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("offsets/1", "", "is empty"),
        ("offsets/1", 'v1\n{"conf": {}}', "is truncated"),
        ("offsets/1", 'v1\n{"conf": {}}\n{"orders": {"0"', "is truncated"),
        ("offsets/0", None, "is missing, although the batch"),
        ("commits/0", "", "is empty"),
        ("commits/0", "v1", "is truncated"),
        ("metadata", None, "is missing, although batches were run"),
        ("metadata", "{", "is damaged"),
        ("metadata", '{"id":"696ca793-98c2-4f94-bf27-5e00cbf534dd"}', "does not have the checksum"),
    ],
)
def test_damage_is_named_with_a_hint(checkpoint: Path, file: str, content: str | None, message: str) -> None:
    path = checkpoint / file
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(CorruptError, match=message) as caught:
        check_checkpoint(checkpoint, "revenue")
    assert str(path) in str(caught.value)
    assert f"rm -r {checkpoint}" in str(caught.value.hint)
