"""Sessions and sliding windows over changes: panes are corrected until they are those of the rows that remain."""

import os
from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.errors import InvalidError
from headwater.process.windows import triggers as t
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.windowing import Mode, Stamp, Windowing
from headwater.testing.simulator import Simulator
from tests.process.oracle_changes import chains
from tests.process.windows.test_windowed_against_oracle import CHANGES, TRIGGERS, run

EXAMPLES = int(os.environ.get("HEADWATER_EXAMPLES", "30"))
DURATION = 6
MOVING = st.sampled_from([hw.Session(f"{DURATION} microseconds"), hw.Sliding(f"{DURATION} microseconds")])
WHAT = {
    "n": hw.count(),
    "total": hw.sum("value"),
    "least": hw.min("value"),
    "last": hw.last("value"),
    "values": hw.collect("value"),
    "median": hw.quantile("value", 0.5),
}
ROWS = st.tuples(st.sampled_from(["a", None]), st.integers(0, 30), st.integers(-3, 3))
ENDLESS = TRIGGERS.filter(lambda trigger: trigger.may_finish is t.TriggerEnd.NEVER)


@st.composite
def batches(draw: st.DrawFn, steps: int = 8) -> list[list[tuple[Any, ...]]]:
    """Draw batches of changes; a row is retracted only after it was inserted."""
    found, present = [], []
    for _ in range(draw(st.integers(1, steps))):
        inserted = draw(st.lists(ROWS, max_size=5))
        present += inserted
        retracted = draw(st.lists(st.integers(0, len(present) - 1), max_size=4, unique=True)) if present else []
        found.append([(*row, 1) for row in inserted] + [(*present[i], -1) for i in retracted])
        present = [row for i, row in enumerate(present) if i not in retracted]
    return found


def spec(where: Any, when: Any, **others: Any) -> Windowing:
    return Windowing(**({"what": WHAT, "where": where, "when": when, "by": ("key",)} | others))


def frame(rows: Any) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=CHANGES, orient="row")


def final_windows(where: Any, changes: list[tuple[Any, ...]]) -> Counter[Any]:
    """Compute the windows of the rows that remain, in plain Python."""
    rows: Counter[Any] = Counter()
    for key, at, value, change in changes:
        rows[key, at, value] += change
    remaining = sorted(rows.elements(), key=lambda row: row[1])
    windows: Counter[Any] = Counter()
    for key in {row[0] for row in remaining}:
        mine = [row for row in remaining if row[0] == key]
        if isinstance(where, hw.Session):
            spans = chains([at for _, at, _ in mine], DURATION)
        else:
            spans = [(at - DURATION, at + 1) for at in {at for _, at, _ in mine}]
        for start, end in spans:
            inside = [row for row in mine if start <= row[1] < end]
            values = sorted(value for _, _, value in inside)
            lasts = {value for _, at, value in inside if at == inside[-1][1]}
            result = (len(values), sum(values), values[0], tuple(values), values[(len(values) - 1) // 2])
            windows[key, start, end, *result, frozenset(lasts)] += 1
    return windows


def remaining_panes(output: pl.DataFrame) -> Counter[Any]:
    rows: Counter[Any] = Counter()
    for *row, change in output.select("key", "window_start", "window_end", *WHAT, "_change").rows():
        rows[*row[:7], tuple(row[7]), *row[8:]] += change
    assert set(rows.values()) <= {0, 1}
    return +rows


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MOVING, ENDLESS, batches(), st.lists(st.sampled_from(["", "crash", "restart", "clock"]), min_size=8))
def test_panes_add_up_to_the_windows_of_the_rows_that_remain(
    where: Any, when: Any, steps: Any, events: list[str]
) -> None:
    """No row is late: the watermark passes the windows, but the lateness is longer than the data."""
    simulator = Simulator(WindowedKernel.of(spec(where, when, lateness="1 second"), CHANGES))
    for number, (changes, event) in enumerate(zip(steps, events, strict=False)):
        if event == "clock":
            simulator.advance_clock(number + 1)
        elif event:
            getattr(simulator, event)()
        simulator.send(frame(changes))
        simulator.advance_watermark(5 * number)
    simulator.advance_watermark(2_000_000)
    assert not simulator.take_late().height
    found = simulator.take_output()
    expected = final_windows(where, [change for step in steps for change in step])
    if not found.height:
        assert not expected
        return
    panes = remaining_panes(found)
    assert len(panes) == expected.total()
    for key, start, end, n, total, least, last, values, median in panes:
        matching = [e for e in expected if e[:3] == (key, start, end)]
        assert [e[3:8] for e in matching] == [(n, total, least, tuple(sorted(values)), median)]
        assert last in matching[0][8]
    assert all(len(table) == 0 for name, table in simulator.states[0].items() if name != "closed")


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MOVING, TRIGGERS, batches(), st.data(), st.booleans(), st.booleans())
def test_panes_and_late_rows_equal_those_of_the_oracle(
    where: Any, when: Any, steps: Any, data: Any, combining: bool, sealing: bool
) -> None:
    lateness = data.draw(st.sampled_from([None, "2 microseconds", "9 microseconds"]))
    windowing = spec(
        where, when, how=Mode.RETRACTING, lateness=lateness, what={"n": hw.count(), "least": hw.min("value")}
    )
    times = st.tuples(st.integers(0, 8), st.integers(0, 5), st.booleans())
    run(windowing, CHANGES, [(changes, *data.draw(times)) for changes in steps], combining, sealing)


