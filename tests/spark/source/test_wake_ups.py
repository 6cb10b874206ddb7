"""The source starts a batch when a wake-up is due, once, and keeps its offsets readable."""

from pathlib import Path

from headwater.clock import ManualClock
from headwater.record import TopicPartition
from headwater.spark.pipeline.running_queries import parse_offsets
from headwater.spark.source.offsets import from_json, to_json, woken_at
from headwater.spark.source.wake_ups import Alarm, WakeUps

ORDERS = TopicPartition("orders", 0)


def test_a_start_wakes_the_query_once(tmp_path: Path) -> None:
    alarm = Alarm(tmp_path / "wake_ups.json", ManualClock(1_000_000))
    first = alarm.woken(None)
    assert first is not None
    assert alarm.woken(first) == first


def test_each_wake_up_is_answered_once_and_in_time(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    alarm, wake_ups = Alarm(tmp_path / "wake_ups.json", clock), WakeUps(tmp_path / "wake_ups.json")
    woken = alarm.woken(None)
    wake_ups.collect(0, {"windowed-0-1": clock.now_ms() + 500, "windowed-0-2": clock.now_ms() + 900})
    assert alarm.woken(woken) == woken
    clock.advance(0.5)
    again = alarm.woken(woken)
    assert again == clock.now_ms()
    assert alarm.woken(again) == again  # The batch has not finished yet.
    wake_ups.collect(1, {"windowed-0-1": None})  # The other bucket keeps its wake-up.
    assert alarm.woken(again) == again
    clock.advance(0.4)
    last = alarm.woken(again)
    assert last == clock.now_ms()
    wake_ups.collect(2, {"windowed-0-2": None})
    clock.advance(3600)
    assert alarm.woken(last) == last


def test_a_batch_with_an_equal_wake_up_is_answered_again(tmp_path: Path) -> None:
    """As after the clock of the machine was set back."""
    clock = ManualClock(1_000_000)
    alarm, wake_ups = Alarm(tmp_path / "wake_ups.json", clock), WakeUps(tmp_path / "wake_ups.json")
    woken = alarm.woken(None)
    for batch in range(3):
        wake_ups.collect(batch, {"windowed-0-1": clock.now_ms()})
        before, woken = woken, alarm.woken(woken)
        assert woken is not None and before is not None
        assert woken > before


def test_a_run_that_ends_is_woken_only_at_its_start(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    WakeUps(tmp_path / "wake_ups.json").collect(0, {"windowed-0-1": clock.now_ms() + 1})
    alarm = Alarm(tmp_path / "wake_ups.json", clock)
    woken = alarm.woken(7, once=True)
    assert woken == clock.now_ms()
    clock.advance(60)
    assert alarm.woken(woken, once=True) == woken


def test_the_time_of_waking_is_kept_next_to_the_offsets() -> None:
    assert to_json({ORDERS: 17}) == {"orders": {"0": 17}}
    woken = to_json({ORDERS: 17}, 1_794_900_000_000)
    assert woken != to_json({ORDERS: 17}, 1_794_900_000_001)
    assert from_json(woken) == {ORDERS: 17}
    assert woken_at(woken) == 1_794_900_000_000
    assert woken_at({"orders": {"0": 17}}) is None  # A checkpoint from before there were wake-ups.
    assert parse_offsets(woken) == {"orders": {"0": 17}}
    assert parse_offsets("5") == {}  # The offset of Spark's rate source.
