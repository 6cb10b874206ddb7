"""Joins of two streams within a time: a click at most an hour after its search.

A row of one side matches the rows of the other side that have its key and whose event time is within the bounds
around its own. Rows are kept for as long as they can be matched: a row that is on time is at most `lateness` older
than the watermark, so rows that only older rows could match are deleted. An unmatched row is emitted when the
watermark has passed the time of all rows that it could match. If a late row matches it after all, it is retracted.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.changes import ROW, as_changes, net, put_weights, split_late, without_retractions
from headwater.process.durations import micros
from headwater.process.kernel import BEGINNING, KernelStep, Now, State, time_before
from headwater.process.table import GONE, Table
from headwater.process.tables.sides import BOTH_SIDES, LEFT, RIGHT, SIDES, TIME, How, Sides, TwoInputKernel

_ZERO = re.compile(r"\s*-?0+(\.0+)?\s*[a-z]*\s*", re.IGNORECASE)

_MATCHES, _EMITTED = "_met", "_told"
"""Number of matching rows of the other side; True if the row has been emitted alone, without a match.

The names are part of a checkpoint.
"""

_OLD = {CHANGE: "_was", _MATCHES: "_met_was", _EMITTED: "_told_was"}
"""Names of the columns with a row's values before a step."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and greatest permitted difference of event times, right minus left, in microseconds."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise InvalidError(
                f"join: `within` ends before it begins: from {self.least} to {self.most} microseconds; "
                "give the earlier bound first, such as ('-5 minutes', '1 hour')"
            )

    def of(self, side: str) -> tuple[int, int]:
        """Return the bounds for rows of the other side, relative to the time of a row of this side."""
        return (self.least, self.most) if side == LEFT else (-self.most, -self.least)

    def retention(self, side: str) -> int:
        """Return the time after its event time for which a row of this side can be matched or retracted."""
        return max(0, self.of(side)[1])


def read_within(within: str | tuple[str, str]) -> Bounds:
    """Parse bounds: `"1 hour"` after the left row, or both bounds, as in `("-5 minutes", "1 hour")`.

    >>> read_within(("-1 second", "0 seconds"))
    Bounds(least=-1000000, most=0)
    """
    if isinstance(within, str):
        return Bounds(0, micros(within))
    least, most = within
    return Bounds(_signed(least), _signed(most))


def _signed(text: str) -> int:
    if _ZERO.fullmatch(text):
        return 0
    return -micros(text.strip()[1:]) if text.strip().startswith("-") else micros(text)


