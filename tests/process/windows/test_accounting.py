"""Every row is in a result, in the late ledger or counted as ignored; and the last pane of a window is final."""

import os
from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.windowing import Windowing
from headwater.testing.simulator import Simulator
from tests.process.windows.test_windowed_against_oracle import TRIGGERS

EXAMPLES = int(os.environ.get("HEADWATER_EXAMPLES", "40"))
SCHEMA = pl.Schema({"key": pl.String, "event_time": pl.Int64, "id": pl.Int64})
CHANGES = pl.Schema({**SCHEMA, "_change": pl.Int8})
LAST = 2**62  # the watermark at the end of the input

WINDOWS = st.sampled_from(
    [
        hw.Tumbling("5 microseconds"),
        hw.Tumbling("5 microseconds", offset="2 microseconds"),
        hw.Hopping("10 microseconds", "5 microseconds"),
        hw.Hopping("2 microseconds", "5 microseconds", offset="1 microsecond"),
        hw.Sliding("5 microseconds"),
        hw.Session("5 microseconds"),
        hw.Global(),
    ]
)
TIMES = (
    st.none() | st.sampled_from([-7, -5, -1, 0, 4, 5, 9, 10, 15, 20, 2**63 - 1, -(2**63)]) | st.integers(-10, 25)
)
STEPS = st.lists(
    st.tuples(st.lists(st.tuples(st.sampled_from("aé"), TIMES), max_size=5), st.integers(0, 2)), max_size=7
)
LATENESS = st.sampled_from([None, "5 microseconds", "10 microseconds"])


def simulate(kernel: WindowedKernel, steps: Any) -> tuple[Simulator, dict[int, tuple[str, int | None]]]:
    """Send rows, then advance the watermark, which often stands exactly on the end of a window."""
    simulator, sent, watermark = Simulator(kernel), {}, -5
    for rows, more in steps:
        numbered = [(key, at, len(sent) + n) for n, (key, at) in enumerate(rows)]
        sent |= {number: (key, at) for key, at, number in numbered}
        weights = [1] * ("_change" in kernel.schema)
        simulator.send(pl.DataFrame([(*row, *weights) for row in numbered], schema=kernel.schema, orient="row"))
        simulator.advance_clock(simulator.now.processing_time + more)
        watermark += 5 * more
        simulator.advance_watermark(watermark)
    simulator.advance_watermark(LAST)
    return simulator, sent


def windows_of(where: Any, at: int | None) -> int:
    """Return how many windows a row is in, apart from sliding windows of later events."""
    if isinstance(where, hw.Hopping) and at is not None and abs(at) < 2**61:
        return 2 if where.period == "5 microseconds" and where.size == "10 microseconds" else int((at - 1) % 5 < 2)
    return 1


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WINDOWS, TRIGGERS, LATENESS, STEPS)
def test_every_row_is_in_a_result_or_in_the_ledger_or_ignored(
    where: Any, when: Any, lateness: Any, steps: Any
) -> None:
    what = {"ids": hw.collect("id")}
    windowing = Windowing(what=what, where=where, when=when, how=hw.DISCARDING, by=("key",), lateness=lateness)
    simulator, sent = simulate(WindowedKernel.of(windowing, SCHEMA), steps)
    output, late = simulator.take_output(), simulator.take_late()
    seen: Counter[int] = Counter()
    for end, ids in output.select("window_end", "ids").rows() if output.height else ():
        # A sliding window also contains rows of earlier events.
        is_own = [not isinstance(where, hw.Sliding) or sent[number][1] == end - 1 for number in ids]
        seen.update(number for number, own in zip(ids, is_own, strict=True) if own)
    for end, row in late.select("window_end", "row").rows() if late.height else ():
        if not isinstance(where, hw.Sliding) or end is None or row["event_time"] == end - 1:
            seen[row["id"]] += 1
    expected = Counter({number: windows_of(where, at) for number, (_, at) in sent.items()})
    assert seen == +expected
    assert simulator.counters["ignored"] == len(sent) - len(+expected)
    assert simulator.counters["late"] == late.height


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    WINDOWS,
    TRIGGERS,
    st.sampled_from([hw.DISCARDING, hw.ACCUMULATING, hw.RETRACTING]),
    LATENESS,
    STEPS,
    st.booleans(),
)
def test_no_pane_follows_a_final_one(
    where: Any, when: Any, how: Any, lateness: Any, steps: Any, changes: bool
) -> None:
    how = hw.RETRACTING if changes else how
    windowing = Windowing(what={"n": hw.count()}, where=where, when=when, how=how, by=("key",), lateness=lateness)
    simulator, _ = simulate(WindowedKernel.of(windowing, CHANGES if changes else SCHEMA), steps)
    output = simulator.take_output()
    panes = output.filter(pl.col("_change") > 0).rows(named=True) if output.height else []
    final = set()
    for pane in panes:
        window = (pane["key"], pane["window_start"], pane["window_end"])
        if not isinstance(where, hw.Session):
            assert window not in final  # a session of the same bounds may exist again
        if pane["is_final"]:
            final.add(window)
        if lateness is None and pane["timing"] != "early":
            assert pane["is_final"]  # at its end, a window without lateness is complete
    assert simulator.states[0]["windows"].rows.height == 0