@pytest.mark.parametrize("where", [hw.Session("10 microseconds"), hw.Sliding("10 microseconds")])
@pytest.mark.parametrize("how", [hw.ACCUMULATING, hw.DISCARDING])
def test_a_mode_that_leaves_wrong_panes_is_refused(where: Any, how: Any) -> None:
    with pytest.raises(InvalidError, match=r"the input has changes.*use how=hw\.RETRACTING, or leave `how` out"):
        WindowedKernel.of(spec(where, hw.Default(), how=how), CHANGES)


def test_windows_by_processing_time_over_changes_are_refused() -> None:
    where = hw.Tumbling("10 seconds", by=hw.PROCESSING_TIME)
    with pytest.raises(InvalidError, match=r"hw\.Tumbling is by processing time: .*use windows by event time"):
        WindowedKernel.of(spec(where, hw.Default()), CHANGES)
    WindowedKernel.of(spec(hw.Global(by=hw.PROCESSING_TIME), hw.EveryBatch()), CHANGES)
    with pytest.raises(InvalidError, match="use the stamp 'end'"):
        WindowedKernel.of(spec(hw.Session("10 seconds"), hw.Default(), stamp=Stamp.LATEST), CHANGES)


@pytest.mark.parametrize(
    ("where", "schema", "how"),
    [
        (hw.Tumbling("10 seconds"), CHANGES, Mode.RETRACTING),
        (hw.Session("10 seconds"), CHANGES, Mode.RETRACTING),
        (hw.Session("10 seconds"), pl.Schema(list(CHANGES.items())[:3]), Mode.RETRACTING),
        (hw.Sliding("10 seconds"), pl.Schema(list(CHANGES.items())[:3]), Mode.ACCUMULATING),
        (hw.Tumbling("10 seconds"), pl.Schema(list(CHANGES.items())[:3]), Mode.ACCUMULATING),
    ],
)
def test_the_default_mode_depends_on_the_input_and_the_windows(where: Any, schema: Any, how: Mode) -> None:
    assert WindowedKernel.of(spec(where, hw.Default(), what={"n": hw.count()}), schema).windowing.how is how


@pytest.mark.parametrize("changes", [True, False])
def test_the_state_of_sliding_windows_has_only_the_columns_they_need(changes: bool) -> None:
    schema = pl.Schema({**CHANGES, "unused": pl.String} if changes else {**dict(list(CHANGES.items())[:3])})
    kernel = WindowedKernel.of(spec(hw.Sliding("10 seconds"), hw.Default(), what={"n": hw.count()}), schema)
    assert all(not dtype.is_nested() for dtype in kernel.initial()["points"].schema.values())
    assert "unused" not in str(kernel.initial()["points"].schema)
