"""The operators that queries are made of, each in three forms: on Spark, as a kernel, and in SQL over final rows.

Every operator reads and returns the columns of `rows.COLUMNS` (`ts` only if the rows have an event time), so any
can follow any other. To add an operator to all tests, add its class and its examples to `EXAMPLES`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

import headwater as hw
from differential.dialects import Dialect
from differential.measures import Measure
from differential.rows import COLUMNS, SECOND
from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.device_clocks import ClockKernel, DeviceClocks
from headwater.process.tables.aggregate import AggregateKernel
from headwater.process.tables.changelog import POSITION, ChangelogKernel
from headwater.process.tables.ranking import RankingKernel, RankOrder

METADATA = (CHANGE, "_watermark", "_watermark_source")
VALUES = ("h", "x", "d", "s", "l")
"""The columns that an operator with groups derives from `v` and `k`."""


@dataclass(frozen=True, slots=True)
class KernelForm:
    """An operator as a kernel: `prepare` makes its input of both frames, `finish` the columns of its output."""

    kernel: Any
    prepare: Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]
    finish: Callable[[pl.DataFrame], pl.DataFrame]

    @property
    def hold(self) -> int:
        return int(getattr(self.kernel, "hold", 0))


class OtherInput(Protocol):
    """The other input on Spark."""

    @property
    def rows(self) -> Any:
        """The rows, as a DataFrame that is a stream if the query is one."""
        ...

    def side_input(self) -> Any:
        """Return the same rows as a side input."""
        ...


class Operator(ABC):
    """An operator with its arguments."""

    needs_time: bool = False
    """True if the operator refuses rows without an event time."""

    needs_rows: bool = False
    """True if the operator refuses changes."""

    keeps_time: bool = True
    """True if the output has an event time, if the input has one."""

    has_own_time: bool = False
    """True if the output has an event time whether the input has one or not."""

    retracts: bool = True
    """True if the output has retractions even if the input has none."""

    passes_changes: bool = True
    """True if the output has retractions if the input has some."""

    selects: bool = False
    """True if the operator leaves out rows by its meaning, such as those after the first n."""

    measures: tuple[Measure, ...] = ()

    @abstractmethod
    def on_spark(self, rows: Any, other: OtherInput) -> Any:
        """Return the output for a DataFrame and the other input."""

    @abstractmethod
    def as_kernel(self, schema: pl.Schema) -> KernelForm:
        """Return the kernel for rows of this schema."""

    @abstractmethod
    def in_sql(self, dialect: Dialect, names: Sequence[str]) -> str:
        """Return a query over the tables `{input}`, which has the columns `names`, and `{other}`."""

    def output_has_retractions(self, input_has: bool) -> bool:
        return self.retracts or (input_has and self.passes_changes)


# -- columns of the output ------------------------------------------------------------------------------------


def derived_on_spark(rows: Any, kept: Mapping[str, Any], measures: Sequence[Measure]) -> Any:
    """Select the columns of an operator with groups, whose output has `k` and `v`."""
    from pyspark.sql import functions as F  # noqa: N812

    return rows.select(
        *(column.alias(name) for name, column in kept.items()),
        "k",
        "v",
        F.col("v").alias("h"),
        F.col("v").cast("double").alias("x"),
        F.col("v").cast("decimal(20,4)").alias("d"),
        F.struct(F.col("v").alias("a"), F.col("k").alias("b")).alias("s"),
        F.array("v").alias("l"),
        *_measure_names(measures),
        *metadata_of(rows),
    )


def derived(frame: pl.DataFrame, kept: Mapping[str, pl.Expr], measures: Sequence[Measure]) -> pl.DataFrame:
    return frame.select(
        *(column.alias(name) for name, column in kept.items()),
        "k",
        "v",
        pl.col("v").alias("h"),
        pl.col("v").cast(pl.Float64).alias("x"),
        pl.col("v").cast(pl.Decimal(20, 4)).alias("d"),
        pl.struct(pl.col("v").alias("a"), pl.col("k").alias("b")).alias("s"),
        pl.concat_list("v").alias("l"),
        *_measure_names(measures),
        CHANGE,
    )


def derived_in_sql(dialect: Dialect) -> str:
    return (
        "k, v, v as h, cast(v as double) as x, cast(v as decimal(20,4)) as d, "
        f"{dialect.struct(a='v', b='k')} as s, {dialect.array('v')} as l"
    )


def _measure_names(measures: Sequence[Measure]) -> list[str]:
    return [f"m{number}" for number in range(len(measures))]


def measures_in_sql(dialect: Dialect, measures: Sequence[Measure], time: str) -> str:
    parts = [f"{measure.sql(dialect, time)} as m{number}" for number, measure in enumerate(measures)]
    return "".join(f", {part}" for part in parts)


def metadata_of(rows: Any) -> list[str]:
    return [name for name in rows.columns if name in METADATA]


def what_of(measures: Sequence[Measure], **others: Any) -> dict[str, Any]:
    return {**others, **{f"m{number}": measure.aggregate for number, measure in enumerate(measures)}}


def _first(rows: pl.DataFrame, _: pl.DataFrame) -> pl.DataFrame:
    return rows


def _same(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


# -- groups ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aggregate(Operator):
    """`hw.aggregate` by `k`, without windows."""

    measures: tuple[Measure, ...] = ()
    keeps_time = False

    def on_spark(self, rows: Any, other: OtherInput) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        found = hw.aggregate(rows, what=self._what, by="k")
        return derived_on_spark(found, {"id": F.col("n")}, self.measures)

    @property
    def _what(self) -> dict[str, Any]:
        return what_of(self.measures, n=hw.count(), v=hw.sum("v"))

    def as_kernel(self, schema: pl.Schema) -> KernelForm:
        kernel = AggregateKernel.of(self._what, ["k"], schema, "ts" if "ts" in schema else None)
        return KernelForm(kernel, _first, lambda out: derived(out, {"id": pl.col("n")}, self.measures))

    def in_sql(self, dialect: Dialect, names: Sequence[str]) -> str:
        time = "ts" if "ts" in names else "0"
        extra = "".join(f", m{n}" for n in range(len(self.measures)))
        inner = (
            f"select k, count(*) as n, cast(sum(v) as bigint) as v{measures_in_sql(dialect, self.measures, time)} "
            "from {input} group by k"
        )
        return f"select n as id, {derived_in_sql(dialect)}{extra} from ({inner}) grouped"


Order = tuple[tuple[str, bool], ...]
"""Columns with True for descending."""


def order_text(order: Order, names: Sequence[str]) -> list[str]:
    return [f"{name} desc" if down else name for name, down in order if name in names]


def order_in_sql(order: Order, names: Sequence[str], *, reverse: bool = False) -> str:
    parts = []
    for name, down in order:
        if name in names:
            parts.append(f"{name} desc nulls last" if down != reverse else f"{name} asc nulls first")
    return ", ".join(parts)


@dataclass(frozen=True)
class Top(Operator):
    """`hw.top` of each `k`; the order ends with columns that make it total."""

    selects = True
    n: int = 2
    order: Order = (("v", True), ("id", False), ("ts", False))

    def on_spark(self, rows: Any, other: OtherInput) -> Any:
        return hw.top(rows, self.n, order=order_text(self.order, rows.columns), by="k")

    def as_kernel(self, schema: pl.Schema) -> KernelForm:
        order = RankOrder.read(order_text(self.order, schema.names()))
        return KernelForm(RankingKernel.top(self.n, ["k"], order, schema), _first, _same)

    def in_sql(self, dialect: Dialect, names: Sequence[str]) -> str:
        by = order_in_sql(self.order, names)
        ranked = f"select *, row_number() over (partition by k order by {by}) as _rank from {{input}}"
        return f"select {', '.join(names)} from ({ranked}) ranked where _rank <= {self.n}"


@dataclass(frozen=True)
class Deduplicate(Operator):
    """`hw.deduplicate` by `k`, by a total order."""

    selects = True
    keep: Any = "first"
    order: Order = (("ts", False), ("id", False), ("v", False))

    def on_spark(self, rows: Any, other: OtherInput) -> Any:
        return hw.deduplicate(rows, key="k", keep=self.keep, order=order_text(self.order, rows.columns))

    def as_kernel(self, schema: pl.Schema) -> KernelForm:
        order = RankOrder.read(order_text(self.order, schema.names()))
        order = order if self.keep == "first" else order.reversed
        return KernelForm(RankingKernel.top(1, ["k"], order, schema), _first, _same)

    def in_sql(self, dialect: Dialect, names: Sequence[str]) -> str:
        by = order_in_sql(self.order, names, reverse=self.keep == "last")
        ranked = f"select *, row_number() over (partition by k order by {by}) as _rank from {{input}}"
        return f"select {', '.join(names)} from ({ranked}) ranked where _rank = 1"


@dataclass(frozen=True)
class Rolling(Operator):
    """`hw.rolling`: the sum of `v` over the last rows of each `k`."""

    last: int = 3
    order: Order = (("ts", False), ("id", False), ("v", False))

    def on_spark(self, rows: Any, other: OtherInput) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        order = order_text(self.order, rows.columns)
        rolled = hw.rolling(rows, last=self.last, what={"total": hw.sum("v")}, by="k", order=order)
        return rolled.withColumn("v", F.col("total")).drop("total")

    def as_kernel(self, schema: pl.Schema) -> KernelForm:
        order = RankOrder.read(order_text(self.order, schema.names()))
        kernel = RankingKernel.rolling(self.last, {"total": hw.sum("v")}, ["k"], order, schema)
        return KernelForm(kernel, _first, lambda out: out.with_columns(pl.col("total").alias("v")).drop("total"))

    def in_sql(self, dialect: Dialect, names: Sequence[str]) -> str:
        frame = (
            f"order by {order_in_sql(self.order, names)} rows between {self.last - 1} preceding and current row"
        )
        chosen = [
            f"cast(sum(v) over (partition by k {frame}) as bigint) as v" if name == "v" else name for name in names
        ]
        return f"select {', '.join(chosen)} from {{input}}"


# -- tables and rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table(Operator):
    """`hw.table`: the row of each `k` with the greatest `id` and `v`; rows without a key are late."""

    def on_spark(self, rows: Any, other: OtherInput) -> Any:
        return hw.table(rows, key="k", position=["id", "v"])

    def as_kernel(self, schema: pl.Schema) -> KernelForm:
        positions = {f"{POSITION}{number}": pl.col(name) for number, name in enumerate(("id", "v"))}
        kernel = ChangelogKernel.of(["k"], pl.Schema({**schema, **dict.fromkeys(positions, pl.Int64())}))
        return KernelForm(kernel, lambda rows, _: rows.with_columns(**positions), _same)

    def in_sql(self, dialect: Dialect, names: Sequence[str]) -> str:
        order = "order by id desc nulls last, v desc nulls last"
        ranked = f"select *, row_number() over (partition by k {order}) as _rank from {{input}}"
        return f"select {', '.join(names)} from ({ranked}) ranked where _rank = 1 and k is not null"


@dataclass(frozen=True)
class Union(Operator):
    """`hw.union` with the other input."""

    retracts = False

    def on_spark(self, rows: Any, other: OtherInput) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        kept = {"id": F.col("oid") + 1000} | ({"ts": F.col("ot")} if "ts" in rows.columns else {})
        added = derived_on_spark(other.rows.withColumn("v", F.col("w")), kept, ())
        names = [name for name in rows.columns if name not in METADATA]
        return hw.union(rows, added.select(*names))

    def as_kernel(self, schema: pl.Schema) -> KernelForm:
        names = [name for name in schema.names() if name != CHANGE]

        def both(rows: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
            kept = {"id": pl.col("oid") + 1000, "ts": pl.col("ot")}
            one = other.with_columns(pl.col("w").alias("v"), pl.lit(1, pl.Int8).alias(CHANGE))
            added = derived(one, kept, ()).select(*names, CHANGE)
            rows = rows if CHANGE in rows.columns else rows.with_columns(pl.lit(1, pl.Int8).alias(CHANGE))
            return pl.concat([rows.select(*names, CHANGE), added])

        return KernelForm(None, both, _same)

    def in_sql(self, dialect: Dialect, names: Sequence[str]) -> str:
        inner = "select oid + 1000 as id, k, w as v, ot as ts from {other}"
        added = f"select id, {derived_in_sql(dialect)}, ts from ({inner}) others"
        chosen = ", ".join(names)
        return f"select {chosen} from {{input}} union all select {chosen} from ({added}) added"


@dataclass(frozen=True)
class Plain(Operator):
    """Spark's own operations on single rows: a filter and a computed column."""

    retracts = False
    selects = True

    def on_spark(self, rows: Any, other: OtherInput) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        kept = rows.where("v is null or v % 3 <> 0")
        return kept.select(
            *((F.col("v") + 1).alias("v") if name == "v" else name for name in COLUMNS if name in rows.columns),
            *metadata_of(rows),
        )

    def as_kernel(self, schema: pl.Schema) -> KernelForm:
        def change(rows: pl.DataFrame, _: pl.DataFrame) -> pl.DataFrame:
            kept = rows.filter(pl.col("v").is_null() | (pl.col("v") % 3 != 0))
            return kept.with_columns(pl.col("v") + 1)

        return KernelForm(None, change, _same)

    def in_sql(self, dialect: Dialect, names: Sequence[str]) -> str:
        chosen = ", ".join("v + 1 as v" if name == "v" else name for name in names)
        return f"select {chosen} from {{input}} where v is null or v % 3 <> 0"


