"""Joins of two streams within a time: a click at most an hour after its search.

A row of one side meets those of the other that have its key and whose event time is within the bounds around
its own. Both sides are remembered for as long as somebody can meet them: a row that is on time is at most
`lateness` behind the watermark, so whatever only older rows could meet is forgotten. A row that has met nobody
is told when the watermark has passed all that it could have met; if somebody comes within the lateness after
all, that is taken back.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.changes import ROW, as_changes, ledger, net, put_weights, settled
from headwater.process.durations import micros
from headwater.process.kernel import BEGINNING, KernelStep, Now, State, behind
from headwater.process.table import GONE, Table
from headwater.process.tables.sides import LEFT, RIGHT, SIDES, TIME, How, Sides, TwoInputKernel

EXPIRED, NO_TIME = "expired", "no event time"

_NOTHING = re.compile(r"\s*-?0+(\.0+)?\s*[a-z]*\s*", re.IGNORECASE)

_MET, _TOLD = "_met", "_told"
"""How many rows of the other side a row has met; and whether it is out by itself, without a partner."""

_WERE = {CHANGE: "_was", _MET: "_met_was", _TOLD: "_told_was"}
"""What a row's columns were before a step."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far the event time of the right row is behind that of the left one, at least and at most, in µs."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise InvalidError(
                f"join: `within` ends before it begins: from {self.least} to {self.most} microseconds; "
                "give the earlier bound first, such as ('-5 minutes', '1 hour')"
            )

    def of(self, side: str) -> tuple[int, int]:
        """From when to when, around a row of this side, rows of the other can be."""
        return (self.least, self.most) if side == LEFT else (-self.most, -self.least)

    def kept(self, side: str) -> int:
        """For how long after its time a row of this side can be met, or be taken back."""
        return max(0, self.of(side)[1])


def read_within(within: str | tuple[str, str]) -> Bounds:
    """Bounds as people write them: `"1 hour"` behind the left row; or both, as in `("-5 minutes", "1 hour")`.

    >>> read_within(("-1 second", "0 seconds"))
    Bounds(least=-1000000, most=0)
    """
    if isinstance(within, str):
        return Bounds(0, micros(within))
    least, most = within
    return Bounds(_signed(least), _signed(most))


def _signed(text: str) -> int:
    if _NOTHING.fullmatch(text):
        return 0
    return -micros(text.strip()[1:]) if text.strip().startswith("-") else micros(text)


