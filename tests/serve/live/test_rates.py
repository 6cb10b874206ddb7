"""Rates of topics, with a manual clock."""

import threading

import pytest

from headwater.clock import ManualClock
from headwater.errors import UnavailableError
from headwater.record import TopicPartition
from headwater.serve.live.rates import TopicRates, sampling

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Log:
    """A log whose offsets or error the test sets."""

    def __init__(self) -> None:
        self.clock = ManualClock(start_ms=5_000)
        self.offsets = {A0: (0, 0)}
        self.error: Exception | None = None
        self.rates = TopicRates(self.read, self.clock)

    def read(self) -> dict[TopicPartition, tuple[int, int]]:
        if self.error is not None:
            raise self.error
        return dict(self.offsets)

    def sample(self, offsets: dict[TopicPartition, tuple[int, int]], *, after_s: float = 1.0) -> None:
        self.clock.advance(after_s)
        self.offsets = offsets
        self.rates.sample()


def test_no_topics_before_the_first_sample():
    assert Log().rates.topics() == []


def test_one_sample_has_sizes_and_no_rate():
    log = Log()
    log.sample({A1: (5, 25), A0: (0, 10), B0: (0, 1)})
    a, b = log.rates.topics()
    assert (a.name, a.records, [p.partition for p in a.partitions]) == ("a", 30, [0, 1])
    assert (a.records_per_second, a.history, b.name) == (None, (), "b")


def test_rate_is_over_the_last_ten_seconds():
    log = Log()
    log.sample({A0: (0, 0)})
    for second in range(1, 21):
        log.sample({A0: (0, 100 * second if second <= 10 else 1000 + 10 * (second - 10))})
    [topic] = log.rates.topics()
    assert topic.records_per_second == 10.0
    assert [point.records_per_second for point in topic.history] == [100.0] * 10 + [10.0] * 10
    assert topic.history[-1].at_ms == log.clock.now_ms()


def test_a_new_partition_counts_from_its_start():
    log = Log()
    log.sample({A0: (0, 10)})
    log.sample({A0: (0, 20), A1: (0, 5), B0: (100, 130)})
    a, b = log.rates.topics()
    assert (a.records_per_second, b.records_per_second) == (15.0, 30.0)


def test_rate_of_a_recreated_topic_is_not_negative():
    log = Log()
    log.sample({A0: (0, 100)})
    log.sample({A0: (0, 3)})
    assert log.rates.topics()[0].records_per_second == 0.0


def test_a_minute_of_history_is_kept():
    log = Log()
    for second in range(100):
        log.sample({A0: (0, second)})
    assert len(log.rates.topics()[0].history) == 60


@pytest.mark.parametrize("error", [UnavailableError("the broker is unavailable"), ConnectionRefusedError()])
def test_errors_keep_the_last_values_and_mark_them_as_stale(error):
    log = Log()
    log.sample({A0: (0, 10)})
    log.error = error
    log.sample({})
    [topic] = log.rates.topics()
    assert (topic.records, topic.stale) == (10, True)
    log.error = None
    log.sample({A0: (0, 12)})
    [topic] = log.rates.topics()
    assert (topic.records, topic.stale, topic.records_per_second) == (12, False, 1.0)


def test_values_become_stale_when_a_sample_hangs():
    log = Log()
    log.sample({A0: (0, 10)})
    log.clock.advance(6)
    assert log.rates.topics()[0].stale


def test_two_samples_at_one_instant_are_one():
    log = Log()
    log.sample({A0: (0, 10)})
    log.sample({A0: (0, 12)}, after_s=0)
    [topic] = log.rates.topics()
    assert (topic.records, topic.records_per_second) == (12, None)


def test_sampling_starts_immediately_and_ends_with_the_block():
    sampled = threading.Event()

    def read() -> dict[TopicPartition, tuple[int, int]]:
        sampled.set()
        return {}

    with sampling(TopicRates(read, ManualClock())):
        assert sampled.wait(5)
    assert "topic-rates" not in [thread.name for thread in threading.enumerate()]
