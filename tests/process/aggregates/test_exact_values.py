"""Values in tables of their own: a step writes only its own values, however many the window has."""

import math

import polars as pl

from headwater.process.aggregates import aggregates as a
from headwater.process.kernel import Now
from headwater.process.tables.aggregate import AggregateKernel
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.triggers import EveryBatch
from headwater.process.windows.windowing import Mode, Windowing
from headwater.process.windows.windows import Session, Tumbling, Window

SCHEMA = pl.Schema({"key": pl.String, "at": pl.Int64, "value": pl.Float64})


def kernel_of(
    what: dict[str, a.Aggregate], where: Window, schema: pl.Schema = SCHEMA, **how: Mode
) -> WindowedKernel:
    windowing = Windowing(what=what, where=where, when=EveryBatch(), by=("key",), time="at", **how)
    return WindowedKernel.of(windowing, schema)


def rows(*values: float | None, schema: pl.Schema = SCHEMA) -> pl.DataFrame:
    return pl.DataFrame([("k", 1, value) for value in values], schema=schema, orient="row")


def test_a_step_writes_only_its_own_values() -> None:
    kernel = kernel_of({"x": a.distinct("value"), "y": a.quantile("value", 0.5)}, Tumbling("1 hour"))
    state = kernel.step(kernel.initial(), rows(*map(float, range(1000))), Now()).state
    state = {name: table.sealed() for name, table in state.items()}
    assert not any(kind.is_nested() for kind in state["windows"].schema.values())
    step = kernel.step(state, rows(5.0, 2000.0), Now())
    assert [step.state[name].fresh.height for name in ("values0", "values1")] == [2, 2]
    assert step.output.select("x", "y").rows() == [(1001, 499.0)]


def test_nan_infinity_and_negative_zero() -> None:
    kernel = kernel_of({"x": a.distinct("value"), "y": a.top_k("value", 9)}, Tumbling("1 hour"))
    state = kernel.initial()
    for some in ((math.nan, 0.0, None), (math.nan, -0.0, math.inf), (None,)):
        step = kernel.step(state, rows(*some), Now())
        state = {name: table.sealed() for name, table in step.state.items()}
    ((distinct, top),) = step.output.select("x", "y").rows()
    assert distinct == 3
    assert sorted(pair["count"] for pair in top) == [1, 2, 2]


def test_discarding_a_pane_deletes_its_values() -> None:
    kernel = kernel_of(
        {"x": a.distinct("value"), "y": a.collect("value")}, Tumbling("1 hour"), how=Mode.DISCARDING
    )
    step = kernel.step(kernel.initial(), rows(1.0, 2.0), Now())
    step = kernel.step(step.state, rows(2.0), Now())
    assert step.output.select("x", "y").rows() == [(1, [2.0])]
    assert len(step.state["values0"]) == len(step.state["values1"]) == 0


def test_values_are_deleted_with_their_window() -> None:
    kernel = kernel_of({"x": a.distinct("value")}, Tumbling("1 hour"))
    step = kernel.step(kernel.initial(), rows(1.0, 2.0), Now())
    assert len(step.state["values0"]) == 2
    step = kernel.step(step.state, rows(), Now(watermark=2 * 3600 * 10**6))
    assert (len(step.state["windows"]), len(step.state["values0"])) == (0, 0)


def test_values_of_sessions_nested_types_and_approximations_stay_in_the_row() -> None:
    nested = pl.Schema({**SCHEMA, "value": pl.List(pl.Int64)})
    assert set(kernel_of({"x": a.distinct("value")}, Session("1 hour")).initial()) == {"windows"}
    assert set(kernel_of({"x": a.collect("value")}, Tumbling("1 hour"), nested).initial()) == {"windows"}
    approximate = {"x": a.approx_quantile("value", 0.5), "y": a.approx_distinct("value")}
    assert set(kernel_of(approximate, Tumbling("1 hour")).initial()) == {"windows"}


def test_groups_count_their_values_and_delete_them() -> None:
    schema = pl.Schema({**SCHEMA, "_change": pl.Int8})
    kernel = AggregateKernel.of({"x": a.distinct("value")}, ["key"], schema)

    def changes(*signed: tuple[float, int]) -> pl.DataFrame:
        return pl.DataFrame([("k", 1, value, sign) for value, sign in signed], schema=schema, orient="row")

    step = kernel.step(kernel.initial(), changes((1.0, 1), (2.0, 1), (2.0, 1)), Now())
    assert step.output.rows() == [("k", 2, 1)]
    step = kernel.step(step.state, changes((2.0, -1), (3.0, 1)), Now())
    assert sorted(step.output.rows()) == [("k", 2, -1), ("k", 3, 1)]
    step = kernel.step(step.state, changes((1.0, -1), (2.0, -1), (3.0, -1)), Now())
    assert step.output.rows() == [("k", 3, -1)]
    assert all(len(table) == 0 for table in step.state.values())
