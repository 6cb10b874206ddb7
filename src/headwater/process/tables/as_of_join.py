"""Joins of a stream with a table: as of the event's time, or as of now.

**As of event time** the right side is the history of a table: a row says what its key has from its event time
on, until the next one. A row of the left side is joined with what was valid at its own time. It comes out at
once, with what is known then; as long as it is at most `lateness` behind the left side's watermark it is
remembered, and if a late row of the history changes what was valid, it is taken back and put anew. Of the
history stays what these rows need: the version that was valid then, and all later ones. A table is often
silent, so its side never holds the watermark back.

**As of now** a row is joined with what the table has when it comes, and that is all. Changes of the table in
the same step come first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.changes import ROW, as_changes, ledger, net, put_weights, settled, weighed
from headwater.process.kernel import KernelStep, Now, State, behind
from headwater.process.table import Table
from headwater.process.tables.interval_join import EXPIRED, NO_TIME
from headwater.process.tables.sides import LEFT, RIGHT, SIDE, TIME, How, Sides, TwoInputKernel

GONE = "_gone_from"
"""The column of the history that says that from then on the key has no row."""

POSSIBLE = (How.INNER, How.LEFT, How.SEMI, How.ANTI)
"""A table's rows do not come out by themselves: there is no moment at which they have met nobody."""


@dataclass(frozen=True, slots=True)
class AsOfKernel(TwoInputKernel):
    """Joins a stream with the version of a table that was valid at the event's time. Made by `of`.

    Rows of the left side that are more than `lateness` behind the watermark, or have no time, are in the late
    ledger; so is history without a time, and what takes back a version that is older. Of two versions with the
    same time the one that came later counts.
    """

    lateness: int

    @classmethod
    def of(
        cls,
        on: str | Sequence[str] | Mapping[str, str],
        how: How,
        left: pl.Schema,
        right: pl.Schema,
        *,
        lateness: int = 0,
    ) -> "AsOfKernel":
        return cls(Sides.of(on, _possible(how), left, right), lateness)

    @property
    def schema(self) -> pl.Schema:
        return pl.Schema({**self.sides.schema, GONE: pl.Boolean()})

    @property
    def hold(self) -> int:
        """How far behind the watermark the time of what comes out can be."""
        return self.lateness

    def initial(self) -> State:
        keys = {name: self.schema[name] for name in self.sides.keys}
        events = pl.Schema({**keys, TIME: pl.Int64(), ROW: self.schema[LEFT], CHANGE: pl.Int64()})
        versions = pl.Schema({**keys, TIME: pl.Int64(), ROW: self.schema[RIGHT], GONE: pl.Boolean()})
        return {
            LEFT: Table.empty(events, (*keys, TIME, ROW), tuple(keys)),
            RIGHT: Table.empty(versions, (*keys, TIME), tuple(keys)),
        }

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        tables, horizon = dict(state), behind(now.watermark, self.lateness)
        rows, late = self._on_time(rows, now.watermark, horizon)
        keyed = pl.all_horizontal(pl.col(self.sides.keys).is_not_null())
        came = net(self.sides.of_side(rows, LEFT))
        # What has no key meets nothing, whatever comes.
        parts = [self._joined(came.filter(~keyed), tables[RIGHT].fresh.clear())]
        said = rows.filter((pl.col(SIDE) == 1) & keyed).with_columns(pl.col(RIGHT).alias(ROW))
        came = came.filter(keyed)
        if came.height or said.height:
            parts += self._take_in(tables, came, said)
        output = settled(self.sides.paired(pl.concat(parts)))
        self._forget(tables, horizon, pl.concat([came.select(self.sides.keys), said.select(self.sides.keys)]))
        counters = {"late": 0 if late is None else late.height}
        return KernelStep(
            tables, as_changes(output).select(self.output_schema.names()), late=late, counters=counters
        )

    def _on_time(
        self, rows: pl.DataFrame, watermark: int, horizon: int
    ) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        # History is never too late to be told, but what was before a version is not known for ever.
        counts = (pl.col(SIDE) == 0) | (pl.col(CHANGE) < 0)
        known, is_late = pl.col(TIME).is_not_null(), (pl.col(TIME) < horizon) & counts
        timeless, expired = rows.filter(~known), rows.filter(known & is_late)
        if not timeless.height and not expired.height:
            return rows, None
        row = pl.struct(pl.col(LEFT).alias("left"), pl.col(RIGHT).alias("right"))
        told = [ledger(timeless, row, NO_TIME), ledger(expired, row, EXPIRED, pl.col(TIME), watermark)]
        return rows.filter(known & ~is_late), pl.concat(told)

    def _take_in(self, tables: dict[str, Table], came: pl.DataFrame, said: pl.DataFrame) -> list[pl.DataFrame]:
        keys = self.sides.keys
        touched = pl.concat([came.select(keys), said.select(keys)]).unique()
        events, before = tables[LEFT].get(touched), tables[RIGHT].get(touched)
        tables[RIGHT] = self._versions(tables[RIGHT], said)
        after = tables[RIGHT].get(touched) if said.height else before
        parts = [self._joined(came, after)]
        if said.height:
            corrected = events.join(said.select(keys).unique(), on=keys, how="semi")
            parts.append(self._joined(corrected, after))
            parts.append(self._joined(corrected.with_columns(-pl.col(CHANGE)), before))
        tables[LEFT], _ = put_weights(tables[LEFT], events, came)
        return parts

    def _versions(self, table: Table, said: pl.DataFrame) -> Table:
        """The history with what was said of it: a version replaces the one of its time; one can be taken back."""
        for change in (
            said.select(*table.schema.names(), CHANGE)
            .with_columns(
                # In turns, so that of one moment the last word counts; nearly always there is one turn.
                _turn=pl.int_range(pl.len()).over(*table.key)
            )
            .sort("_turn", maintain_order=True)
            .partition_by("_turn")
        ):
            put = change.filter(pl.col(CHANGE) > 0).with_columns(pl.col(GONE).fill_null(False))
            taken = change.filter(pl.col(CHANGE) < 0).select(*table.key, ROW)
            if taken.height:
                known = table.get(taken.select(table.key))
                same = known.join(taken, on=[*table.key, ROW], how="semi", nulls_equal=True)
                table = table.drop(same.select(table.key))
            table = table.put(put.select(table.schema.names()))
        return table

    def _joined(self, events: pl.DataFrame, versions: pl.DataFrame) -> pl.DataFrame:
        """Events with what was valid at their time."""
        keys = self.sides.keys
        found = events.sort(TIME).join_asof(
            versions.select(*keys, TIME, pl.col(ROW).alias(RIGHT), GONE).sort(TIME),
            on=TIME,
            by=keys,
            strategy="backward",
            check_sortedness=False,
        )
        there = pl.col(GONE).eq_missing(False)
        match self.sides.how:
            case How.INNER | How.SEMI:
                found = found.filter(there)
            case How.ANTI:
                found = found.filter(~there)
            case _:
                found = found.with_columns(pl.when(there).then(RIGHT).alias(RIGHT))
        return found.select(pl.col(ROW).alias(LEFT), RIGHT, CHANGE)

    def _forget(self, tables: dict[str, Table], horizon: int, touched: pl.DataFrame) -> None:
        """Let go of events that are too old to be corrected, and of versions that no event to come can ask for."""
        old = tables[LEFT].where(pl.col(TIME) < horizon)
        if old.height:
            tables[LEFT] = tables[LEFT].drop(old.select(tables[LEFT].key))
        # The last one before the horizon is still valid. A key has several only if something was said of it.
        old = tables[RIGHT].get(touched.unique()).filter(pl.col(TIME) < horizon)
        gone = old.filter(pl.col(TIME) < pl.col(TIME).max().over(self.sides.keys))
        if gone.height:
            tables[RIGHT] = tables[RIGHT].drop(gone.select(tables[RIGHT].key))


