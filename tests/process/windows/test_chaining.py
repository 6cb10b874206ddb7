"""Windowed results windowed again: the final result equals one computed from the final intermediate rows."""

from collections import Counter, defaultdict
from typing import Any

import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.windowing import Windowing
from headwater.testing.simulator import Simulator

SCHEMA = pl.Schema({"key": pl.String, "event_time": pl.Int64, "value": pl.Int64})
FIRST = st.sampled_from(
    [hw.Tumbling("5 microseconds"), hw.Session("4 microseconds"), hw.Sliding("3 microseconds")]
)
TRIGGERS = st.sampled_from(
    [hw.EveryBatch(), hw.AfterWatermark(early=hw.AfterCount(2), late=hw.AfterCount(1)), hw.PerRecord()]
)
EVENTS = st.tuples(st.sampled_from("ab"), st.integers(0, 39), st.integers(-3, 3))
STEPS = st.lists(st.tuples(st.lists(EVENTS, max_size=4), st.integers(0, 6)), max_size=8)


def sum_changes(changes: pl.DataFrame, *columns: str) -> Counter[Any]:
    rows: Counter[Any] = Counter()
    if changes.height:
        for *row, change in changes.select(*columns, "_change").rows():
            rows[tuple(row)] += change
    assert all(number >= 0 for number in rows.values())
    return +rows


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FIRST, TRIGGERS, STEPS)
def test_a_chain_computes_from_the_rows_that_remain(where: Any, when: Any, steps: Any) -> None:
    first = WindowedKernel.of(
        Windowing(
            what={"n": hw.count(), "most": hw.max("value")},
            where=where,
            when=when,
            how=hw.RETRACTING,
            by=("key",),
            lateness="1 hour",
        ),
        SCHEMA,
    )
    second = WindowedKernel.of(
        Windowing(
            what={"total": hw.sum("n"), "windows": hw.count(), "most": hw.max("most"), "ns": hw.distinct("n")},
            where=hw.Tumbling("20 microseconds"),
            when=hw.EveryBatch(),
            how=hw.RETRACTING,
            lateness="1 hour",
        ),
        first.output_schema,
    )
    alone, chain, watermark = Simulator(first), Simulator(first, second), 0
    for rows, more in steps:
        watermark += more
        for simulator in (alone, chain):
            simulator.send(pl.DataFrame(rows, schema=SCHEMA, orient="row"))
            simulator.advance_watermark(watermark)
    intermediate = sum_changes(alone.take_output(), "event_time", "n", "most", "window_start", "key")
    groups: dict[int, list[Any]] = defaultdict(list)
    for (at, n, most, *_), _ in intermediate.items():
        groups[at // 20 * 20].append((n, most))
    expected = Counter(
        (start, sum(n for n, _ in rows), len(rows), max(m for _, m in rows), len({n for n, _ in rows}))
        for start, rows in groups.items()
    )
    assert sum_changes(chain.take_output(), "window_start", "total", "windows", "most", "ns") == expected
