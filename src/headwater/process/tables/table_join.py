"""Joins of two tables that both change: the result is a table, and the output is its changes.

Both sides are kept by key, as rows with weights. A change of one side is joined with the other side's rows of the
same key, which yields the pairs to insert or retract. The cost of a step depends on the number of these rows, not
on the size of the tables. Whether a row is unmatched depends on whether the other side has its key.

A null equals nothing, not even a null: a row with a null key is never matched, and is not kept. Unless it is
emitted as unmatched, it is counted (`ignored`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from headwater.change import CHANGE
from headwater.process.changes import ROW, as_changes, net, put_weights, without_retractions
from headwater.process.kernel import KernelStep, Now, State
from headwater.process.table import Table
from headwater.process.tables.sides import LEFT, RIGHT, How, Sides, TwoInputKernel


@dataclass(frozen=True, slots=True)
class JoinKernel(TwoInputKernel):
    """Joins two tables on equal keys, which need not be unique on either side. Created by `of`."""

    @classmethod
    def of(
        cls, on: str | Sequence[str] | Mapping[str, str], how: How, left: pl.Schema, right: pl.Schema
    ) -> "JoinKernel":
        return cls(Sides.of(on, how, left, right))

    @property
    def is_timeless(self) -> bool:
        return True

    def retracts(self, changes: bool) -> bool:
        # A row that arrives can only add pairs, but a row without a match may get one later.
        return changes or self.sides.how not in (How.INNER, How.SEMI)

    def initial(self) -> State:
        keys = {name: self.schema[name] for name in self.sides.keys}
        tables = {}
        for side in (LEFT, RIGHT):
            schema = pl.Schema({**keys, ROW: self.schema[side], CHANGE: pl.Int64()})
            tables[side] = Table.empty(schema, (*keys, ROW), tuple(keys))
        return tables

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        keys = self.sides.keys
        keyed = pl.all_horizontal(pl.col(keys).is_not_null())
        rows, ignored = self.sides.without_unmatchable(rows)
        parts: list[pl.DataFrame] = []
        deltas: dict[str, pl.DataFrame] = {}
        for side in (LEFT, RIGHT):
            delta = net(self.sides.of_side(rows, side).select(*keys, ROW, CHANGE))
            if self.sides.how.keeps(side):
                parts.append(self.sides.alone(delta.filter(~keyed), side))
            deltas[side] = delta.filter(keyed)
        touched = {side: delta.select(keys).unique() for side, delta in deltas.items()}
        tables, before, after = {}, {}, {}
        for side, other in ((LEFT, RIGHT), (RIGHT, LEFT)):
            if self._matters(side):
                known = before[side] = state[side].get(pl.concat(touched.values()).unique())
            else:  # Of the rows that no change of the other side matches, only those that change are needed.
                before[side] = state[side].get(touched[other])
                known = state[side].get(deltas[side].select(state[side].key))
            tables[side], after[side] = put_weights(state[side], known, deltas[side])
        if self.sides.how.has_pairs:
            parts.append(self._pairs(deltas[LEFT], before[RIGHT]))
            parts.append(self._pairs(before[LEFT], deltas[RIGHT]))
            parts.append(self._pairs(deltas[LEFT], deltas[RIGHT]))
        for side, other in ((LEFT, RIGHT), (RIGHT, LEFT)):
            if self._matters(other):
                unmatched = self._by_presence(deltas[side], before[side], before[other], after[other])
                parts.append(self.sides.alone(unmatched, side))
        output = self.sides.output(without_retractions(pl.concat(parts)))
        # Rows may differ only in columns of the right side, which are not part of the output.
        output = without_retractions(output) if not self.sides.how.has_pairs else output
        changes = as_changes(output).select(self.output_schema.names())
        return KernelStep(tables, changes, counters={"ignored": ignored})

    def _matters(self, side: str) -> bool:
        """Return True if the presence of a key on this side decides whether rows of the other side are emitted."""
        how, other = self.sides.how, RIGHT if side == LEFT else LEFT
        return how.keeps(other) or (other == LEFT and how is How.SEMI)

    def _pairs(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        """Return all pairs with equal keys, with the product of their weights."""
        pairs = left.join(right, on=self.sides.keys, how="inner", suffix="_other")
        weight = pl.col(CHANGE) * pl.col(f"{CHANGE}_other")
        return pairs.select(pl.col(ROW).alias(LEFT), pl.col(f"{ROW}_other").alias(RIGHT), weight.alias(CHANGE))

    def _by_presence(
        self, delta: pl.DataFrame, known: pl.DataFrame, before: pl.DataFrame, after: pl.DataFrame
    ) -> pl.DataFrame:
        """Return the changes of rows that are emitted because the other side has, or lacks, their key."""
        keys, is_semi = self.sides.keys, self.sides.how is How.SEMI
        keys_before, keys_after = (_present_keys(rows, keys) for rows in (before, after))
        added = keys_after.join(keys_before, on=keys, how="anti")
        removed = keys_before.join(keys_after, on=keys, how="anti")
        shown, hidden = (added, removed) if is_semi else (removed, added)
        return pl.concat(
            [
                delta.join(keys_after, on=keys, how="semi" if is_semi else "anti"),
                known.join(shown, on=keys, how="semi"),
                known.join(hidden, on=keys, how="semi").with_columns(-pl.col(CHANGE)),
            ]
        )


def _present_keys(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    return rows.filter(pl.col(CHANGE) > 0).select(keys).unique()