@dataclass(frozen=True)
class Clocks(Operator):
    """`hw.correct_clocks`: all clocks are wrong by a constant; a device without a name is not corrected."""

    needs_time = True
    needs_rows = True
    retracts = False
    offset: int = 3 * SECOND

    def on_spark(self, rows: Any, other: OtherInput) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        sent = F.col("ts").cast("timestamp")
        received = F.timestamp_micros(F.unix_micros(sent) + self.offset)
        timed = rows.withColumns({"sent": F.timestamp_micros(F.unix_micros(sent)), "received": received})
        corrected = timed.transform(hw.correct_clocks(device="k", sent="sent", received="received"))
        return corrected.drop("sent", "received", "clock_offset")

    def as_kernel(self, schema: pl.Schema) -> KernelForm:
        if CHANGE in schema:
            raise InvalidError("correct_clocks: the rows may be retracted")
        clocks = DeviceClocks(device="k", event="ts", sent="sent", received="received")
        kernel = ClockKernel.of(clocks, pl.Schema({**schema, "sent": pl.Int64(), "received": pl.Int64()}))
        return KernelForm(
            kernel,
            lambda rows, _: rows.with_columns(sent=pl.col("ts"), received=pl.col("ts") + self.offset),
            lambda out: out.drop("sent", "received", "clock_offset"),
        )

    def in_sql(self, dialect: Dialect, names: Sequence[str]) -> str:
        at = f"ts + case when k is null then 0 else {self.offset} end as ts"
        return f"select {', '.join(at if name == 'ts' else name for name in names)} from {{input}}"
