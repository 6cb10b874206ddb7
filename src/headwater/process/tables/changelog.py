"""A table made of its changelog, and its changes as a stream.

A changelog says for each key what its row is from then on, or that it is gone. It is ordered by *position*:
what comes late does not undo what was said after it. The kernel remembers the row of each key and the position
that said so; of a row that is gone it remembers the position, where there is one, so that an older change
cannot bring it back.

Where the changelog consists of changes by weight (`_change`), it is summed up instead: then order does not
matter, and a row that is taken back before it was put waits for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.changes import CHANGE_TYPE, ROW, as_changes, difference, ledger, listed, weighed
from headwater.process.kernel import BEGINNING, KernelStep, Now, State, behind
from headwater.process.table import Table

DELETED = "_deleted"
"""The column that says that the row of a key is gone."""

POSITION = "_position"
"""Columns of this name with a number behind it are the position, the first one first."""

AT = "_at"
"""The column of event times, in microseconds, where positions of deleted keys are forgotten after a time."""

NO_KEY, EXPIRED = "no key", "expired"

_ROWS, _ORDER = "rows", "_order"
_NEVER = 2**62
"""The time of what is not to be forgotten."""


@dataclass(frozen=True, slots=True)
class ChangelogKernel:
    """Folds a changelog into a table by key; its output are the table's changes. Made by `of`.

    A change whose key is null, or is so in a part, is in the late ledger. A change older than the one that is
    known is counted (`ignored`) and does nothing; so does a deletion of a row that is not there. Of two changes
    with the same position the one that came later counts; one without a position is older than all that have
    one.

    With `lateness`, the position of a deleted key is forgotten when the watermark is that far behind it. Then a
    change of an unknown key that is older still could be one from before a deletion, and is in the late ledger.
    """

    key: tuple[str, ...]
    schema: pl.Schema
    positions: tuple[str, ...]
    columns: tuple[str, ...]
    lateness: int | None = None

    @classmethod
    def of(cls, key: Sequence[str], schema: pl.Schema, lateness: int | None = None) -> "ChangelogKernel":
        """Build the kernel for changes of this schema; see `DELETED` and `POSITION` for columns with a meaning.

        With `lateness` there is also `AT`.
        """
        schema = pl.Schema(schema)
        if not key:
            raise InvalidError("table: `key` names no column; a table needs a key")
        for name in key:
            if name not in schema:
                raise InvalidError(
                    f"table: there is no key column {name!r}; the columns are {listed(list(schema))}"
                )
        positions = tuple(name for name in schema if name.startswith(POSITION))
        beside = {*positions, DELETED, CHANGE, AT}
        return cls(tuple(key), schema, positions, tuple(name for name in schema if name not in beside), lateness)

    @property
    def by(self) -> tuple[str, ...]:
        return self.key

    @property
    def is_by_weight(self) -> bool:
        return CHANGE in self.schema

    @property
    def output_schema(self) -> pl.Schema:
        return pl.Schema({**{name: self.schema[name] for name in self.columns}, CHANGE: CHANGE_TYPE})

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
        lost = rows.filter(~keyed)
        late = ledger(lost, pl.struct(self.columns), NO_KEY) if lost.height else None
        rows = rows.filter(keyed).with_columns(pl.struct(self.columns).alias(ROW))
        if self.is_by_weight:
            table, output = self._by_weight(state[_ROWS], rows)
            return KernelStep({_ROWS: table}, self._told(output), late=late, counters={"late": lost.height})
        evicted = 0
        if self.lateness is not None:
            horizon = behind(now.watermark, self.lateness)
            rows, expired = self._from_before(state[_ROWS], rows, horizon)
            if expired.height:
                told = ledger(expired, pl.col(ROW), EXPIRED, pl.col(AT), now.watermark)
                late = told if late is None else pl.concat([late, told])
        table, output, ignored = self._by_position(state[_ROWS], rows)
        if self.lateness is not None:
            table, evicted = self._forget(table, horizon)
        counters = {"late": 0 if late is None else late.height, "ignored": ignored, "evicted": evicted}
        return KernelStep({_ROWS: table}, self._told(output), late=late, counters=counters)

    def _from_before(self, table: Table, rows: pl.DataFrame, horizon: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Tell changes apart that could be from before a deletion that is forgotten."""
        numbered = rows.with_row_index("_i")
        old = numbered.filter(pl.col(AT) < horizon)
        if not old.height:
            return rows, old
        known = table.get(old.select(self.key).unique())
        expired = old.join(known, on=self.key, how="anti")
        kept = numbered.join(expired, on="_i", how="anti", maintain_order="left")
        return kept.drop("_i"), expired

    def _forget(self, table: Table, horizon: int) -> tuple[Table, int]:
        """Let go of the positions of keys that were deleted before the horizon."""
        gone = table.up_to(AT, horizon - 1) if horizon > BEGINNING else table.fresh.clear()
        return (table.drop(gone.select(table.key)) if gone.height else table), gone.height

    # -- by position ------------------------------------------------------------------------------------------

    def _by_position(self, table: Table, rows: pl.DataFrame) -> tuple[Table, pl.DataFrame, int]:
        deleted = pl.col(DELETED).fill_null(False) if DELETED in self.schema else pl.lit(False)
        time = []
        if self.lateness is not None:
            # Without a time it is never forgotten, as is what stands.
            time = [pl.when(deleted).then(pl.col(AT)).fill_null(_NEVER).alias(AT)]
        said = rows.select(*self.key, *self.positions, pl.when(~deleted).then(ROW).alias(ROW), *time)
        known = table.get(said.select(self.key).unique())
        all_of_them = pl.concat([known.select(said.columns), said])
        if self.positions:
            all_of_them = all_of_them.sort(self.positions, nulls_last=False, maintain_order=True)
        after = all_of_them.unique(self.key, keep="last", maintain_order=True)
        stays = known.join(said.select(self.key), on=self.key, how="semi").select(said.columns)
        ignored = 0
        if self.positions and known.height:
            ignored = self._older(said, known)
        forgotten = after.filter(pl.col(ROW).is_null()) if not self.positions else after.clear()
        table = table.put(after.join(forgotten.select(self.key), on=self.key, how="anti"))
        table = table.drop(forgotten.select(self.key)) if forgotten.height else table
        return table, difference(_standing(after), _standing(stays)), ignored

    def _older(self, said: pl.DataFrame, known: pl.DataFrame) -> int:
        """How many changes came behind one that was already known."""
        both = said.join(known, on=self.key, how="inner", suffix="_known")
        newer = pl.lit(True)
        for name in reversed(self.positions):
            ours, theirs = pl.col(name), pl.col(f"{name}_known")
            # Null stands before everything.
            after = (theirs.is_null() & ours.is_not_null()) | (ours > theirs).fill_null(False)
            newer = after | (ours.eq_missing(theirs) & newer)
        return both.filter(~newer).height

    # -- by weight --------------------------------------------------------------------------------------------

    def _by_weight(self, table: Table, rows: pl.DataFrame) -> tuple[Table, pl.DataFrame]:
        known = table.get(rows.select(self.key).unique())
        last = known.get_column(_ORDER).max()
        start = last + 1 if isinstance(last, int) else 0
        came = weighed(rows).with_columns(pl.int_range(start, start + rows.height).alias(_ORDER))
        both = pl.concat([known, came.select(known.columns)])
        if self.positions:
            both = both.sort(self.positions, nulls_last=False, maintain_order=True)
        is_put = pl.col(CHANGE) > 0
        after = both.group_by(table.key, maintain_order=True).agg(
            # A row that is put again counts from then on; what takes it back says nothing about its position.
            *(pl.col(name).filter(is_put).last() for name in (*self.positions, _ORDER)),
            pl.col(CHANGE).sum(),
        )
        after = after.with_columns(pl.col(_ORDER).fill_null(-1)).select(known.columns)
        gone = after.filter(pl.col(CHANGE) == 0)
        stays = after.filter(pl.col(CHANGE) != 0)
        table = table.drop(gone.select(table.key)) if gone.height else table
        return table.put(stays), difference(self._chosen(stays), self._chosen(known))

    def _chosen(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The row of each key; of several, while what takes them back is still to come, the newest."""
        there = rows.filter(pl.col(CHANGE) > 0)
        there = there.sort(*self.positions, _ORDER, nulls_last=False, maintain_order=True)
        return _standing(there.unique(self.key, keep="last", maintain_order=True))

    def _told(self, output: pl.DataFrame) -> pl.DataFrame:
        if not output.height:
            return pl.DataFrame(schema=self.output_schema)
        return as_changes(output).unnest(ROW).select(self.output_schema.names())


def _standing(rows: pl.DataFrame) -> pl.DataFrame:
    there = rows.filter(pl.col(ROW).is_not_null())
    return there.select(ROW, pl.lit(1, pl.Int64).alias(CHANGE))
