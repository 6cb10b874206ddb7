"""Aggregates of a table that changes: counts and sums that go down again, minima and maxima that recover.

The kernel remembers of each group the partial results of its aggregates, see `folds`, and how many rows it has. A
group whose rows were all taken back is gone. Rows are combined by group before they travel.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.aggregates.exact_values import Values
from headwater.process.aggregates.folds import Folds
from headwater.process.changes import CHANGE_TYPE, as_changes, difference, listed
from headwater.process.kernel import KernelStep, Now, State
from headwater.process.table import Table

_GROUPS, _NET, _ALL, _TIME = "groups", "_net", "_all", "_time"


@dataclass(frozen=True, slots=True)
class AggregateKernel:
    """What is computed of each group of rows; of all rows where `by` names nothing. Made by `of`."""

    by: tuple[str, ...]
    schema: pl.Schema
    folds: Folds
    time: str | None

    @classmethod
    def of(
        cls, what: Mapping[str, Any], by: Sequence[str], schema: pl.Schema, time: str | None = None
    ) -> "AggregateKernel":
        """Build the kernel for rows of this schema; first and last go by the column `time`, or by arrival."""
        schema = pl.Schema(schema)
        check_columns("aggregate", by, schema)
        if not what:
            raise InvalidError("aggregate: `what` names nothing to compute")
        if clash := [name for name in what if name in by or name == CHANGE]:
            raise InvalidError(f"aggregate: {listed(clash)} would be there twice; rename it in `what`")
        change = CHANGE if CHANGE in schema else None
        # Of the others the result before a step is needed as well, so all their values would have to be read.
        folds = Folds.of(what, schema, _TIME, change, operator="aggregate", is_separate=lambda bag: bag.is_count)
        return cls(tuple(by), schema, folds, time)

    @property
    def output_schema(self) -> pl.Schema:
        return self._results(self._kept(self._nothing)).cast({CHANGE: CHANGE_TYPE}).schema

    def initial(self) -> State:
        groups = Table.empty(self._kept(self._nothing).schema, self._keys)
        return {_GROUPS: groups, **self._values.empty(self._nothing.schema)}

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        time = pl.lit(0, pl.Int64) if self.time is None else pl.col(self.time).cast(pl.Int64).fill_null(0)
        weight = pl.len() if self.folds.change is None else pl.col(CHANGE).cast(pl.Int64).sum()
        prepared = rows.with_columns(time.alias(_TIME))
        if not self.by:
            prepared = prepared.with_columns(pl.lit(True).alias(_ALL))
        return self.folds.partials(prepared, self._keys, [weight.cast(pl.Int64).alias(_NET)])

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        tables = dict(state)
        groups = tables[_GROUPS]
        came = rows if _NET in rows.columns else self.combine(rows, now)
        before = groups.get(came.select(self._keys).unique())
        both = pl.concat([before, self._kept(came).select(before.columns)])
        after = self.folds.merge(both, self._keys, [pl.col(_NET).sum()]).select(before.columns)
        after = self._values.add(tables, came, after)
        # Of changes out of order a group can be short of rows for a while; only one without any is forgotten.
        empty = after.filter(pl.col(_NET) == 0) if self.folds.change is not None else after.clear()
        kept = after.join(empty.select(self._keys), on=self._keys, how="anti", nulls_equal=True)
        tables[_GROUPS] = groups.put(kept)
        if empty.height:
            tables[_GROUPS] = tables[_GROUPS].drop(empty.select(self._keys))
            self._values.drop(tables, empty)
        changes = difference(self._results(kept), self._results(before))
        return KernelStep(tables, as_changes(changes).select(self.output_schema.names()))

    @property
    def _nothing(self) -> pl.DataFrame:
        return self.combine(pl.DataFrame(schema=self.schema), Now())

    @property
    def _values(self) -> Values:
        return Values(self.folds, tuple(self._keys))

    def _kept(self, combined: pl.DataFrame) -> pl.DataFrame:
        """What came, as rows of the table of groups."""
        return combined.with_columns(self.folds.zero_counts).drop(self.folds.separate_lists)

    @property
    def _keys(self) -> list[str]:
        return list(self.by) or [_ALL]

    def _results(self, groups: pl.DataFrame) -> pl.DataFrame:
        there = groups.filter(pl.col(_NET) > 0)
        return there.select(*self.by, *self.folds.results(), pl.lit(1, pl.Int64).alias(CHANGE))


def check_columns(what: str, names: Sequence[str], schema: pl.Schema) -> None:
    """Refuse names of columns that are not there."""
    for name in names:
        if name not in schema:
            raise InvalidError(f"{what}: there is no column {name!r}; the columns are {listed(list(schema))}")
