"""Watermarks per partition, and partitions that are idle."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.app import App
from headwater.errors import InvalidError
from headwater.process.kernel import BEGINNING
from headwater.process.watermarks import BoundedDisorder, Observed, UserEstimate, Watermarks


def test_a_lagging_partition_holds_the_watermark() -> None:
    marks = Watermarks(BoundedDisorder("5 microseconds")).observe({"a": 100, "b": 20}, now=0)
    assert marks.watermark == 15
    assert marks.holding == ["b"]
    assert marks.observe({"b": 90}, now=1).watermark == 85


def test_a_partition_that_said_nothing_yet_holds_too() -> None:
    marks = Watermarks().expect(["a", "b"], now=0).observe({"a": 100}, now=0)
    assert marks.watermark == BEGINNING
    assert marks.holding == ["b"]


def test_an_idle_partition_does_not_hold_and_is_named() -> None:
    marks = Watermarks(idle_after="10 microseconds").observe({"a": 100, "b": 20}, now=0)
    marks = marks.observe({"a": 130}, now=9)
    assert marks.watermark == 20
    marks = marks.observe({"a": 140}, now=10)
    assert (marks.watermark, marks.idle) == (140, ["b"])


def test_a_partition_that_comes_back_does_not_pull_the_watermark_back() -> None:
    marks = Watermarks(idle_after="10 microseconds").observe({"a": 100, "b": 20}, now=0)
    marks = marks.observe({"a": 140}, now=10).observe({"b": 30}, now=11)
    assert (marks.watermark, marks.idle) == (140, [])
    assert marks.observe({"a": 150, "b": 160}, now=12).watermark == 150


def test_if_all_are_idle_the_watermark_stands() -> None:
    marks = Watermarks(idle_after="10 microseconds").observe({"a": 100, "b": 20}, now=0).advance(now=50)
    assert (marks.watermark, marks.idle) == (20, ["a", "b"])


def test_without_idleness_nobody_is_idle() -> None:
    assert Watermarks().observe({"a": 100, "b": 20}, now=0).advance(now=10**12).idle == []


def test_a_users_estimate_is_taken() -> None:
    assert Watermarks(lambda batch: batch.latest // 2).observe({"a": 100}, now=0).watermark == 50


def test_an_estimate_beyond_the_latest_event_is_refused() -> None:
    with pytest.raises(InvalidError, match="partition 'a' gave 101, which is after its latest event 100"):
        Watermarks(lambda batch: batch.latest + 1).observe({"a": 100}, now=0)


def test_a_users_function_is_given_times_and_gives_one() -> None:
    given: list[Observed] = []

    def half_of_the_spread(observed: Observed) -> datetime:
        given.append(observed)
        return observed.highest - (observed.highest - observed.lowest) / 2

    start = datetime(2026, 1, 1, tzinfo=UTC)
    base = int(start.timestamp()) * 1_000_000
    marks = Watermarks(UserEstimate(half_of_the_spread)).observe({"0": base + 100}, now=0, lowest={"0": base})
    assert marks.watermark == base + 50
    assert marks.observe({"0": base + 70}, now=0, lowest={"0": base + 60}).watermark == base + 65
    first, second = given
    assert (first.watermark, first.lowest, first.latest) == (None, start, start + timedelta(microseconds=100))
    assert (second.highest - start, second.latest - start) == (
        timedelta(microseconds=70),
        timedelta(microseconds=100),
    )
    assert second.watermark == start + timedelta(microseconds=50)


def test_a_time_without_a_zone_is_utc() -> None:
    estimate = UserEstimate(lambda observed: observed.latest.replace(tzinfo=None))
    assert Watermarks(estimate).observe({"0": 1234567}, now=0).watermark == 1234567


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda observed: 7, "gave 7; it must give a datetime"),
        (lambda observed: 1 / 0, "failed on Observed.*ZeroDivisionError: division by zero"),
        (lambda observed: observed.latest + timedelta(1), "which is after its latest event"),
    ],
)
def test_what_a_users_function_must_not_do_is_told(function: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        Watermarks(UserEstimate(function)).observe({"0": 100}, now=0)


def test_a_topic_takes_a_function_or_a_delay() -> None:
    app = App("shop")
    assert app.topic("orders", watermark=lambda seen: seen.latest).watermark is not None
    with pytest.raises(InvalidError, match=r"topic 'a': .* cannot be combined with delay='1 second'"):
        app.topic("a", watermark=lambda seen: seen.latest, delay="1 second")
    with pytest.raises(InvalidError, match=r"topic 'b': watermark='5 seconds' is not a function"):
        app.topic("b", watermark="5 seconds")  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100), st.integers(0, 20)), max_size=30))
def test_the_watermark_never_falls_and_never_passes_an_active_partition(steps: list[tuple[str, int, int]]) -> None:
    marks, now = Watermarks(BoundedDisorder("3 microseconds"), idle_after="30 microseconds"), 0
    for partition, time, ticks in steps:
        now += ticks
        before = marks.watermark
        marks = marks.observe({partition: time}, now)
        assert marks.watermark >= before
        active = [m.watermark for m in marks.partitions.values() if not m.is_idle]
        assert marks.watermark == max(before, min(active))
