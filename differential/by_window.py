"""Operators that group or order the rows of windows by the column `window`, a struct."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

import headwater as hw
from differential.dialects import Dialect
from differential.operators import KernelForm, Operator, OtherInput, derived, derived_in_sql, derived_on_spark
from differential.windows import Windowed
from headwater.process.kernel import Kernel, KernelStep, Now, State
from headwater.process.tables.aggregate import AggregateKernel
from headwater.process.tables.ranking import RankingKernel, RankOrder

_FIRST = ("v desc", "k")
_BY_WINDOW: dict[str, Any] = {"what": {"v": hw.sum("v"), "k": hw.max("k")}, "by": "window"}


@dataclass(frozen=True, slots=True)
class Chained:
    """Two kernels, the second of which gets the output of the first."""

    first: Kernel
    between: Callable[[pl.DataFrame], pl.DataFrame]
    second: Kernel

    @property
    def schema(self) -> pl.Schema:
        return self.first.schema

    def initial(self) -> State:
        return _joined(self.first.initial(), self.second.initial())

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        return self.first.combine(rows, now)

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        states = [{name[1:]: table for name, table in state.items() if name[0] == part} for part in "12"]
        first = self.first.step(states[0], rows, now)
        second = self.second.step(states[1], self.between(first.output), now)
        return KernelStep(
            _joined(first.state, second.state), second.output, late=first.late, counters=first.counters
        )


def _joined(first: State, second: State) -> State:
    return {
        f"{part}{name}": table for part, state in (("1", first), ("2", second)) for name, table in state.items()
    }


@dataclass(frozen=True)
class ByWindow(Operator):
    """Windows by `k`, and then `top` or `aggregate` by window, or `deduplicate` or `rolling` in their order."""

    then: str = "top"
    windows: Windowed = field(default_factory=lambda: Windowed(how=None))

    needs_time = True
    keeps_time = False

    @property
    def has_own_time(self) -> bool:  # type: ignore[override]
        return self.windows.has_own_time and self.then != "aggregate"

    def on_spark(self, rows: Any, other: OtherInput) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        windows = rows.transform(self.windows.on_rows())
        match self.then:
            case "top":
                found = hw.top(windows, 2, order=_FIRST, by="window")
            case "aggregate":
                found = hw.aggregate(windows, **_BY_WINDOW)
            case "deduplicate":
                found = hw.deduplicate(windows, key="k", keep="last", order="window")
            case _:
                rolled = hw.rolling(windows, last=2, what={"total": hw.sum("v")}, by="k", order="window")
                found = rolled.withColumn("v", F.col("total"))
        kept = {"id": F.unix_micros("window.start")}
        if self.has_own_time:
            kept["ts"] = F.col("event_time")
        return derived_on_spark(found, kept, ())

    def as_kernel(self, schema: pl.Schema) -> KernelForm:
        first = self.windows.as_kernel(schema).kernel
        window = pl.struct(pl.col("window_start").alias("start"), pl.col("window_end").alias("end"))

        def between(panes: pl.DataFrame) -> pl.DataFrame:
            return panes.select("k", window.alias("window"), "v", "event_time", "_change")

        second = self._second(between(pl.DataFrame(schema=first.output_schema)).schema)
        kept = {"id": pl.col("window").struct.field("start")}
        if self.has_own_time:
            kept["ts"] = pl.col("event_time")

        def finish(out: pl.DataFrame) -> pl.DataFrame:
            return derived(
                out.with_columns(pl.col("total").alias("v")) if "total" in out.columns else out, kept, ()
            )

        return KernelForm(Chained(first, between, second), lambda rows, _: rows, finish)

    def _second(self, schema: pl.Schema) -> Kernel:
        order = RankOrder.read("window")
        match self.then:
            case "top":
                return RankingKernel.top(2, ["window"], RankOrder.read(_FIRST), schema)
            case "aggregate":
                return AggregateKernel.of(_BY_WINDOW["what"], ["window"], schema, None)
            case "deduplicate":
                return RankingKernel.top(1, ["k"], order.reversed, schema)
            case _:
                return RankingKernel.rolling(2, {"total": hw.sum("v")}, ["k"], order, schema)

    def in_sql(self, dialect: Dialect, names: Sequence[str]) -> str:
        windows = self.windows.grouped_in_sql(dialect, names)
        time = ", we - 1 as ts" if self.has_own_time else ""
        match self.then:
            case "top":
                order = "partition by ws order by v desc nulls last, k asc nulls first"
                found = _ranked(windows, order, 2)
            case "aggregate":
                found = f"select ws, max(k) as k, cast(sum(v) as bigint) as v from ({windows}) w group by ws"
            case "deduplicate":
                found = _ranked(windows, "partition by k order by ws desc", 1)
            case _:
                over = "partition by k order by ws rows between 1 preceding and current row"
                found = f"select ws, we, k, cast(sum(v) over ({over}) as bigint) as v from ({windows}) w"
        return f"select ws as id, {derived_in_sql(dialect)}{time} from ({found}) found"


def _ranked(rows: str, order: str, number: int) -> str:
    ranked = f"select *, row_number() over ({order}) as _rank from ({rows}) w"
    return f"select * from ({ranked}) ranked where _rank <= {number}"
