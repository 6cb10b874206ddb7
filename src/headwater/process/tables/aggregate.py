"""Aggregates of a table that changes: results stay correct when rows are retracted.

The kernel keeps the partial results of each group's aggregates (see `folds`) and the number of its rows. A group
whose rows have all been retracted is deleted. Rows are combined by group before they are sent to another process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.aggregates.aggregates import check_what
from headwater.process.aggregates.exact_values import Values
from headwater.process.aggregates.folds import Folds, has_map
from headwater.process.changes import CHANGE_TYPE, as_changes, difference, join_names
from headwater.process.kernel import BEGINNING, KernelStep, Now, State
from headwater.process.table import Table

_GROUPS, _NET, _ALL, _TIME = "groups", "_net", "_all", "_time"


@dataclass(frozen=True, slots=True)
class AggregateKernel:
    """Aggregates each group of rows, or all rows if `by` is empty. Created by `of`."""

    by: tuple[str, ...]
    schema: pl.Schema
    folds: Folds
    time: str | None

    @classmethod
    def of(
        cls, what: Mapping[str, Any], by: Sequence[str], schema: pl.Schema, time: str | None = None
    ) -> "AggregateKernel":
        """Build the kernel for rows of this schema; `first` and `last` are by the column `time`, or by arrival."""
        schema = pl.Schema(schema)
        check_what("aggregate", what)
        check_columns("aggregate", by, schema)
        if clash := [name for name in what if name in by or name == CHANGE]:
            raise InvalidError(
                f"aggregate: the result would have two columns {join_names(clash)}; rename one in `what`"
            )
        change = CHANGE if CHANGE in schema else None
        # Other aggregates need their result before the step as well, so all their values would have to be read.
        folds = Folds.of(what, schema, _TIME, change, operator="aggregate", is_separate=lambda bag: bag.is_count)
        return cls(tuple(by), schema, folds, time)

    @property
    def output_schema(self) -> pl.Schema:
        return self._results(self._group_rows(self._empty)).cast({CHANGE: CHANGE_TYPE}).schema

    @property
    def is_timeless(self) -> bool:
        return True

    def retracts(self, changes: bool) -> bool:
        return True

    def initial(self) -> State:
        groups = Table.empty(self._group_rows(self._empty).schema, self._keys)
        return {_GROUPS: groups, **self._values.empty(self._empty.schema)}

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        time = pl.lit(0, pl.Int64)
        if self.time is not None:
            time = pl.col(self.time).cast(pl.Int64).fill_null(BEGINNING)  # A row without a time is the earliest.
        weight = pl.len() if self.folds.change is None else pl.col(CHANGE).cast(pl.Int64).sum()
        prepared = rows.with_columns(time.alias(_TIME))
        if not self.by:
            prepared = prepared.with_columns(pl.lit(True).alias(_ALL))
        return self.folds.partials(prepared, self._keys, [weight.cast(pl.Int64).alias(_NET)])

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        tables = dict(state)
        groups = tables[_GROUPS]
        combined = rows if _NET in rows.columns else self.combine(rows, now)
        before = groups.get(combined.select(self._keys).unique())
        both = pl.concat([before, self._group_rows(combined).select(before.columns)])
        after = self.folds.merge(both, self._keys, [pl.col(_NET).sum()]).select(before.columns)
        after = self._values.add(tables, combined, after)
        # Changes out of order can make the number of rows negative for a while; only a group with 0 is deleted.
        empty = after.filter(pl.col(_NET) == 0) if self.folds.change is not None else after.clear()
        kept = after.join(empty.select(self._keys), on=self._keys, how="anti", nulls_equal=True)
        tables[_GROUPS] = groups.put(kept)
        if empty.height:
            tables[_GROUPS] = tables[_GROUPS].drop(empty.select(self._keys))
            self._values.drop(tables, empty)
        changes = difference(self._results(kept), self._results(before))
        return KernelStep(tables, as_changes(changes))

    @property
    def _empty(self) -> pl.DataFrame:
        return self.combine(pl.DataFrame(schema=self.schema), Now())

    @property
    def _values(self) -> Values:
        return Values(self.folds, tuple(self._keys))

    def _group_rows(self, combined: pl.DataFrame) -> pl.DataFrame:
        """Return combined rows as rows of the table of groups."""
        return combined.with_columns(self.folds.zero_counts).drop(self.folds.separate_lists)

    @property
    def _keys(self) -> list[str]:
        return list(self.by) or [_ALL]

    def _results(self, groups: pl.DataFrame) -> pl.DataFrame:
        present = groups.filter(pl.col(_NET) > 0)
        return present.select(*self.by, *self.folds.results(), pl.lit(1, pl.Int64).alias(CHANGE))


def check_columns(what: str, names: Sequence[str], schema: pl.Schema) -> None:
    """Raise an InvalidError if a column does not exist, or cannot be compared because it has a map."""
    for name in names:
        if name in schema and has_map(schema[name]):
            raise InvalidError(
                f"{what}: rows cannot be grouped or ordered by {name!r}, which is {schema[name]}: maps cannot be "
                "compared; convert the column with F.map_entries first"
            )
        if name not in schema:
            raise InvalidError(f"{what}: there is no column {name!r}; the columns are {join_names(list(schema))}")
