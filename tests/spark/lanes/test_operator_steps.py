"""The watermarks of a topic in a lane are those of `process.watermarks`."""

import random
from datetime import timedelta
from typing import Any

import pytest

from headwater.app import Topic
from headwater.errors import InvalidError
from headwater.process.durations import micros
from headwater.process.kernel import BEGINNING
from headwater.process.watermarks import BoundedDisorder, Watermarks
from headwater.spark.kernels.watermark_sources import SOURCES_MAX
from headwater.spark.lanes.steps.operator_steps import TopicClock, sources_of

S = 1_000_000


def clock_of(**settings: Any) -> TopicClock:
    return TopicClock.of(Topic(name="orders", **settings), {})


@pytest.mark.parametrize("idle", [None, "5 seconds"])
@pytest.mark.parametrize("delay", [None, "2 seconds"])
def test_partitions_delay_and_idleness_are_as_in_the_reference(idle: str | None, delay: str | None) -> None:
    choice = random.Random(3)
    ours = clock_of(idle=idle, delay=delay)
    reference = Watermarks(estimate=BoundedDisorder(delay), idle_after=idle)
    clock = 0
    for _ in range(200):
        clock += choice.randrange(4) * S
        times = {p: (n := choice.randrange(100) * S + clock, n - S) for p in range(3) if choice.random() < 0.4}
        ours = ours.observed(times, clock)
        reference = reference.observe({str(p): high for p, (high, _) in times.items()}, clock)
        assert ours.marks.watermark == reference.watermark
        assert ours.marks.partitions == reference.partitions
        active = [mark.watermark for mark in reference.partitions.values() if not mark.is_idle]
        if reference.partitions:
            assert sorted(ours.active(clock)) == sorted(active)


def test_a_clock_continues_from_its_notes() -> None:
    topic = Topic(name="orders", idle="5 seconds", delay="1 second")
    one = TopicClock.of(topic, {}).observed({0: (9 * S, 3 * S), 1: (4 * S, 4 * S)}, 100 * S)
    again = TopicClock.of(topic, one.notes())
    assert again.notes() == one.notes()
    later = 107 * S
    assert again.observed({0: (10 * S, 9 * S)}, later).notes() == one.observed({0: (10 * S, 9 * S)}, later).notes()


def test_a_users_estimate_sees_the_batch_and_is_checked() -> None:
    seen: list[Any] = []

    def estimate(observed: Any) -> Any:
        seen.append(observed)
        return observed.lowest - timedelta(seconds=1)

    clock = clock_of(watermark=estimate).observed({0: (9 * S, 3 * S)}, 0)
    assert clock.active(0) == [2 * S]
    assert (seen[0].partition, seen[0].watermark) == ("0", None)
    clock = clock.observed({0: (8 * S, 5 * S)}, 0)
    assert clock.active(0) == [4 * S]
    assert seen[1].latest.second == 9
    with pytest.raises(InvalidError, match=r"'<lambda>' returned 5"):
        clock_of(watermark=lambda _: 5).observed({0: (9 * S, 3 * S)}, 0)


def test_a_topic_without_records_holds_others_back_until_it_is_idle() -> None:
    waiting = clock_of().observed({}, 0)
    assert waiting.active(10**15) == [BEGINNING]
    idle = clock_of(idle="5 seconds").observed({}, 10 * S)
    assert idle.active(14 * S) == [BEGINNING]
    assert idle.active(15 * S) == []
    assert idle.observed({}, 20 * S).since == 10 * S


def test_the_next_idle_time_is_that_of_the_partition_that_is_idle_first() -> None:
    clock = clock_of(idle="5 seconds").observed({0: (S, S)}, 10 * S).observed({1: (S, S)}, 12 * S)
    assert clock.next_idle(12 * S, is_alone=True) == 15 * S
    clock = clock.observed({}, 15 * S)
    assert clock.next_idle(15 * S, is_alone=True) == 17 * S
    clock = clock.observed({}, 17 * S)
    assert clock.next_idle(17 * S, is_alone=True) is None
    empty = clock_of(idle="5 seconds").observed({}, 10 * S)
    assert empty.next_idle(10 * S, is_alone=True) is None
    assert empty.next_idle(10 * S, is_alone=False) == 15 * S
    assert clock_of().observed({0: (S, S)}, 0).next_idle(0, is_alone=False) is None


def test_the_sources_of_an_operator_are_numbered_by_topic_and_partition() -> None:
    one = clock_of().observed({0: (S, S), 3: (2 * S, S)}, 0)
    two = clock_of().observed({1: (3 * S, S)}, 0)
    assert set(sources_of([one, two])) == {"0", "3", str(SOURCES_MAX + 1)}
    assert micros("1 second") == S