@dataclass(frozen=True, slots=True)
class NowKernel(TwoInputKernel):
    """Joins a stream with what a table has when a row comes. Made by `of`.

    What came out is not remembered, so the left side cannot take rows back.
    """

    @classmethod
    def of(
        cls, on: str | Sequence[str] | Mapping[str, str], how: How, left: pl.Schema, right: pl.Schema
    ) -> "NowKernel":
        if CHANGE in left:
            raise InvalidError(
                f"join: the left side has changes ({CHANGE}), which cannot be joined as of now: what would have "
                "to be taken back is not remembered; join two tables, without `as_of`"
            )
        return cls(Sides.of(on, _possible(how), left, right))

    @property
    def hold(self) -> int:
        return 0

    def initial(self) -> State:
        keys = {name: self.schema[name] for name in self.sides.keys}
        schema = pl.Schema({**keys, ROW: self.schema[RIGHT], CHANGE: pl.Int64()})
        return {RIGHT: Table.empty(schema, (*keys, ROW), tuple(keys))}

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        keys = self.sides.keys
        keyed = pl.all_horizontal(pl.col(keys).is_not_null())
        came = weighed(self.sides.of_side(rows, LEFT))
        delta = net(self.sides.of_side(rows, RIGHT).select(*keys, ROW, CHANGE)).filter(keyed)
        touched = pl.concat([came.filter(keyed).select(keys), delta.select(keys)]).unique()
        table, known = put_weights(state[RIGHT], state[RIGHT].get(touched), delta)
        there = known.filter(pl.col(CHANGE) > 0).select(
            *keys, pl.col(ROW).alias(RIGHT), pl.col(CHANGE).alias("_n")
        )
        match self.sides.how:
            case How.SEMI | How.ANTI as how:
                found = came.join(there, on=keys, how="semi" if how is How.SEMI else "anti")
                found = self.sides.alone(found, LEFT)
            case how:
                found = came.join(there, on=keys, how="inner" if how is How.INNER else "left")
                times = (pl.col(CHANGE) * pl.col("_n").fill_null(1)).alias(CHANGE)
                found = found.select(pl.col(ROW).alias(LEFT), RIGHT, times)
        output = as_changes(self.sides.paired(found))
        return KernelStep({RIGHT: table}, output.select(self.output_schema.names()))


def _possible(how: How) -> How:
    if how not in POSSIBLE:
        raise InvalidError(
            f"join: `how` cannot be {how.value!r} with `as_of`: a table has no moment at which its rows have met "
            f"nobody; it is one of {', '.join(POSSIBLE)}"
        )
    return how
