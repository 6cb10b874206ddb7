"""The kernel compared with the oracle: any window, trigger, mode and aggregate, over events out of order."""

import os
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.process import table as tables
from headwater.process.aggregates import aggregates as a
from headwater.process.kernel import Now
from headwater.process.windows import triggers as t
from headwater.process.windows import windows as w
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.windowing import Mode, Stamp, Windowing
from tests.process.oracle import Oracle
from tests.process.oracle_changes import ChangesOracle
from tests.process.relations import frozen

EXAMPLES = int(os.environ.get("HEADWATER_EXAMPLES", "60"))  # more examples find rare cases
SCHEMA = pl.Schema({"key": pl.String, "event_time": pl.Int64, "value": pl.Int64})
CHANGES = pl.Schema({**SCHEMA, "_change": pl.Int8})

TIMES = st.sampled_from(w.Time)
DURATIONS = st.integers(1, 12).map(lambda n: f"{n} microseconds")
WINDOWS = st.one_of(
    st.builds(w.Tumbling, DURATIONS, by=TIMES),
    st.builds(w.Tumbling, st.just("10 microseconds"), offset=st.just("3 microseconds")),
    st.builds(w.Hopping, DURATIONS, DURATIONS, by=TIMES),
    st.builds(w.Session, DURATIONS, by=TIMES),
    st.builds(w.Session, DURATIONS),
    st.builds(w.Sliding, DURATIONS, by=TIMES),
    st.builds(w.Global, by=TIMES),
)
LEAVES = st.one_of(
    st.just(t.Default()),
    st.just(t.AfterWatermark()),
    st.just(t.EveryBatch()),
    st.just(t.PerRecord()),
    st.builds(t.AfterCount, st.integers(1, 3)),
    st.builds(t.AfterProcessingTime, st.none() | DURATIONS, st.none() | DURATIONS),
)
TRIGGERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(t.AfterWatermark, st.none() | inner, st.none() | inner),
        st.builds(t.Repeatedly, inner),
        st.builds(t.AfterAny, inner, inner),
        st.builds(t.AfterAll, inner, inner),
        st.builds(t.AfterEach, inner, inner),
        st.builds(t.OrFinally, inner, inner),
    ),
    max_leaves=4,
)
AGGREGATES = [
    a.count(),
    a.count("value"),
    a.sum("value"),
    a.mean("value"),
    a.min("value"),
    a.max("value"),
    a.collect("value"),
    a.distinct("value"),
    a.quantile("value", 0.5),
    a.quantile("value", 0.9),
    a.top_k("value", 2),
    a.approx_distinct("value"),
    a.approx_top_k("value", 2),
]
ENDS = [a.first("value"), a.last("value")]

EVENTS = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 40), st.none() | st.integers(-3, 3))
STEPS = st.lists(
    st.tuples(st.lists(EVENTS, max_size=4), st.integers(0, 8), st.integers(0, 5), st.booleans()), max_size=8
)


@st.composite
def windowings(draw: st.DrawFn, changes: bool = False) -> Windowing:
    pool = AGGREGATES if changes else AGGREGATES + ENDS
    chosen = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
    where, how, stamp = draw(WINDOWS), draw(st.sampled_from(Mode)), draw(st.sampled_from(Stamp))
    if changes and not where.is_single:
        where = replace(where, by=w.EVENT_TIME)  # others are refused
    if changes and not where.is_fixed:
        how, stamp = Mode.RETRACTING, Stamp.END
    return Windowing(
        what={f"x{number}": aggregate for number, aggregate in enumerate(chosen)},
        where=where,
        when=draw(TRIGGERS),
        how=how,
        by=("key",),
        lateness=draw(st.none() | DURATIONS),
        stamp=stamp,
    )


def comparable(aggregate: a.Aggregate, value: Any) -> Any:
    if isinstance(value, list):
        if aggregate.function is a.Function.COLLECT:
            return tuple(sorted(value))
        return tuple(tuple(v.values()) if isinstance(v, dict) else v for v in value)
    return frozen(value)


def panes_of(windowing: Windowing, output: pl.DataFrame) -> list[tuple[Any, ...]]:
    aggregates = list(windowing.what.values())
    panes = []
    for row in output.rows():
        values = tuple(comparable(agg, row[3 + i]) for i, agg in enumerate(aggregates))
        panes.append((*row[:3], *values, *row[3 + len(aggregates) :]))
    return panes


