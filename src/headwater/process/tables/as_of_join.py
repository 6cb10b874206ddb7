"""Joins of a stream with a table: as of the event's time, or as of now.

**As of event time**, the right side is the history of a table: each row is a version, valid for its key from its
event time until the next version. A row of the left side is joined with the version that was valid at its own
time. It is emitted at once, with the version known then. It is kept until it is older than the left side's
watermark by `lateness`; if a late version changes the match, the row is retracted and emitted again. Of the
history, the versions that these rows need are kept: the one that was valid then, and all later ones. A table often
has no changes for a long time, so its side never holds the watermark back.

**As of now**, a row is joined with the table's content when it arrives, and is never corrected. Changes of the
table in the same step are applied first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.changes import (
    ROW,
    as_changes,
    net,
    put_weights,
    split_late,
    with_weights,
    without_retractions,
)
from headwater.process.kernel import KernelStep, Now, State, time_before
from headwater.process.table import Table
from headwater.process.tables.sides import BOTH_SIDES, LEFT, RIGHT, SIDE, TIME, How, Sides, TwoInputKernel

GONE = "_gone_from"
"""The column of the history that is true if the key has no row from this time on."""

POSSIBLE = (How.INNER, How.LEFT, How.SEMI, How.ANTI)
"""The possible kinds. Unmatched rows of the table cannot be emitted: a later event could always match them."""


@dataclass(frozen=True, slots=True)
class AsOfKernel(TwoInputKernel):
    """Joins a stream with the version of a table that was valid at the event's time. Created by `of`.

    Rows of the left side that are older than the watermark by more than `lateness`, or have no time, go to the
    late ledger; so do versions without a time, and retractions of versions that are older. Of two versions with
    the same time, the one that arrived later counts. Rows with a null key that can be in no result, versions
    that only late rows could need, and retractions of unknown versions are counted (`ignored`).
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
        return cls(Sides.of(on, _check_how(how), left, right), lateness)

    @property
    def schema(self) -> pl.Schema:
        return pl.Schema({**self.sides.schema, GONE: pl.Boolean()})

    @property
    def hold(self) -> int:
        """The greatest difference between the watermark and the event times in the output."""
        return self.lateness

    @property
    def is_timeless(self) -> bool:
        return False

    def retracts(self, changes: bool) -> bool:
        return True  # A version that arrives after its events corrects them.

    def initial(self) -> State:
        keys = {name: self.schema[name] for name in self.sides.keys}
        events = pl.Schema({**keys, TIME: pl.Int64(), ROW: self.schema[LEFT], CHANGE: pl.Int64()})
        versions = pl.Schema({**keys, TIME: pl.Int64(), ROW: self.schema[RIGHT], GONE: pl.Boolean()})
        return {
            LEFT: Table.empty(events, (*keys, TIME, ROW), tuple(keys)),
            RIGHT: Table.empty(versions, (*keys, TIME), tuple(keys)),
        }

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        tables, horizon = dict(state), time_before(now.watermark, self.lateness)
        rows, late = self._split_late(rows, now.watermark, horizon)
        rows, ignored = self.sides.without_unmatchable(rows)
        keyed = pl.all_horizontal(pl.col(self.sides.keys).is_not_null())
        events = net(self.sides.of_side(rows, LEFT))
        # Events with a null key match no version.
        parts = [self._join(events.filter(~keyed), tables[RIGHT].fresh.clear())]
        versions = rows.filter(pl.col(SIDE) == 1).with_columns(pl.col(RIGHT).alias(ROW))
        events = events.filter(keyed)
        if events.height or versions.height:
            added, unneeded = self._add(tables, events, versions, horizon)
            parts, ignored = [*parts, *added], ignored + unneeded
        output = without_retractions(self.sides.output(pl.concat(parts)))
        touched = pl.concat([events.select(self.sides.keys), versions.select(self.sides.keys)])
        self._forget(tables, horizon, touched)
        counters = {"late": 0 if late is None else late.height, "ignored": ignored}
        return KernelStep(
            tables, as_changes(output).select(self.output_schema.names()), late=late, counters=counters
        )

    def _split_late(
        self, rows: pl.DataFrame, watermark: int, horizon: int
    ) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        # A version is never too late. Its retraction can be, because the version before it may have been deleted.
        can_be_late = (pl.col(SIDE) == 0) | (pl.col(CHANGE) < 0)
        return split_late(rows, BOTH_SIDES, TIME, (pl.col(TIME) < horizon) & can_be_late, watermark)

    def _add(
        self, tables: dict[str, Table], events: pl.DataFrame, versions: pl.DataFrame, horizon: int
    ) -> tuple[list[pl.DataFrame], int]:
        """Add events and versions; return the changes of the join, and the number of ignored versions."""
        keys = self.sides.keys
        touched = pl.concat([events.select(keys), versions.select(keys)]).unique()
        old_events, old_versions = tables[LEFT].get(touched), tables[RIGHT].get(touched)
        tables[RIGHT], unknown = self._with_versions(tables[RIGHT], versions)
        new_versions = tables[RIGHT].get(touched) if versions.height else old_versions
        parts = [self._join(events, new_versions)]
        if versions.height:
            affected = old_events.join(versions.select(keys).unique(), on=keys, how="semi")
            parts.append(self._join(affected, new_versions))
            parts.append(self._join(affected.with_columns(-pl.col(CHANGE)), old_versions))
        tables[LEFT], _ = put_weights(tables[LEFT], old_events, events)
        return parts, unknown + self._count_superseded(old_versions, versions, horizon)

    def _count_superseded(self, known: pl.DataFrame, versions: pl.DataFrame, horizon: int) -> int:
        """Return the number of versions that have ended before the horizon when they arrive."""
        inserted = versions.filter((pl.col(CHANGE) > 0) & (pl.col(TIME) < horizon))
        if not inserted.height:
            return 0
        columns = [*self.sides.keys, TIME]
        both = pl.concat(
            [known.filter(pl.col(TIME) < horizon).sort(TIME).select(columns), inserted.select(columns)]
        )
        return both.filter(pl.col(TIME) < pl.col(TIME).cum_max().over(self.sides.keys)).height

    def _with_versions(self, table: Table, versions: pl.DataFrame) -> tuple[Table, int]:
        """Add versions to the history, each replacing one with the same time, and remove retracted ones.

        Returns the history, and the number of retracted versions that it does not have.
        """
        unknown = 0
        for change in (
            versions.select(*table.schema.names(), CHANGE)
            .with_columns(
                # In turns, so that the last of several changes with the same time counts. Usually there is one
                # turn.
                _turn=pl.int_range(pl.len()).over(*table.key)
            )
            .sort("_turn", maintain_order=True)
            .partition_by("_turn")
        ):
            inserted = change.filter(pl.col(CHANGE) > 0).with_columns(pl.col(GONE).fill_null(False))
            retracted = change.filter(pl.col(CHANGE) < 0).select(*table.key, ROW)
            if retracted.height:
                known = table.get(retracted.select(table.key))
                same = known.join(retracted, on=[*table.key, ROW], how="semi", nulls_equal=True)
                table = table.remove(same)
                unknown += retracted.height - same.height
            table = table.put(inserted.select(table.schema.names()))
        return table, unknown

    def _join(self, events: pl.DataFrame, versions: pl.DataFrame) -> pl.DataFrame:
        """Join events with the version that was valid at their time."""
        keys = self.sides.keys
        found = events.sort(TIME).join_asof(
            versions.select(*keys, TIME, pl.col(ROW).alias(RIGHT), GONE).sort(TIME),
            on=TIME,
            by=keys,
            strategy="backward",
            check_sortedness=False,
        )
        is_matched = pl.col(GONE).eq_missing(False)
        match self.sides.how:
            case How.INNER | How.SEMI:
                found = found.filter(is_matched)
            case How.ANTI:
                found = found.filter(~is_matched)
            case _:
                found = found.with_columns(pl.when(is_matched).then(RIGHT).alias(RIGHT))
        return found.select(pl.col(ROW).alias(LEFT), RIGHT, CHANGE)

    def _forget(self, tables: dict[str, Table], horizon: int, touched: pl.DataFrame) -> None:
        """Delete events that are too old to be corrected, and versions that no later event can need."""
        old = tables[LEFT].where(pl.col(TIME) < horizon)
        tables[LEFT] = tables[LEFT].remove(old)
        # The last version before the horizon is still valid. Only keys with changes can have several.
        old = tables[RIGHT].get(touched.unique()).filter(pl.col(TIME) < horizon)
        gone = old.filter(pl.col(TIME) < pl.col(TIME).max().over(self.sides.keys))
        tables[RIGHT] = tables[RIGHT].remove(gone)


