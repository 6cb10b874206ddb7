"""The values that describe a computation: which ones are rejected; and the output of a kernel besides panes."""

from typing import Any

import polars as pl
import pytest

import headwater as hw
from headwater.errors import InternalError, InvalidError
from headwater.process.kernel import Now
from headwater.process.windows import triggers as t
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.windowing import Windowing
from headwater.process.windows.windows import Window
from headwater.testing.simulator import Simulator

SCHEMA = pl.Schema({"k": pl.String, "event_time": pl.Int64, "x": pl.Int64})


def windowing(**arguments: Any) -> Windowing:
    return Windowing(**({"what": {"n": hw.count()}, "where": hw.Tumbling("10 seconds"), "by": ("k",)} | arguments))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hw.Hopping("1 minute", "soon"), "cannot read duration 'soon'"),
        (lambda: hw.Tumbling("1 minute", offset="2 minutes"), "cannot be shifted by '2 minutes'"),
        (lambda: hw.Session("1 minute", by="clock"), "by hw.EVENT_TIME or by hw.PROCESSING_TIME, not by 'clock'"),
        (lambda: hw.AfterCount(True), "AfterCount takes a number of events, 1 or more, not True"),
        (lambda: hw.Repeatedly(hw.Default), r"Repeatedly takes triggers, not .*; write Default\(\) with"),
        (lambda: hw.AfterWatermark(early=3), "AfterWatermark takes triggers, not 3"),
        (hw.AfterAny, "AfterAny takes one or more triggers, got none"),
        (lambda: windowing(what={}), "`what` is empty; name at least one aggregate"),
        (lambda: windowing(what={"n": "count"}), "n='count' is not an aggregate; use hw.sum"),
        (lambda: windowing(what={"k": hw.count()}), "would have two columns 'k'; rename one in `what`"),
        (lambda: windowing(what={"_change": hw.count()}), "would have two columns '_change'"),
        (lambda: windowing(by=("k", "k")), "`by` names a column twice"),
        (lambda: windowing(where="10 seconds"), "where='10 seconds' is not a window; use hw.Tumbling"),
        (lambda: windowing(when="always"), "when='always' is not a trigger; use hw.AfterWatermark"),
        (lambda: windowing(how="retract"), "how='retract' is not a mode; use hw.DISCARDING"),
        (lambda: windowing(lateness="long"), "cannot read duration 'long'"),
        (lambda: WindowedKernel.of(windowing(by=("z",)), SCHEMA), "there is no column 'z'; the columns are k, "),
        (lambda: WindowedKernel.of(windowing(time="k"), SCHEMA), "the event time 'k' is String, not Int64"),
    ],
)
def test_invalid_values_are_rejected_with_a_reason(make: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        make()


class Unfinished(t.Trigger):
    """A new trigger that does not define all properties."""

    may_finish = t.TriggerEnd.NEVER


class WithoutNode(t.Trigger):
    """A new trigger without a node in `trigger_columns`."""

    may_finish = t.TriggerEnd.NEVER
    has_deadlines = False
    sees_each_record = False
    has_on_time_pane = False


class WithoutBounds(Window):
    """A new kind of window without bounds in `placement`."""

    by = hw.EVENT_TIME
    is_fixed = True
    is_single = False
    merges = False
    ends_at_events = False


def test_a_new_trigger_or_window_that_is_incomplete_fails() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Unfinished()  # type: ignore[abstract]
    with pytest.raises(InternalError, match="add a node for it to trigger_columns"):
        WindowedKernel.of(windowing(when=WithoutNode()), SCHEMA)
    with pytest.raises(InternalError, match="add its bounds to placement"):
        WindowedKernel.of(windowing(where=WithoutBounds()), SCHEMA)


def test_a_group_column_may_be_named_like_a_partial_result() -> None:
    """Discarding panes clears the partial results (`_a0_n`), not the group's columns."""
    schema = pl.Schema({"_area": pl.String, "event_time": pl.Int64})
    spec = windowing(by=("_area",), when=hw.EveryBatch(), how=hw.DISCARDING)
    simulator = Simulator(WindowedKernel.of(spec, schema))
    for time in (1, 2):
        simulator.send(pl.DataFrame({"_area": ["north"], "event_time": [time]}, schema=schema))
    assert simulator.take_output().select("_area", "n", "pane").rows() == [("north", 1, 0), ("north", 1, 1)]


def rows(*events: tuple[str, int, int]) -> pl.DataFrame:
    return pl.DataFrame(list(events), schema=SCHEMA, orient="row")


ALL_WINDOWS = [
    hw.Tumbling("5 microseconds"),
    hw.Session("5 microseconds"),
    hw.Sliding("5 microseconds"),
    hw.Global(),
]


@pytest.mark.parametrize("where", ALL_WINDOWS)
def test_schemas_are_known_before_the_first_step(where: Any) -> None:
    kernel = WindowedKernel.of(windowing(where=where, how=hw.RETRACTING), SCHEMA)
    combined = kernel.combine(rows(("a", 1, 1), ("a", 1, 2)), Now(0, 0))
    assert combined.schema == kernel.combined_schema
    step = kernel.step(kernel.initial(), combined, Now(0, 0))
    step = kernel.step(step.state, rows(), Now(100, 0))
    assert step.output.schema == kernel.output_schema
    step = kernel.step(step.state, rows(("a", 1, 1)), Now(100, 0))
    if not isinstance(where, hw.Global):
        assert step.late is not None
        assert step.late.schema == kernel.late_schema


def test_combining_makes_fewer_rows() -> None:
    kernel = WindowedKernel.of(windowing(), SCHEMA)
    assert kernel.combine(rows(*(("a", n, n) for n in range(100))), Now()).height == 1


def test_combining_merges_rows_of_one_session() -> None:
    kernel = WindowedKernel.of(windowing(where=hw.Session("5 microseconds")), SCHEMA)
    combined = kernel.combine(rows(("a", 1, 1), ("a", 20, 1), ("a", 4, 1), ("b", 4, 1)), Now())
    spans = combined.select("k", "window_start", "window_end", "_n").rows()
    assert sorted(spans) == [("a", 1, 9, 2), ("a", 20, 25, 1), ("b", 4, 9, 1)]


@pytest.mark.parametrize("where", [*ALL_WINDOWS[:-1], hw.Hopping("6 microseconds", "2 microseconds")])
def test_a_row_without_a_time_is_in_the_late_ledger_once(where: Any) -> None:
    simulator = Simulator(WindowedKernel.of(windowing(where=where), SCHEMA))
    simulator.send(pl.DataFrame({"k": ["a", "a"], "event_time": [None, 1], "x": [7, 8]}, schema=SCHEMA))
    assert [(row["reason"], row["row"]["x"]) for row in simulator.take_late().rows(named=True)] == [
        ("no event time", 7)
    ]


def test_evicted_windows_are_counted_apart_from_late_rows() -> None:
    simulator = Simulator(WindowedKernel.of(windowing(where=hw.Tumbling("5 microseconds")), SCHEMA))
    simulator.send(rows(("a", 1, 1), ("b", 1, 1)))
    simulator.advance_watermark(6)
    simulator.send(rows(("a", 2, 1)))
    assert simulator.counters == {"panes": 2, "late": 1, "evicted": 2, "ignored": 0}


def test_a_step_changes_only_the_windows_of_its_rows() -> None:
    """No window is due and one key has a row: the other windows are not read, and stay unchanged."""
    kernel = WindowedKernel.of(windowing(), SCHEMA)
    first = kernel.step(kernel.initial(), rows(*((f"k{n}", 1, 1) for n in range(100))), Now(0, 0))
    second = kernel.step(first.state, rows(("k7", 2, 1)), Now(0, 0))
    changed = second.state["windows"].rows.join(first.state["windows"].rows, on=["k", "pending"], how="anti")
    assert changed["k"].to_list() == ["k7"]


def test_clock_and_watermark_do_not_go_back() -> None:
    simulator = Simulator(WindowedKernel.of(windowing(), SCHEMA))
    simulator.advance_watermark(5)
    simulator.advance_clock(5)
    with pytest.raises(InvalidError, match="the watermark is 5 and cannot go back to 4"):
        simulator.advance_watermark(4)
    with pytest.raises(InvalidError, match="the clock is at 5 and cannot go back to 4"):
        simulator.advance_clock(4)


def test_null_keys_are_a_key() -> None:
    simulator = Simulator(WindowedKernel.of(windowing(where=hw.Session("5 microseconds")), SCHEMA))
    frame = pl.DataFrame({"k": [None, None, "a"], "event_time": [1, 3, 3], "x": [1, 1, 1]}, schema=SCHEMA)
    simulator.send(frame[:1])
    simulator.send(frame[1:])
    simulator.advance_watermark(100)
    assert sorted(simulator.take_output().select("k", "n").rows(), key=str) == [("a", 1), (None, 2)]
