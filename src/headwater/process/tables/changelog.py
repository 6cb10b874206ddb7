"""A table built from its changelog; the output is the table's changes.

A change sets the row of a key, or deletes it. Changes are ordered by *position*: a change that arrives late does
not overwrite a newer one. The kernel keeps the row of each key and the position of its last change. For a deleted
row it keeps only the position, if there is one, so that an older change does not restore the row.

If the changelog has weights (`_change`), they are summed instead: then order does not matter, and a row can be
retracted before it is inserted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.changes import (
    CHANGE_TYPE,
    EXPIRED,
    ROW,
    as_changes,
    difference,
    join_names,
    ledger,
    with_weights,
)
from headwater.process.kernel import BEGINNING, KernelStep, Now, State, time_before
from headwater.process.table import Table

DELETED = "_deleted"
"""The column that is true if the row of the key is deleted."""

POSITION = "_position"
"""Prefix of the columns that are the position; they are compared in their order."""

AT = "_at"
"""The column of event times in microseconds, needed to discard the positions of deleted keys after a time."""

NO_KEY = "no key"
"""Reason in the late ledger: the key, or a part of it, is null."""

_ROWS, _ORDER = "rows", "_order"
_NEVER = 2**62
"""The time of keys that must not be discarded."""


@dataclass(frozen=True, slots=True)
class ChangelogKernel:
    """Folds a changelog into a table by key; its output is the table's changes. Created by `of`.

    A change whose key, or a part of it, is null goes to the late ledger. A change older than the last one of its
    key has no effect; neither has the deletion of a row that does not exist, unless its position is kept. Changes
    without effect are counted (`ignored`), the same number whether they arrive in one batch or in several. Of two
    changes with the same position, the one that arrived later counts. A change without a position is older than
    all with one.

    With `lateness`, the position of a deleted key is discarded when the watermark has passed it by that time.
    After that, an older change of an unknown key could precede a deletion, so it goes to the late ledger.
    """

    key: tuple[str, ...]
    schema: pl.Schema
    positions: tuple[str, ...]
    columns: tuple[str, ...]
    lateness: int | None = None

    @classmethod
    def of(cls, key: Sequence[str], schema: pl.Schema, lateness: int | None = None) -> "ChangelogKernel":
        """Build the kernel for changes of this schema, which may have the columns `DELETED` and `POSITION`.

        With `lateness`, it must have the column `AT`.
        """
        schema = pl.Schema(schema)
        if not key:
            raise InvalidError("table: `key` is empty; name the columns that identify a row")
        for name in key:
            if name not in schema:
                raise InvalidError(
                    f"table: there is no key column {name!r}; the columns are {join_names(list(schema))}"
                )
        positions = tuple(name for name in schema if name.startswith(POSITION))
        metadata = {*positions, DELETED, CHANGE, AT}
        return cls(tuple(key), schema, positions, tuple(name for name in schema if name not in metadata), lateness)

    @property
    def by(self) -> tuple[str, ...]:
        return self.key

    @property
    def is_by_weight(self) -> bool:
        return CHANGE in self.schema

    @property
    def output_schema(self) -> pl.Schema:
        return pl.Schema({**{name: self.schema[name] for name in self.columns}, CHANGE: CHANGE_TYPE})

    @property
    def is_timeless(self) -> bool:
        return self.lateness is None

    def retracts(self, changes: bool) -> bool:
        return True

    def initial(self) -> State:
        row = pl.Struct({name: self.schema[name] for name in self.columns})
        columns = {name: self.schema[name] for name in (*self.key, *self.positions)} | {ROW: row}
        if self.lateness is not None:
            columns |= {AT: pl.Int64()}
        if not self.is_by_weight:
            return {_ROWS: Table.empty(pl.Schema(columns), self.key)}
        columns |= {_ORDER: pl.Int64(), CHANGE: pl.Int64()}
        return {_ROWS: Table.empty(pl.Schema(columns), (*self.key, ROW), self.key)}

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        return rows

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        keyed = pl.all_horizontal(pl.col(self.key).is_not_null())
        keyless = rows.filter(~keyed)
        late = ledger(keyless, pl.struct(self.columns), NO_KEY) if keyless.height else None
        rows = rows.filter(keyed).with_columns(pl.struct(self.columns).alias(ROW))
        if self.is_by_weight:
            table, output = self._by_weight(state[_ROWS], rows)
            return KernelStep({_ROWS: table}, self._output(output), late=late, counters={"late": keyless.height})
        evicted = 0
        if self.lateness is not None:
            horizon = time_before(now.watermark, self.lateness)
            rows, expired = self._split_expired(state[_ROWS], rows, horizon)
            if expired.height:
                entries = ledger(expired, pl.col(ROW), EXPIRED, pl.col(AT), now.watermark)
                late = entries if late is None else pl.concat([late, entries])
        table, output, ignored = self._by_position(state[_ROWS], rows)
        if self.lateness is not None:
            table, evicted = self._forget(table, horizon)
        counters = {"late": 0 if late is None else late.height, "ignored": ignored, "evicted": evicted}
        return KernelStep({_ROWS: table}, self._output(output), late=late, counters=counters)

    def _split_expired(self, table: Table, rows: pl.DataFrame, horizon: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Separate the changes that could precede a deletion whose position has been discarded."""
        numbered = rows.with_row_index("_i")
        old = numbered.filter(pl.col(AT) < horizon)
        if not old.height:
            return rows, old
        known = table.get(old.select(self.key).unique())
        expired = old.join(known, on=self.key, how="anti")
        kept = numbered.join(expired, on="_i", how="anti", maintain_order="left")
        return kept.drop("_i"), expired

    def _forget(self, table: Table, horizon: int) -> tuple[Table, int]:
        """Discard the positions of keys that were deleted before the horizon."""
        gone = table.up_to(AT, horizon - 1) if horizon > BEGINNING else table.fresh.clear()
        return table.remove(gone), gone.height

    # -- by position ------------------------------------------------------------------------------------------

    def _by_position(self, table: Table, rows: pl.DataFrame) -> tuple[Table, pl.DataFrame, int]:
        deleted = pl.col(DELETED).fill_null(False) if DELETED in self.schema else pl.lit(False)
        time = []
        if self.lateness is not None:
            # Rows that exist, and deletions without a time, are never discarded.
            time = [pl.when(deleted).then(pl.col(AT)).fill_null(_NEVER).alias(AT)]
        changes = rows.select(*self.key, *self.positions, pl.when(~deleted).then(ROW).alias(ROW), *time)
        known = table.get(changes.select(self.key).unique())
        both = pl.concat([known.select(changes.columns), changes])
        if self.positions:
            both = both.sort(self.positions, nulls_last=False, maintain_order=True)
        after = both.unique(self.key, keep="last", maintain_order=True)
        previous = known.join(changes.select(self.key), on=self.key, how="semi").select(changes.columns)
        ignored = self._count_ignored(pl.concat([known.select(changes.columns), changes]))
        deleted_keys = after.filter(pl.col(ROW).is_null()) if not self.positions else after.clear()
        table = table.put(after.join(deleted_keys.select(self.key), on=self.key, how="anti"))
        table = table.drop(deleted_keys.select(self.key)) if deleted_keys.height else table
        return table, difference(_rows(after), _rows(previous)), ignored

    def _count_ignored(self, changes: pl.DataFrame) -> int:
        """Return the number of changes without effect; `changes` begins with the known rows."""
        if not self.positions:
            was_present = pl.col(ROW).is_not_null().shift().over(self.key).fill_null(False)
            return changes.filter(pl.col(ROW).is_null() & ~was_present).height
        ordered = changes.select(*self.key, *self.positions).with_row_index("_i")
        ordered = ordered.sort(
            self.positions, nulls_last=False, maintain_order=True
        )  # Null is less than any value.
        differs = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()) for name in self.positions)
        place = ordered.with_columns(differs.cum_sum().alias(_ORDER)).sort("_i")
        return place.filter(pl.col(_ORDER) < pl.col(_ORDER).cum_max().over(self.key)).height

    # -- by weight --------------------------------------------------------------------------------------------

    def _by_weight(self, table: Table, rows: pl.DataFrame) -> tuple[Table, pl.DataFrame]:
        known = table.get(rows.select(self.key).unique())
        last = known.get_column(_ORDER).max()
        start = last + 1 if isinstance(last, int) else 0
        arrived = with_weights(rows).with_columns(pl.int_range(start, start + rows.height).alias(_ORDER))
        both = pl.concat([known, arrived.select(known.columns)])
        if self.positions:
            both = both.sort(self.positions, nulls_last=False, maintain_order=True)
        is_insert = pl.col(CHANGE) > 0
        after = both.group_by(table.key, maintain_order=True).agg(
            # A row that is inserted again gets the new position; a retraction does not change the position.
            *(pl.col(name).filter(is_insert).last() for name in (*self.positions, _ORDER)),
            pl.col(CHANGE).sum(),
        )
        after = after.with_columns(pl.col(_ORDER).fill_null(-1)).select(known.columns)
        gone = after.filter(pl.col(CHANGE) == 0)
        kept = after.filter(pl.col(CHANGE) != 0)
        table = table.drop(gone.select(table.key)) if gone.height else table
        return table.put(kept), difference(self._newest(kept), self._newest(known))

    def _newest(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the row of each key: the newest, if retractions of older ones have not arrived yet."""
        present = rows.filter(pl.col(CHANGE) > 0)
        present = present.sort(*self.positions, _ORDER, nulls_last=False, maintain_order=True)
        return _rows(present.unique(self.key, keep="last", maintain_order=True))

    def _output(self, changes: pl.DataFrame) -> pl.DataFrame:
        if not changes.height:
            return pl.DataFrame(schema=self.output_schema)
        return as_changes(changes).unnest(ROW).select(self.output_schema.names())


def _rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that exist, each with weight 1."""
    present = rows.filter(pl.col(ROW).is_not_null())
    return present.select(ROW, pl.lit(1, pl.Int64).alias(CHANGE))