@dataclass(frozen=True, slots=True)
class NowKernel(TwoInputKernel):
    """Joins a stream with a table's content at the time when a row arrives. Created by `of`.

    Emitted rows are not kept, so the left side must not retract rows. Rows with a null key that can be in no
    result are counted (`ignored`).
    """

    @classmethod
    def of(
        cls, on: str | Sequence[str] | Mapping[str, str], how: How, left: pl.Schema, right: pl.Schema
    ) -> "NowKernel":
        if CHANGE in left:
            raise InvalidError(
                f"join: the left side has changes ({CHANGE}), which cannot be joined as of now, because emitted "
                "rows are not kept and cannot be retracted; join two tables, without `as_of`"
            )
        return cls(Sides.of(on, _check_how(how), left, right))

    @property
    def hold(self) -> int:
        return 0

    @property
    def is_timeless(self) -> bool:
        return False

    def retracts(self, changes: bool) -> bool:
        return False

    def initial(self) -> State:
        keys = {name: self.schema[name] for name in self.sides.keys}
        schema = pl.Schema({**keys, ROW: self.schema[RIGHT], CHANGE: pl.Int64()})
        return {RIGHT: Table.empty(schema, (*keys, ROW), tuple(keys))}

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        keys = self.sides.keys
        keyed = pl.all_horizontal(pl.col(keys).is_not_null())
        rows, ignored = self.sides.without_unmatchable(rows)
        events = with_weights(self.sides.of_side(rows, LEFT))
        delta = net(self.sides.of_side(rows, RIGHT).select(*keys, ROW, CHANGE))
        touched = pl.concat([events.filter(keyed).select(keys), delta.select(keys)]).unique()
        table, known = put_weights(state[RIGHT], state[RIGHT].get(touched), delta)
        present = known.filter(pl.col(CHANGE) > 0).select(
            *keys, pl.col(ROW).alias(RIGHT), pl.col(CHANGE).alias("_n")
        )
        match self.sides.how:
            case How.SEMI | How.ANTI as how:
                found = events.join(present, on=keys, how="semi" if how is How.SEMI else "anti")
                found = self.sides.alone(found, LEFT)
            case how:
                found = events.join(present, on=keys, how="inner" if how is How.INNER else "left")
                times = (pl.col(CHANGE) * pl.col("_n").fill_null(1)).alias(CHANGE)
                found = found.select(pl.col(ROW).alias(LEFT), RIGHT, times)
        output = as_changes(self.sides.output(found))
        return KernelStep({RIGHT: table}, output.select(self.output_schema.names()), counters={"ignored": ignored})


def _check_how(how: How) -> How:
    if how not in POSSIBLE:
        raise InvalidError(
            f"join: how={how.value!r} is not possible with `as_of`, because a later event could still match a row "
            f"of the table; use one of {', '.join(POSSIBLE)}"
        )
    return how