@dataclass(frozen=True, slots=True)
class IntervalKernel(TwoInputKernel):
    """Joins two streams on equal keys and event times within bounds. Created by `of`.

    Rows that are older than the watermark by more than `lateness`, or have no time, go to the late ledger. Rows
    with a null key that can be in no result are counted (`ignored`).
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
        """The greatest difference between the watermark and the event times in the output."""
        return max(self.bounds.retention(side) for side in SIDES) + self.lateness

    @property
    def is_timeless(self) -> bool:
        return False

    def retracts(self, changes: bool) -> bool:
        # A row that was emitted as unmatched is matched after all only by a late row.
        return changes or (self.sides.how not in (How.INNER, How.SEMI) and self.lateness > 0)

    def initial(self) -> State:
        keys = {name: self.schema[name] for name in self.sides.keys}
        tables = {}
        for side in SIDES:
            columns = {**keys, TIME: pl.Int64(), ROW: self.schema[side], CHANGE: pl.Int64()}
            if self.sides.how is not How.INNER:  # An inner join never emits unmatched rows.
                columns |= {_MATCHES: pl.Int64(), _EMITTED: pl.Boolean()}
            tables[side] = Table.empty(pl.Schema(columns), (*keys, TIME, ROW), tuple(keys))
        return tables

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        rows, late = self._split_late(rows, now.watermark)
        rows, ignored = self.sides.without_unmatchable(rows)
        tables = dict(state)
        parts = self._add(tables, rows, now.watermark) if rows.height else []
        evicted = 0
        for side in SIDES:
            if self.sides.how.keeps(side):
                parts.append(self._emit_unmatched(tables, side, now.watermark))
            evicted += self._forget(tables, side, now.watermark)
        output = (
            without_retractions(self.sides.output(pl.concat(parts)))
            if parts
            else pl.DataFrame(schema=self.output_schema)
        )
        counters = {"late": 0 if late is None else late.height, "evicted": evicted, "ignored": ignored}
        return KernelStep(
            tables, as_changes(output).select(self.output_schema.names()), late=late, counters=counters
        )

    def _split_late(self, rows: pl.DataFrame, watermark: int) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        is_late = pl.col(TIME) < time_before(watermark, self.lateness)
        return split_late(rows, BOTH_SIDES, TIME, is_late, watermark)

    # -- rows arrive ------------------------------------------------------------------------------------------

    def _add(self, tables: dict[str, Table], rows: pl.DataFrame, watermark: int) -> list[pl.DataFrame]:
        keys = self.sides.keys
        keyed = pl.all_horizontal(pl.col(keys).is_not_null())
        deltas = {side: net(self.sides.of_side(rows, side)) for side in SIDES}
        if self.sides.how is How.INNER:
            return self._inner_join(tables, deltas)
        keys_of_sides = [delta.filter(keyed).select(keys) for delta in deltas.values()]
        touched = pl.concat(keys_of_sides).unique()
        before = {side: tables[side].get(touched) for side in SIDES}
        # Rows with a null key match nothing; they are kept like the others until they can be emitted as unmatched.
        keyless = {side: tables[side].get(d.filter(~keyed).select(tables[side].key)) for side, d in deltas.items()}
        after = {side: self._with_delta(pl.concat([before[side], keyless[side]]), deltas[side]) for side in SIDES}
        parts = []
        if self.sides.how.has_pairs:
            parts.append(self._pairs(deltas[LEFT], before[RIGHT]))
            parts.append(self._pairs(after[LEFT], deltas[RIGHT]))
        for side, other in ((LEFT, RIGHT), (RIGHT, LEFT)):
            mine = after[side]
            if self.sides.how.keeps(side) or (side == LEFT and self.sides.how is How.SEMI):
                mine = self._with_matches(mine, side, before[other], after[other])
                mine, changes = self._with_emitted(mine, side, watermark)
                parts.append(changes)
            # Most rows of a key have not changed, and need not be written again.
            same = pl.all_horizontal(pl.col(n).eq_missing(pl.col(was)) for n, was in _OLD.items())
            mine = mine.filter(~same)
            changed = mine.filter(pl.col(CHANGE) != 0)
            gone = mine.filter(pl.col(CHANGE) == 0).select(tables[side].key)
            tables[side] = tables[side].put(changed.select(tables[side].schema.names()))
            tables[side] = tables[side].drop(gone) if gone.height else tables[side]
        return parts

    def _inner_join(self, tables: dict[str, Table], deltas: dict[str, pl.DataFrame]) -> list[pl.DataFrame]:
        """Add rows to an inner join, which need not read all rows of the keys, as it does not count matches."""
        keyed = pl.all_horizontal(pl.col(self.sides.keys).is_not_null())
        deltas = {side: delta.filter(keyed) for side, delta in deltas.items()}
        touched = {side: delta.select(self.sides.keys).unique() for side, delta in deltas.items()}
        before = {LEFT: tables[LEFT].get(touched[RIGHT]), RIGHT: tables[RIGHT].get(touched[LEFT])}
        for side, delta in deltas.items():
            known = tables[side].get(delta.select(tables[side].key))
            tables[side], _ = put_weights(tables[side], known, delta)
        left, right = deltas[LEFT], deltas[RIGHT]
        return [self._pairs(left, before[RIGHT]), self._pairs(before[LEFT], right), self._pairs(left, right)]

    def _with_delta(self, known: pl.DataFrame, delta: pl.DataFrame) -> pl.DataFrame:
        """Merge known rows and changes; each has its weight before (`_was`) and after, which may be 0."""
        new = delta.with_columns(
            pl.lit(None, pl.Int64).alias(_MATCHES),
            pl.lit(False).alias(_EMITTED),
            pl.lit(0, pl.Int64).alias("_was"),
        )
        both = pl.concat([known.with_columns(pl.col(CHANGE).alias("_was")), new.select(*known.columns, "_was")])
        keys = [*self.sides.keys, TIME, ROW]
        summed = both.group_by(keys, maintain_order=True).agg(
            pl.col(CHANGE).sum(), pl.col(_MATCHES).max(), pl.col(_EMITTED).any(), pl.col("_was").sum()
        )
        return summed.with_columns(pl.col(_MATCHES).alias(_OLD[_MATCHES]), pl.col(_EMITTED).alias(_OLD[_EMITTED]))

    def _pairs(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        """Return the matching pairs, with the product of their weights."""
        pairs = left.join(right, on=self.sides.keys, how="inner", suffix="_other")
        difference = pl.col(f"{TIME}_other") - pl.col(TIME)
        weight = pl.col(CHANGE) * pl.col(f"{CHANGE}_other")
        matches = pairs.filter(difference.is_between(self.bounds.least, self.bounds.most) & (weight != 0))
        return matches.select(pl.col(ROW).alias(LEFT), pl.col(f"{ROW}_other").alias(RIGHT), weight.alias(CHANGE))

    def _with_matches(
        self, mine: pl.DataFrame, side: str, before: pl.DataFrame, after: pl.DataFrame
    ) -> pl.DataFrame:
        """Update the number of matches of each row: new rows count all, others only rows added or removed."""
        mine = mine.with_row_index("_i")
        new = self._count(
            mine.filter(pl.col(_MATCHES).is_null()), side, before.with_columns(pl.lit(1).alias("_by"))
        )
        is_present, was_present = (pl.col(CHANGE) > 0).cast(pl.Int64), (pl.col("_was") > 0).cast(pl.Int64)
        changed = after.with_columns((is_present - was_present).alias("_by")).filter(pl.col("_by") != 0)
        changes = self._count(mine, side, changed)
        counts = pl.concat([new, changes]).group_by("_i").agg(pl.col("_by").sum())
        counted = mine.join(counts, on="_i", how="left", maintain_order="left")
        matches = pl.col(_MATCHES).fill_null(0) + pl.col("_by").fill_null(0)
        return counted.with_columns(matches.alias(_MATCHES)).drop("_i", "_by")

    def _count(self, mine: pl.DataFrame, side: str, others: pl.DataFrame) -> pl.DataFrame:
        """Return, for each match, the index of the row and the change of its number of matches."""
        least, most = self.bounds.of(side)
        others = others.filter(pl.col(CHANGE) > 0) if "_was" not in others.columns else others
        others = others.select(*self.sides.keys, pl.col(TIME).alias("_other"), pl.col("_by").cast(pl.Int64))
        pairs = mine.select("_i", *self.sides.keys, TIME).join(others, on=self.sides.keys, how="inner")
        matches = pairs.filter((pl.col("_other") - pl.col(TIME)).is_between(least, most))
        return matches.select("_i", "_by")

    def _with_emitted(self, mine: pl.DataFrame, side: str, watermark: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Decide which rows are emitted alone, and return the changes that result."""
        has_match = pl.col(_MATCHES) > 0
        if self.sides.how is How.SEMI:
            is_emitted = has_match
        else:
            is_emitted = ~has_match & (pl.col(TIME) + self.bounds.of(side)[1] < watermark)
        change = pl.when(is_emitted).then(CHANGE).otherwise(0) - pl.when(_EMITTED).then("_was").otherwise(0)
        changes = mine.select(ROW, change.alias(CHANGE)).filter(pl.col(CHANGE) != 0)
        return mine.with_columns(is_emitted.alias(_EMITTED)), self.sides.alone(changes, side)

    # -- the watermark advances -------------------------------------------------------------------------------

    def _emit_unmatched(self, tables: dict[str, Table], side: str, watermark: int) -> pl.DataFrame:
        complete = _older(tables[side], time_before(watermark, self.bounds.of(side)[1]))
        unmatched = complete.filter(~pl.col(_EMITTED) & (pl.col(_MATCHES).fill_null(0) <= 0))
        tables[side] = tables[side].put(unmatched.with_columns(pl.lit(True).alias(_EMITTED)))
        return self.sides.alone(unmatched, side)

    def _forget(self, tables: dict[str, Table], side: str, watermark: int) -> int:
        """Delete the rows that no row on time can match or retract, and return their number."""
        gone = _older(tables[side], time_before(watermark, self.lateness + self.bounds.retention(side)))
        tables[side] = tables[side].remove(gone)
        return gone.height


def _older(table: Table, time: int) -> pl.DataFrame:
    """Return the rows before a time; runs without such rows are not read."""
    return table.up_to(TIME, time - 1) if time > BEGINNING else table.fresh.clear().drop(GONE)