def late_of(late: pl.DataFrame | None) -> list[tuple[Any, ...]]:
    if late is None:
        return []
    return [(*row[:7], row[7]["value"]) for row in late.rows()]


def run(windowing: Windowing, schema: pl.Schema, steps: Any, combining: bool, sealing: bool = False) -> None:
    """Run a computation on the kernel and on the oracle, and compare their output after each step.

    With `combining`, rows are combined before the step, in two parts; with `sealing`, all state is in runs.
    """
    kernel = WindowedKernel.of(windowing, schema)
    oracle = ChangesOracle(windowing) if "_change" in schema else Oracle(windowing, changes=False)
    state, watermark, clock = kernel.initial(), 0, 0
    for number, (rows, more, ticks, with_rows_last) in enumerate(steps):
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        clock += ticks
        times = [(watermark, rows, frame), (watermark + more, [], frame.clear())]
        watermark += more
        for mark, events, sent in times if not with_rows_last else times[:1]:
            now = Now(mark, clock)
            if combining and sent.height:
                middle = sent.height // 2
                halves = [kernel.combine(sent[:middle], now), kernel.combine(sent[middle:], now)]
                sent = pl.concat(halves, how="diagonal")
            step = kernel.step(state, sent, now)
            state = {name: table.sealed() for name, table in step.state.items()} if sealing else step.state
            oracle.output, oracle.late = [], []
            oracle.step([dict(zip(schema, event, strict=True)) for event in events], mark, clock)
            assert Counter(panes_of(windowing, step.output)) == Counter(oracle.output), number
            assert Counter(late_of(step.late)) == Counter(oracle.late), number
        assert len(state["windows"]) == len(oracle.windows)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(windowings(), STEPS, st.booleans(), st.booleans())
def test_panes_and_late_rows_equal_those_of_the_oracle(
    windowing: Windowing, steps: Any, combining: bool, sealing: bool
) -> None:
    run(windowing, SCHEMA, steps, combining, sealing)


def test_keys_with_the_same_hash_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    real_hash = tables.key_hash
    monkeypatch.setattr(tables, "key_hash", lambda rows, some: real_hash(rows, some) % np.uint64(3))

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(windowings(), STEPS, st.booleans())
    def check(windowing: Windowing, steps: Any, combining: bool) -> None:
        run(windowing, SCHEMA, steps, combining, sealing=True)

    check()


@st.composite
def change_steps(draw: st.DrawFn) -> Any:
    """Draw steps in which inserted rows may be retracted."""
    steps, present = [], []
    for rows, more, ticks, last in draw(STEPS):
        changes = [(*row, 1) for row in rows]
        present += rows
        if present:
            retracted = draw(st.lists(st.integers(0, len(present) - 1), max_size=3, unique=True))
            changes += [(*present[i], -1) for i in retracted]
            present = [row for i, row in enumerate(present) if i not in retracted]
        steps.append((changes, more, ticks, last))
    return steps


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(windowings(changes=True), change_steps(), st.booleans(), st.booleans())
def test_retracted_rows_have_no_effect(windowing: Windowing, steps: Any, combining: bool, sealing: bool) -> None:
    run(windowing, CHANGES, steps, combining, sealing)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(windowings(), STEPS)
def test_retractions_and_inserts_add_up(windowing: Windowing, steps: Any) -> None:
    """Every retracted row was inserted before, and one row remains for each window that fired."""
    windowing = replace(windowing, how=Mode.RETRACTING)
    kernel, oracle = WindowedKernel.of(windowing, SCHEMA), Oracle(windowing, changes=False)
    state, present, clock, watermark = kernel.initial(), Counter[Any](), 0, 0
    for rows, more, ticks, _ in steps:
        clock += ticks
        for events, mark in ((rows, watermark), ([], watermark + more)):
            step = kernel.step(state, pl.DataFrame(events, schema=SCHEMA, orient="row"), Now(mark, clock))
            state = step.state
            oracle.step([dict(zip(SCHEMA, event, strict=True)) for event in events], mark, clock)
            for pane in panes_of(windowing, step.output):
                present[pane[:-1]] += pane[-1]
                assert present[pane[:-1]] in (0, 1)
        watermark += more
    final: Counter[Any] = Counter()
    for *pane, change in oracle.output:
        final[tuple(pane)] += change
    assert +present == +final