def one(where: Any, *events: Any, watermark: int, **others: Any) -> list[tuple[Any, ...]]:
    arguments = {"what": {"n": hw.count()}, "where": where} | others
    simulator = Simulator(WindowedKernel.of(Windowing(**arguments), SCHEMA))
    simulator.send(pl.DataFrame([("k", at, 0) for at in events], schema=SCHEMA, orient="row"))
    simulator.advance_watermark(watermark)
    output = simulator.take_output()
    return output.select("window_start", "window_end", "n", "is_final").rows() if output.height else []


def test_the_pane_of_a_window_that_can_get_no_more_rows_is_final() -> None:
    assert one(hw.Tumbling("10 microseconds"), 5, watermark=10) == [(0, 10, 1, True)]
    assert one(hw.Session("10 microseconds"), 5, watermark=15) == [(5, 15, 1, True)]
    assert one(hw.Sliding("10 microseconds"), 5, watermark=6) == [(-5, 6, 1, True)]
    late = {"lateness": "2 microseconds"}
    assert one(hw.Tumbling("10 microseconds"), 5, watermark=11, **late) == [(0, 10, 1, False)]
    assert one(hw.Tumbling("10 microseconds"), 5, watermark=12, **late) == [(0, 10, 1, True)]


YEAR_1, YEAR_9999 = -62_135_596_800_000_000, 253_402_300_799_999_999


@pytest.mark.parametrize("at", [YEAR_1, -1, 0, YEAR_9999, 2**61, -(2**61)])
@pytest.mark.parametrize("lateness", [None, "3652500 days"])
def test_windows_of_extreme_times_do_not_overflow(at: int, lateness: str | None) -> None:
    day = 86_400_000_000
    start = at - at % day
    for where, span in [
        (hw.Tumbling("1 day"), (start, start + day)),
        (hw.Session("3652500 days"), (at, at + 3_652_500 * day)),
        (hw.Sliding("3652500 days"), (at - 3_652_500 * day, at + 1)),
    ]:
        assert one(where, at, at, watermark=span[1] - 1, lateness=lateness) == []
        assert one(where, at, at, watermark=span[1], lateness=lateness) == [(*span, 2, lateness is None)]
        assert one(where, at, at, watermark=LAST, lateness=lateness) == [(*span, 2, True)]


def test_durations_that_overflow_are_refused() -> None:
    for text in ("3652501 days", "99999999999999999999 weeks"):
        with pytest.raises(hw.errors.InvalidError, match="is too long: the longest is 3652500 days"):
            hw.Tumbling(text)


def test_events_exactly_a_gap_apart_are_two_sessions() -> None:
    assert one(hw.Session("10 microseconds"), -10, 0, 10, 19, watermark=LAST) == [
        (-10, 0, 1, True), (0, 10, 1, True), (10, 29, 2, True)
    ]  # fmt: skip


def test_how_late_a_row_is_is_unknown_before_the_first_watermark() -> None:
    windowing = Windowing(what={"n": hw.count()}, where=hw.Global(), when=hw.AfterCount(1))
    simulator = Simulator(WindowedKernel.of(windowing, SCHEMA))
    for at in (1, 2, None):
        simulator.send(pl.DataFrame([("k", at, 0)], schema=SCHEMA, orient="row"))
    found = simulator.take_late().select("event_time", "late_by", "reason").rows()
    assert found == [(2, None, "closed"), (None, None, "closed")]


def test_an_event_of_the_last_day_does_not_end_the_global_window() -> None:
    windowing = Windowing(what={"n": hw.count()}, where=hw.Global(), when=hw.EveryBatch())
    simulator = Simulator(WindowedKernel.of(windowing, SCHEMA))
    for at in (YEAR_9999, 5):
        simulator.send(pl.DataFrame([("k", at, 0)], schema=SCHEMA, orient="row"))
        simulator.advance_watermark(YEAR_9999)
    assert simulator.take_output().select("n", "is_final").rows() == [(1, False), (2, False)]


@pytest.mark.parametrize("schema", [SCHEMA, CHANGES])
@pytest.mark.parametrize("combining", [True, False])
def test_the_global_window_has_the_rows_without_a_time_as_its_earliest(schema: Any, combining: bool) -> None:
    what = {
        "n": hw.count(),
        "ids": hw.count("id"),
        "first": hw.first("id"),
        "last": hw.last("id"),
        "all": hw.collect("id"),
    }
    kernel = WindowedKernel.of(Windowing(what=what, where=hw.Global(), when=hw.EveryBatch()), schema)
    rows = pl.DataFrame({"key": ["a"] * 3, "event_time": [5, None, -5], "id": [1, 2, 3], "_change": [1] * 3})
    simulator = Simulator(kernel)
    sent = rows.select(schema.names()).cast(schema)
    simulator.send(kernel.combine(sent, simulator.now) if combining else sent)
    assert simulator.take_output().select(*what).rows() == [(3, 3, 2, 1, [2, 3, 1])]
    assert not simulator.take_late().height