@dataclass(frozen=True, slots=True)
class IntervalKernel(TwoInputKernel):
    """Joins two streams on equal keys and event times within bounds. Made by `of`.

    A row that is more than `lateness` behind the watermark is in the late ledger, and so is one without a time.
    """

    bounds: Bounds
    lateness: int

    @classmethod
    def of(
        cls,
        on: str | Sequence[str] | Mapping[str, str],
        how: How,
        left: pl.Schema,
        right: pl.Schema,
        *,
        bounds: Bounds,
        lateness: int = 0,
    ) -> "IntervalKernel":
        return cls(Sides.of(on, how, left, right), bounds, lateness)

    @property
    def hold(self) -> int:
        """How far behind the watermark the left or right time of what comes out can be."""
        return max(self.bounds.kept(side) for side in SIDES) + self.lateness

    def initial(self) -> State:
        keys = {name: self.schema[name] for name in self.sides.keys}
        tables = {}
        for side in SIDES:
            columns = {**keys, TIME: pl.Int64(), ROW: self.schema[side], CHANGE: pl.Int64()}
            if self.sides.how is not How.INNER:  # There nobody has to know who has met nobody.
                columns |= {_MET: pl.Int64(), _TOLD: pl.Boolean()}
            tables[side] = Table.empty(pl.Schema(columns), (*keys, TIME, ROW), tuple(keys))
        return tables

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        taken, late = self._on_time(rows, now.watermark)
        tables = dict(state)
        parts = self._take_in(tables, taken, now.watermark) if taken.height else []
        evicted = 0
        for side in SIDES:
            if self.sides.how.keeps(side):
                parts.append(self._tell_unmet(tables, side, now.watermark))
            evicted += self._forget(tables, side, now.watermark)
        output = settled(self.sides.paired(pl.concat(parts))) if parts else pl.DataFrame(schema=self.output_schema)
        counters = {"late": 0 if late is None else late.height, "evicted": evicted}
        return KernelStep(
            tables, as_changes(output).select(self.output_schema.names()), late=late, counters=counters
        )

    def _on_time(self, rows: pl.DataFrame, watermark: int) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        known = pl.col(TIME).is_not_null()
        is_late = pl.col(TIME) < behind(watermark, self.lateness)
        row = pl.struct(pl.col(LEFT).alias("left"), pl.col(RIGHT).alias("right"))
        timeless, expired = rows.filter(~known), rows.filter(known & is_late)
        if not timeless.height and not expired.height:
            return rows, None
        told = [ledger(timeless, row, NO_TIME), ledger(expired, row, EXPIRED, pl.col(TIME), watermark)]
        return rows.filter(known & ~is_late), pl.concat(told)

    # -- rows come --------------------------------------------------------------------------------------------

    def _take_in(self, tables: dict[str, Table], rows: pl.DataFrame, watermark: int) -> list[pl.DataFrame]:
        keys = self.sides.keys
        keyed = pl.all_horizontal(pl.col(keys).is_not_null())
        deltas = {side: net(self.sides.of_side(rows, side)) for side in SIDES}
        if self.sides.how is How.INNER:
            return self._meet(tables, deltas)
        matching = [delta.filter(keyed).select(keys) for delta in deltas.values()]
        touched = pl.concat(matching).unique()
        before = {side: tables[side].get(touched) for side in SIDES}
        # Rows without a key meet nobody; they are remembered like the others until that can be told.
        loose = {side: tables[side].get(d.filter(~keyed).select(tables[side].key)) for side, d in deltas.items()}
        after = {side: self._added(pl.concat([before[side], loose[side]]), deltas[side]) for side in SIDES}
        parts = []
        if self.sides.how.has_pairs:
            parts.append(self._pairs(deltas[LEFT], before[RIGHT]))
            parts.append(self._pairs(after[LEFT], deltas[RIGHT]))
        for side, other in ((LEFT, RIGHT), (RIGHT, LEFT)):
            mine = after[side]
            if self.sides.how.keeps(side) or (side == LEFT and self.sides.how is How.SEMI):
                mine = self._met_by(mine, side, before[other], after[other])
                mine, told = self._retold(mine, side, watermark)
                parts.append(told)
            # Most rows of a key are as they were, and need not be written again.
            same = pl.all_horizontal(pl.col(n).eq_missing(pl.col(was)) for n, was in _WERE.items())
            mine = mine.filter(~same)
            changed = mine.filter(pl.col(CHANGE) != 0)
            gone = mine.filter(pl.col(CHANGE) == 0).select(tables[side].key)
            tables[side] = tables[side].put(changed.select(tables[side].schema.names()))
            tables[side] = tables[side].drop(gone) if gone.height else tables[side]
        return parts

    def _meet(self, tables: dict[str, Table], deltas: dict[str, pl.DataFrame]) -> list[pl.DataFrame]:
        """Rows of an inner join: of what the other side's changes do not meet, only what changes is read."""
        keyed = pl.all_horizontal(pl.col(self.sides.keys).is_not_null())
        deltas = {side: delta.filter(keyed) for side, delta in deltas.items()}
        touched = {side: delta.select(self.sides.keys).unique() for side, delta in deltas.items()}
        before = {LEFT: tables[LEFT].get(touched[RIGHT]), RIGHT: tables[RIGHT].get(touched[LEFT])}
        for side, delta in deltas.items():
            known = tables[side].get(delta.select(tables[side].key))
            tables[side], _ = put_weights(tables[side], known, delta)
        left, right = deltas[LEFT], deltas[RIGHT]
        return [self._pairs(left, before[RIGHT]), self._pairs(before[LEFT], right), self._pairs(left, right)]

    def _added(self, known: pl.DataFrame, delta: pl.DataFrame) -> pl.DataFrame:
        """What was known and what came, with the weight that each had (`_was`) and has, be it none."""
        new = delta.with_columns(
            pl.lit(None, pl.Int64).alias(_MET), pl.lit(False).alias(_TOLD), pl.lit(0, pl.Int64).alias("_was")
        )
        both = pl.concat([known.with_columns(pl.col(CHANGE).alias("_was")), new.select(*known.columns, "_was")])
        keys = [*self.sides.keys, TIME, ROW]
        summed = both.group_by(keys, maintain_order=True).agg(
            pl.col(CHANGE).sum(), pl.col(_MET).max(), pl.col(_TOLD).any(), pl.col("_was").sum()
        )
        return summed.with_columns(pl.col(_MET).alias(_WERE[_MET]), pl.col(_TOLD).alias(_WERE[_TOLD]))

    def _pairs(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        """Who meets whom, with the product of their weights."""
        pairs = left.join(right, on=self.sides.keys, how="inner", suffix="_other")
        apart = pl.col(f"{TIME}_other") - pl.col(TIME)
        weight = pl.col(CHANGE) * pl.col(f"{CHANGE}_other")
        met = pairs.filter(apart.is_between(self.bounds.least, self.bounds.most) & (weight != 0))
        return met.select(pl.col(ROW).alias(LEFT), pl.col(f"{ROW}_other").alias(RIGHT), weight.alias(CHANGE))

    def _met_by(self, mine: pl.DataFrame, side: str, before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
        """How many each row has met: those that are new count all, the others only who has come or gone."""
        mine = mine.with_row_index("_i")
        new = self._count(mine.filter(pl.col(_MET).is_null()), side, before.with_columns(pl.lit(1).alias("_by")))
        there, was = (pl.col(CHANGE) > 0).cast(pl.Int64), (pl.col("_was") > 0).cast(pl.Int64)
        moved = after.with_columns((there - was).alias("_by")).filter(pl.col("_by") != 0)
        changes = self._count(mine, side, moved)
        counts = pl.concat([new, changes]).group_by("_i").agg(pl.col("_by").sum())
        counted = mine.join(counts, on="_i", how="left", maintain_order="left")
        met = pl.col(_MET).fill_null(0) + pl.col("_by").fill_null(0)
        return counted.with_columns(met.alias(_MET)).drop("_i", "_by")

    def _count(self, mine: pl.DataFrame, side: str, others: pl.DataFrame) -> pl.DataFrame:
        least, most = self.bounds.of(side)
        others = others.filter(pl.col(CHANGE) > 0) if "_was" not in others.columns else others
        others = others.select(*self.sides.keys, pl.col(TIME).alias("_other"), pl.col("_by").cast(pl.Int64))
        pairs = mine.select("_i", *self.sides.keys, TIME).join(others, on=self.sides.keys, how="inner")
        met = pairs.filter((pl.col("_other") - pl.col(TIME)).is_between(least, most))
        return met.select("_i", "_by")

    def _retold(self, mine: pl.DataFrame, side: str, watermark: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Whether rows are out by themselves, and what has to be said for that."""
        met = pl.col(_MET) > 0
        if self.sides.how is How.SEMI:
            is_out = met
        else:
            is_out = ~met & (pl.col(TIME) + self.bounds.of(side)[1] < watermark)
        now = pl.when(is_out).then(CHANGE).otherwise(0) - pl.when(_TOLD).then("_was").otherwise(0)
        said = mine.select(ROW, now.alias(CHANGE)).filter(pl.col(CHANGE) != 0)
        return mine.with_columns(is_out.alias(_TOLD)), self.sides.alone(said, side)

    # -- time passes ------------------------------------------------------------------------------------------

    def _tell_unmet(self, tables: dict[str, Table], side: str, watermark: int) -> pl.DataFrame:
        passed = _older(tables[side], behind(watermark, self.bounds.of(side)[1]))
        unmet = passed.filter(~pl.col(_TOLD) & (pl.col(_MET).fill_null(0) <= 0))
        tables[side] = tables[side].put(unmet.with_columns(pl.lit(True).alias(_TOLD)))
        return self.sides.alone(unmet, side)

    def _forget(self, tables: dict[str, Table], side: str, watermark: int) -> int:
        """Let go of what nobody who is on time can meet or take back."""
        gone = _older(tables[side], behind(watermark, self.lateness + self.bounds.kept(side)))
        if gone.height:
            tables[side] = tables[side].drop(gone.select(tables[side].key))
        return gone.height


def _older(table: Table, moment: int) -> pl.DataFrame:
    """The rows before a moment; runs that have none are not read."""
    return table.up_to(TIME, moment - 1) if moment > BEGINNING else table.fresh.clear().drop(GONE)
