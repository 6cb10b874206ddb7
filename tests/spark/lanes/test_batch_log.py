"""The batches of a query in a lane are in its checkpoint as those of a Spark query."""

from pathlib import Path

import pytest

from headwater.errors import CorruptError
from headwater.record import TopicPartition
from headwater.spark.lanes.batch_log import BATCHES_KEPT, BatchLog, BeganBatch, is_lane
from headwater.spark.source.checkpoint import (
    begun_batch,
    check_checkpoint,
    end_offsets,
    has_begun,
    last_done,
    run_of,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_a_new_checkpoint_has_a_run_that_stays(tmp_path: Path) -> None:
    log = BatchLog(tmp_path / "q", ("a",))
    assert log.run == run_of(tmp_path / "q") == BatchLog(tmp_path / "q", ("a",)).run
    assert (log.done, log.position, log.unfinished()) == (-1, {}, None)
    assert not has_begun(tmp_path / "q")
    check_checkpoint(tmp_path / "q", "q")


def test_a_batch_is_unfinished_until_it_is_finished(tmp_path: Path) -> None:
    log = BatchLog(tmp_path, ("a", "b"))
    first = BeganBatch(0, {A0: 5, A1: 0, B0: 7}, 1234)
    log.begin(first)
    assert log.unfinished() == BatchLog(tmp_path, ("a", "b")).unfinished() == first
    assert log.position == {}
    log.finish(0)
    again = BatchLog(tmp_path, ("a", "b"))
    assert (again.done, again.position, again.unfinished()) == (0, first.end, None)
    second = BeganBatch(1, {A0: 6, A1: 1, B0: 7}, 1300)
    again.begin(second)
    assert again.unfinished() == second
    assert again.position == first.end
    found = begun_batch(tmp_path)
    assert found is not None
    assert (found.number, found.start, found.end) == (1, first.end, second.end)


def test_a_topic_without_partitions_keeps_its_line(tmp_path: Path) -> None:
    log = BatchLog(tmp_path, ("a", "b"))
    log.begin(BeganBatch(0, {A0: 5}, 1))
    assert len((tmp_path / "offsets" / "0").read_text().splitlines()) == 4
    check_checkpoint(tmp_path, "q")
    assert end_offsets(tmp_path, 0) == {A0: 5}


def test_old_batches_are_removed_and_the_checkpoint_stays_valid(tmp_path: Path) -> None:
    log = BatchLog(tmp_path, ("a",))
    for number in range(3 * BATCHES_KEPT):
        log.begin(BeganBatch(number, {A0: number}, number))
        check_checkpoint(tmp_path, "q")
        log.finish(number)
        check_checkpoint(tmp_path, "q")
    assert (
        len(list((tmp_path / "offsets").iterdir())) == len(list((tmp_path / "commits").iterdir())) == BATCHES_KEPT
    )
    assert last_done(tmp_path) == 3 * BATCHES_KEPT - 1


def test_a_damaged_batch_is_found_as_in_a_checkpoint_of_spark(tmp_path: Path) -> None:
    log = BatchLog(tmp_path, ("a",))
    log.begin(BeganBatch(0, {A0: 1}, 1))
    (tmp_path / "offsets" / "0").write_text("v1\n")
    with pytest.raises(CorruptError, match="offsets/0' is truncated"):
        check_checkpoint(tmp_path, "q")


def test_a_checkpoint_belongs_to_a_lane_unless_spark_has_begun_a_batch_in_it(tmp_path: Path) -> None:
    assert is_lane(tmp_path / "none")
    spark = tmp_path / "spark"
    (spark / "offsets").mkdir(parents=True)
    assert is_lane(spark)
    (spark / "offsets" / "0").write_text("v1\n{}\n{}")
    assert not is_lane(spark)
    lane = BatchLog(tmp_path / "lane", ("a",))
    lane.begin(BeganBatch(0, {A0: 1}, 1))
    assert is_lane(tmp_path / "lane")
