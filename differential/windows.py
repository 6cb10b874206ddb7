"""`hw.windowed` as an operator of queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

import headwater as hw
from differential.dialects import Dialect
from differential.measures import Measure
from differential.operators import (
    KernelForm,
    Operator,
    OtherInput,
    derived,
    derived_in_sql,
    derived_on_spark,
    measures_in_sql,
    what_of,
)
from differential.rows import SPAN
from headwater.change import CHANGE
from headwater.process.durations import micros
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.placement import BEGINNING_OF_TIME, END_OF_TIME
from headwater.process.windows.triggers import Default
from headwater.process.windows.windowing import Windowing
from headwater.spark.operators.windowed import FOREVER

TUMBLING = hw.Tumbling("10 seconds")
LATENESS = "1 day"
assert micros(LATENESS) > SPAN


@dataclass(frozen=True)
class Windowed(Operator):
    """`hw.windowed` by `k`. Without a mode, Spark's own operator or the default mode is used."""

    where: Any = TUMBLING
    when: Any = None
    how: Any = hw.RETRACTING
    lateness: str | None = None
    measures: tuple[Measure, ...] = ()

    needs_time = True

    @property
    def is_native(self) -> bool:
        """True if Spark's own operator computes it over rows; its output has no event time."""
        return self.how is None and self.when is None and self.lateness is None and self.where.is_fixed

    @property
    def has_own_time(self) -> bool:  # type: ignore[override]
        return not self.is_native

    keeps_time = False

    @property
    def retracts(self) -> bool:  # type: ignore[override]
        return self.how is hw.RETRACTING or (self.how is None and (self.is_native or self.where.merges))

    @property
    def passes_changes(self) -> bool:  # type: ignore[override]
        return self.how is None or self.how is hw.RETRACTING

    def _what(self) -> dict[str, Any]:
        return what_of(self.measures, n=hw.count(), v=hw.sum("v"))

    def on_spark(self, rows: Any, other: OtherInput) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        found = rows.transform(self.on_rows())
        kept = {"id": F.unix_micros("window.start")}
        if self.has_own_time:
            kept["ts"] = F.col("event_time")
        return derived_on_spark(found, kept, self.measures)

    def on_rows(self) -> Any:
        """Return the function of a DataFrame that users write."""
        return hw.windowed(
            what=self._what(),
            where=self.where,
            when=self.when,
            how=self.how,
            by=["k"],
            lateness=self.lateness,
        )

    def as_kernel(self, schema: pl.Schema) -> KernelForm:
        windowing = Windowing(
            what=self._what(),
            where=self.where,
            when=self.when or (hw.EveryBatch() if self.is_native else Default()),
            how=hw.RETRACTING if self.is_native else self.how,
            by=("k",),
            lateness=FOREVER if self.is_native else self.lateness,
            time="ts",
        )
        kernel = WindowedKernel.of(windowing.over(changes=CHANGE in schema), schema)
        kept = {"id": pl.col("window_start")}
        if self.has_own_time:
            kept["ts"] = pl.col("event_time")
        return KernelForm(kernel, lambda rows, _: rows, lambda out: derived(out, kept, self.measures))

    def in_sql(self, dialect: Dialect, names: Sequence[str]) -> str:
        extra = "".join(f", m{n}" for n in range(len(self.measures)))
        time = ", we - 1 as ts" if self.has_own_time else ""
        inner = self.grouped_in_sql(dialect, names)
        return f"select ws as id, {derived_in_sql(dialect)}{time}{extra} from ({inner}) grouped"

    def grouped_in_sql(self, dialect: Dialect, names: Sequence[str]) -> str:
        """Return a query for the windows, with the columns `k`, `ws`, `we`, `n`, `v` and the measures."""
        measures = measures_in_sql(dialect, self.measures, "ts" if "ts" in names else "0")
        return (
            f"select k, ws, we, count(*) as n, cast(sum(v) as bigint) as v{measures} "
            f"from ({self._placed(names)}) placed group by k, ws, we"
        )

    def _placed(self, names: Sequence[str]) -> str:
        """Return a query for the rows with the bounds of their windows."""
        where = self.where
        rows = "(select * from {input} where ts is not null) timed"
        match where:
            case hw.Global():
                bounds = f"cast({BEGINNING_OF_TIME} as bigint) as ws, cast({END_OF_TIME} as bigint) as we"
                return f"select *, {bounds} from {{input}}"
            case hw.Tumbling() | hw.Hopping():
                size = micros(where.size)
                period = micros(where.period) if isinstance(where, hw.Hopping) else size
                offset = micros(where.offset) if where.offset else 0
                last = f"ts - (((ts - {offset}) % {period}) + {period}) % {period}"
                starts = [f"{last} - {back * period}" for back in range(-(-size // period))]
                parts = [f"select *, {start} as ws, {start} + {size} as we from {rows}" for start in starts]
                return f"select * from ({' union all '.join(parts)}) hops where we > ts"
            case hw.Sliding():
                size = micros(where.duration)
                ends = "(select distinct k as ek, ts as et from {input} where ts is not null) ends"
                within = f"ts between et - {size} and et and k is not distinct from ek"
                return f"select *, et - {size} as ws, et + 1 as we from {rows} join {ends} on {within}"
            case hw.Session():
                gap = micros(where.gap)
                before = "lag(ts) over (partition by k order by ts)"
                starts = f"select *, case when ts - {before} < {gap} then 0 else 1 end as _begins from {rows}"
                numbered = f"select *, sum(_begins) over (partition by k order by ts) as _number from ({starts}) s"
                return (
                    "select *, min(ts) over (partition by k, _number) as ws, "
                    f"max(ts) over (partition by k, _number) + {gap} as we from ({numbered}) n"
                )
        raise AssertionError(f"no SQL for {where}")
