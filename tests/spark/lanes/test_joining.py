"""Which queries advance together, by their positions alone."""

from pathlib import Path
from typing import Any

from headwater.app import Topic
from headwater.record import TopicPartition
from headwater.spark.lanes.batch_log import BatchLog, BeganBatch
from headwater.spark.lanes.lanes import NEAR_RECORDS, _fits
from headwater.spark.lanes.member import Member, MemberPlan
from headwater.spark.lanes.positions import behind, distance, furthest, interrupted
from headwater.spark.source.offsets import Offsets

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Members:
    """Makes queries that have read some records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def at(self, name: str, position: Offsets, *, topics: str = "a", begun: BeganBatch | None = None) -> Member:
        names = tuple(topics.split())
        log = BatchLog(self._folder / name, names)
        log.begin(BeganBatch(0, position, 1))
        log.finish(0)
        if begun is not None:
            log.begin(begun)
        return self.new(name, {}, topics=topics)

    def new(self, name: str, starting: Offsets, *, topics: str = "a") -> Member:
        declared = tuple(Topic(name=each) for each in topics.split())
        sink: Any = None
        return Member(MemberPlan(name=name, topics=declared), self._folder / name, sink, starting)


def test_queries_finish_an_interrupted_batch_together(tmp_path: Path) -> None:
    members = Members(tmp_path)
    one = members.at("one", {A0: 5}, begun=BeganBatch(1, {A0: 6}, 2))
    two = members.at("two", {A0: 5, B0: 9}, topics="a b", begun=BeganBatch(4, {A0: 6, B0: 9}, 2))
    others = [
        members.at("done", {A0: 6}),
        members.at("other start", {A0: 4}, begun=BeganBatch(1, {A0: 6}, 2)),
        members.at("other end", {A0: 5}, begun=BeganBatch(1, {A0: 7}, 2)),
        members.at("other time", {A0: 5}, begun=BeganBatch(1, {A0: 6}, 3)),
        members.at("new partition", {A0: 5, A1: 0}, begun=BeganBatch(1, {A0: 6, A1: 4}, 2)),
    ]
    assert interrupted([one, *others, two]) == [one, two]
    for other in others[1:]:
        assert interrupted([others[0], other, one]) == [other]
    assert interrupted(others[:1]) == []


def test_queries_at_the_same_position_catch_up_together(tmp_path: Path) -> None:
    members = Members(tmp_path)
    front, other = members.at("front", {A0: 9, B0: 3}, topics="a b"), members.at("other", {A0: 9})
    assert behind([front, other], furthest([front, other])) == []
    far, also, ahead = (members.at(name, {A0: at}) for name, at in (("far", 4), ("also", 4), ("ahead", 10)))
    everyone = [front, far, other, also]
    assert furthest(everyone) == {A0: 9, B0: 3}
    assert behind(everyone, furthest(everyone)) == [far, also]
    assert behind([front, ahead, other], furthest([front, ahead])) == [front, other]
    both = members.at("both", {A0: 4, B0: 2}, topics="a b")
    assert behind([*everyone, both], furthest(everyone)) == [far, also, both]
    new = members.at("new", {A0: 4, A1: 0})
    assert behind([*everyone, new], furthest([*everyone, new])) == [far, also]


def test_distance_counts_the_records_of_topics_that_both_read() -> None:
    assert distance({A0: 5, A1: 7}, {A0: 9, A1: 4}) == 7
    assert distance({A0: 5}, {B0: 9}) == 0
    assert distance({A0: 5}, {A0: 5, A1: 7, B0: 8}) == 7


def test_queries_that_are_near_begin_together(tmp_path: Path) -> None:
    members = Members(tmp_path)
    one, two = members.at("one", {A0: 5}), members.at("two", {A0: 5, B0: 9}, topics="a b")
    assert _fits(one, two) and _fits(two, one)
    assert _fits(one, members.at("near", {A0: 5 + NEAR_RECORDS}))
    far = members.at("far", {A0: 6 + NEAR_RECORDS})
    assert not _fits(one, far)
    assert _fits(far, members.at("begun", {A0: 5}, begun=BeganBatch(1, {A0: 6 + NEAR_RECORDS}, 2)))


def test_a_new_query_over_other_topics_begins_alone(tmp_path: Path) -> None:
    members = Members(tmp_path)
    old, new = members.at("old", {A0: 5}), members.new("new", {B0: 0}, topics="b")
    assert not _fits(old, new)
    assert not _fits(old, members.new("both", {A0: 5, B0: 0}, topics="a b"))
    assert _fits(old, members.new("same", {A0: 0}))
    assert _fits(new, members.new("letters", {B0: 0}, topics="b"))
    assert _fits(members.new("one", {A0: 0}), new)
    assert _fits(old, members.at("older", {B0: 5}, topics="b"))
