"""Joins with the other input as operators of queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

import headwater as hw
from differential.dialects import Dialect
from differential.operators import METADATA, KernelForm, Operator, OtherInput
from differential.rows import OTHER, SECOND, polars_schema
from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.durations import micros
from headwater.process.tables.as_of_join import GONE, AsOfKernel, NowKernel
from headwater.process.tables.interval_join import IntervalKernel, read_within
from headwater.process.tables.sides import LEFT, RIGHT, How
from headwater.process.tables.table_join import JoinKernel

WITHIN = ("-5 seconds", "5 seconds")
_MATCHED = ("semi", "anti")


@dataclass(frozen=True)
class Join(Operator):
    """`hw.join` on `k`. `kind` is table, within, as_of, now, or side (a side input)."""

    kind: str = "table"
    how: str = "inner"
    lateness: str | None = None

    @property
    def needs_time(self) -> bool:  # type: ignore[override]
        return self.kind in ("within", "as_of")

    @property
    def needs_rows(self) -> bool:  # type: ignore[override]
        return self.kind == "now"

    @property
    def has_own_time(self) -> bool:  # type: ignore[override]
        return self.how == "right"

    @property
    def retracts(self) -> bool:  # type: ignore[override]
        # Rows that arrive only add pairs; a row without a match may get one later.
        adds_only = self.how in ("inner", "semi")
        match self.kind:
            case "table":
                return not adds_only
            case "within":
                return not adds_only and self.lateness is not None
            case _:
                return self.kind != "now"

    def on_spark(self, rows: Any, other: OtherInput) -> Any:
        arguments: dict[str, Any] = {"on": "k", "how": self.how}
        match self.kind:
            case "within":
                arguments |= {"within": WITHIN, "lateness": self.lateness}
            case "as_of":
                arguments |= {"as_of": hw.EVENT_TIME, "lateness": self.lateness}
            case "now":
                arguments |= {"as_of": hw.PROCESSING_TIME}
        right = other.side_input() if self.kind == "side" else other.rows
        return self._columns(hw.join(rows, right, **arguments))

    def _columns(self, joined: Any) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        if self.how in _MATCHED:
            return joined
        time = "ot" if self.how == "right" else "ts"
        found = joined.withColumns(
            {"id": F.coalesce(F.col("id"), -F.col("oid") - 1), "v": F.coalesce(F.col("w"), F.lit(-1))}
        )
        names = [name for name in found.columns if name not in ("w", "oid", "ot", "ts", *METADATA)]
        times = [F.col(time).alias("ts")] if time in found.columns else []
        return found.select(*names, *times, *(name for name in METADATA if name in found.columns))

    def as_kernel(self, schema: pl.Schema) -> KernelForm:
        right = polars_schema(OTHER)
        how = How(self.how)
        if self.needs_time and "ts" not in schema:
            raise InvalidError("join: there is no event time")
        if self.kind == "within":
            kernel: Any = IntervalKernel.of(
                "k", how, schema, right, bounds=read_within(WITHIN), lateness=self._late
            )
        elif self.kind == "as_of":
            kernel = AsOfKernel.of("k", how, schema, right, lateness=self._late)
        else:
            kernel = (NowKernel if self.kind == "now" else JoinKernel).of("k", how, schema, right)
        time = "ts" if "ts" in schema else None

        def prepare(rows: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
            both = pl.concat([kernel.sides.rows(LEFT, rows, time), kernel.sides.rows(RIGHT, other, "ot")])
            return both.with_columns(pl.lit(False).alias(GONE)) if self.kind == "as_of" else both

        return KernelForm(kernel, prepare, lambda out: self._finish(out, schema))

    @property
    def _late(self) -> int:
        return micros(self.lateness) if self.lateness else 0

    def _finish(self, out: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
        if self.how in _MATCHED:
            return out
        out = out.with_columns(
            pl.coalesce("id", -pl.col("oid") - 1).alias("id"), pl.coalesce("w", pl.lit(-1)).alias("v")
        )
        if self.how == "right":
            out = out.with_columns(pl.col("ot").alias("ts"))
        names = [name for name in schema.names() if name not in ("ts", CHANGE)]
        has_time = "ts" in schema or self.how == "right"
        return out.select(*names, *(["ts"] if has_time else []), CHANGE)

    def in_sql(self, dialect: Dialect, names: Sequence[str]) -> str:
        if self.kind == "as_of":
            return self._as_of_in_sql(names)
        on = "i.k = o.k"
        if self.kind == "within":
            on += f" and o.ot between i.ts - {5 * SECOND} and i.ts + {5 * SECOND}"
        rows = "(select * from {input} where ts is not null)" if self.kind == "within" else "{input}"
        if self.how in _MATCHED:
            negated = "not " if self.how == "anti" else ""
            columns = ", ".join(f"i.{name}" for name in names)
            return f"select {columns} from {rows} i where {negated}exists (select 1 from {{other}} o where {on})"
        joins = {"inner": "join", "left": "left join", "right": "right join", "full": "full join"}
        return f"select {self._sql_columns(names)} from {rows} i {joins[self.how]} {{other}} o on {on}"

    def _sql_columns(self, names: Sequence[str]) -> str:
        chosen = []
        for name in names:
            special = {
                "id": "coalesce(i.id, -o.oid - 1) as id",
                "k": "coalesce(i.k, o.k) as k",
                "v": "coalesce(o.w, -1) as v",
            }
            chosen.append(special.get(name, f"i.{name}"))
        chosen = [part for part in chosen if part != "i.ts"]
        if self.how == "right":
            chosen.append("o.ot as ts")
        elif "ts" in names:
            chosen.append("i.ts as ts")
        return ", ".join(chosen)

    def _as_of_in_sql(self, names: Sequence[str]) -> str:
        """Join each row with the last version before it; a row is identified by its number."""
        numbered = (
            f"select {', '.join(names)}, row_number() over (order by id, k, v, ts) as _row from {{input}} "
            "where ts is not null"
        )
        paired = (
            "select i._row as _row, o.w as w, o.oid as oid, "
            "row_number() over (partition by i._row order by o.ot desc) as _rank "
            f"from ({numbered}) i join {{other}} o on i.k = o.k and o.ot <= i.ts"
        )
        versions = f"select _row, w, oid from ({paired}) p where _rank = 1"
        if self.how in _MATCHED:
            negated = "not " if self.how == "anti" else ""
            columns = ", ".join(f"i.{name}" for name in names)
            return (
                f"select {columns} from ({numbered}) i where {negated}exists "
                f"(select 1 from ({versions}) o where o._row = i._row)"
            )
        join = "join" if self.how == "inner" else "left join"
        columns = self._sql_columns(names).replace("coalesce(i.k, o.k) as k", "i.k as k")
        return f"select {columns} from ({numbered}) i {join} ({versions}) o on o._row = i._row"
