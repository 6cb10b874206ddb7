"""Joins of two tables that both change: the result is a table, and its changes come out.

Both sides are remembered by key, as rows with weights. Of a change of one side and the rows of the other that
have its key come the pairs that are put or taken back; so a step costs what its rows meet, not what is stored.
Which rows have met nothing follows from which keys the other side has.

A null equals nothing, not even a null: such a row is never matched, and is not remembered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from headwater.change import CHANGE
from headwater.process.changes import ROW, as_changes, net, put_weights, settled
from headwater.process.kernel import KernelStep, Now, State
from headwater.process.table import Table
from headwater.process.tables.sides import LEFT, RIGHT, How, Sides, TwoInputKernel


@dataclass(frozen=True, slots=True)
class JoinKernel(TwoInputKernel):
    """Joins two tables on equal keys; neither needs to be unique. Made by `of`."""

    @classmethod
    def of(
        cls, on: str | Sequence[str] | Mapping[str, str], how: How, left: pl.Schema, right: pl.Schema
    ) -> "JoinKernel":
        return cls(Sides.of(on, how, left, right))

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
            if self._by_keys_of(side):
                known = before[side] = state[side].get(pl.concat(touched.values()).unique())
            else:  # Of the rows that the other side's changes do not meet, only those matter that change.
                before[side] = state[side].get(touched[other])
                known = state[side].get(deltas[side].select(state[side].key))
            tables[side], after[side] = put_weights(state[side], known, deltas[side])
        if self.sides.how.has_pairs:
            parts.append(self._met(deltas[LEFT], before[RIGHT]))
            parts.append(self._met(before[LEFT], deltas[RIGHT]))
            parts.append(self._met(deltas[LEFT], deltas[RIGHT]))
        for side, other in ((LEFT, RIGHT), (RIGHT, LEFT)):
            if self._by_keys_of(other):
                found = self._by_presence(deltas[side], before[side], before[other], after[other])
                parts.append(self.sides.alone(found, side))
        output = self.sides.paired(settled(pl.concat(parts)))
        # Rows of the right side may differ only in what does not come out.
        output = settled(output) if not self.sides.how.has_pairs else output
        return KernelStep(tables, as_changes(output).select(self.output_schema.names()))

    def _by_keys_of(self, side: str) -> bool:
        """Whether rows of the other side come out because this one has their key, or because it has not."""
        how, other = self.sides.how, RIGHT if side == LEFT else LEFT
        return how.keeps(other) or (other == LEFT and how is How.SEMI)

    def _met(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        """All pairs of equal keys, with the product of their weights."""
        pairs = left.join(right, on=self.sides.keys, how="inner", suffix="_other")
        weight = pl.col(CHANGE) * pl.col(f"{CHANGE}_other")
        return pairs.select(pl.col(ROW).alias(LEFT), pl.col(f"{ROW}_other").alias(RIGHT), weight.alias(CHANGE))

    def _by_presence(
        self, delta: pl.DataFrame, known: pl.DataFrame, before: pl.DataFrame, after: pl.DataFrame
    ) -> pl.DataFrame:
        """How those rows change that are there because the other side has their key, or because it has not."""
        keys, is_semi = self.sides.keys, self.sides.how is How.SEMI
        had, has = (_keys_there(rows, keys) for rows in (before, after))
        came = has.join(had, on=keys, how="anti")
        went = had.join(has, on=keys, how="anti")
        shown, hidden = (came, went) if is_semi else (went, came)
        return pl.concat(
            [
                delta.join(has, on=keys, how="semi" if is_semi else "anti"),
                known.join(shown, on=keys, how="semi"),
                known.join(hidden, on=keys, how="semi").with_columns(-pl.col(CHANGE)),
            ]
        )


def _keys_there(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    return rows.filter(pl.col(CHANGE) > 0).select(keys).unique()
