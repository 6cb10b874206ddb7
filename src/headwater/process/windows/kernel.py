"""The kernel of a windowed computation: what, where, when and how over a few tables.

The table `windows` (schema: `columns`) has a row for each group and open window: the partial results of its
aggregates, its trigger's columns, the number of panes it emitted, and when it must be examined next (`DUE` by the
watermark, `WAKE` by the clock). The values that exact aggregates need are in separate tables, see `exact_values`.
Sliding windows also need `points`: the partial results at each time, from which later windows are made; so do
sessions over changes, which are made again when rows are retracted (`recomputation`).

If windows have a lateness, `closed` keeps the last pane of discarded windows, for rows that arrive even later.

A step reads the windows that its rows touch and those that are due, and no others.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.aggregates.exact_values import Values
from headwater.process.aggregates.folds import Folds
from headwater.process.changes import EXPIRED, NO_TIME
from headwater.process.kernel import KernelStep, Now, State
from headwater.process.table import Table
from headwater.process.windows.columns import (
    AT,
    COUNT,
    DUE,
    END,
    FINISHED,
    FORGET,
    GAP,
    NEVER,
    NONSPECULATIVE,
    PENDING,
    POINT,
    START,
    STATE_COLUMNS,
    TIME,
    UNTIL,
    WAKE,
)
from headwater.process.windows.intake import POINTS, WINDOWS, Intake
from headwater.process.windows.lateness import CLOSED_WINDOWS, Lateness
from headwater.process.windows.panes import PaneBuilder
from headwater.process.windows.placement import END_OF_TIME, is_in_gap
from headwater.process.windows.recomputation import Recomputation
from headwater.process.windows.trigger_columns import Array, CompiledTrigger, compile_trigger
from headwater.process.windows.triggers import TriggerEnd
from headwater.process.windows.windowing import Mode, Windowing


@dataclass(frozen=True, slots=True)
class WindowedKernel:
    """A windowed computation over rows of one schema; created by `of`."""

    windowing: Windowing
    schema: pl.Schema
    trigger: CompiledTrigger
    panes: PaneBuilder
    intake: Intake
    output_schema: pl.Schema

    @classmethod
    def of(cls, windowing: Windowing, schema: pl.Schema) -> "WindowedKernel":
        """Build the kernel for rows of this schema, whose event time must be Int64 microseconds."""
        schema = pl.Schema(schema)
        for column in (*windowing.by, windowing.time):
            if column not in schema and (column != windowing.time or not windowing.where.by_clock):
                raise InvalidError(f"windowed: there is no column {column!r}; the columns are {', '.join(schema)}")
        if schema.get(windowing.time, pl.Int64) != pl.Int64:
            raise InvalidError(
                f"windowed: the event time {windowing.time!r} is {schema[windowing.time]}, not Int64 microseconds"
            )
        points = {POINT, UNTIL} if windowing.where.ends_at_events else set()
        if taken := (STATE_COLUMNS | points) & set(windowing.by):
            raise InvalidError(
                f"windowed: `by` names the column {', '.join(map(repr, sorted(taken)))}, a name that windows use "
                "themselves; rename it"
            )
        change = CHANGE if CHANGE in schema else None
        windowing = windowing.over(changes=change is not None)
        is_fixed = windowing.where.is_fixed
        folds = Folds.of(
            windowing.what,
            schema,
            TIME,
            change,
            operator="windowed",
            is_separate=lambda bag: is_fixed and not bag.bounded,
        )
        trigger = compile_trigger(windowing.when)
        panes = PaneBuilder(windowing, folds, trigger)
        intake = Intake(windowing, schema, folds, trigger, panes)
        empty = intake.whole_rows(intake.combine(pl.DataFrame(schema=schema), Now()))
        return cls(windowing, schema, trigger, panes, intake, panes.no_changes(empty).schema)

    @property
    def combined_schema(self) -> pl.Schema:
        """The schema of combined rows."""
        return self.combine(pl.DataFrame(schema=self.schema), Now()).schema

    @property
    def late_schema(self) -> pl.Schema:
        """The schema of the late ledger."""
        return self.lateness.ledger(self.lateness.rejected(self._empty(), EXPIRED), Now(0, 0)).schema

    @property
    def values(self) -> Values:
        """The tables of values that exact aggregates need."""
        return Values(self.intake.folds, tuple(self.intake.table_key))

    @property
    def lateness(self) -> Lateness:
        """Decides which rows the windows reject."""
        return self.intake.lateness

    @property
    def recomputation(self) -> Recomputation:
        """Applies changes to windows that are not fixed."""
        return Recomputation(self.intake)

    def initial(self) -> State:
        combined = self._empty()
        windows = self.intake.table_rows(combined)
        # Windows that merge are looked up by their group, because they may join other windows of it.
        by = self.windowing.by if self.windowing.where.merges else None
        tables = {WINDOWS: Table.empty(windows.schema, self.intake.table_key, by)}
        tables |= self.values.empty(combined.schema)
        if self.intake.has_points:
            key = (*self.windowing.by, POINT)
            tables[POINTS] = Table.empty(self.intake.points(combined).schema, key, self.windowing.by)
        if self.windowing.lateness_micros:
            key = (*self.windowing.by, START, END)
            tables[CLOSED_WINDOWS] = Table.empty(self.lateness.closed(windows).schema, key)
        return tables

    @property
    def is_timeless(self) -> bool:
        return False

    def retracts(self, changes: bool) -> bool:
        # In the other modes a pane replaces the previous one, or adds to it.
        return self.windowing.how is Mode.RETRACTING

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        # The windows of rows by the clock are known only in `step`. If a trigger may finish at any time, or must
        # see each record, all rows are needed there anyway.
        where, when = self.windowing.where, self.windowing.when
        now = self._time(now)
        if where.by_clock or when.sees_each_record or when.may_finish is TriggerEnd.ANY_TIME:
            return rows
        combined = self.intake.combine(rows, now)
        return self.intake.combine_sessions(combined) if where.merges and not self.intake.recomputes else combined

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        now = self._time(now)
        tables, changes, ignored = dict(state), [], 0
        late: list[pl.DataFrame] = []
        if COUNT in rows.columns:
            parts = [rows]
        else:
            parts = [self.intake.combine(part, now) for part in self._passes(rows)]
        for part in parts:
            if self._has_gaps:
                in_gap = pl.col(START) == GAP
                ignored += int(part.filter(in_gap)[COUNT].sum())
                part = part.filter(in_gap.not_().fill_null(True))
            if part.height:
                changes.append(self._add(tables, part, now, late))
        due, evicted = self._fire_due(tables, now)
        self._forget(tables, now)
        output = pl.concat([*changes, due])
        ledger = self.lateness.ledger(pl.concat(late), now) if late else None
        counters = {
            "panes": output.filter(pl.col(CHANGE) > 0).height,
            "late": 0 if ledger is None else ledger.height,
            "evicted": evicted,
            "ignored": ignored,
        }
        return KernelStep(tables, output, self._wake_up(tables), ledger, counters, output)

    @property
    def _has_gaps(self) -> bool:
        return is_in_gap(self.windowing.where, pl.col(AT)) is not None

    def _time(self, now: Now) -> Now:
        """Return the time by which windows are judged."""
        where = self.windowing.where
        if where.by_clock:
            return Now(now.processing_time, now.processing_time)
        if where.is_single and END_OF_TIME <= now.watermark < NEVER:
            # An event of the year 9999 does not end the global window: only the end of the input does.
            return Now(END_OF_TIME - 1, now.processing_time)
        return now

    def _empty(self) -> pl.DataFrame:
        return self.intake.combine(pl.DataFrame(schema=self.schema), Now())

    def _passes(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        """Divide the rows if the trigger must see each record: the first of each group, the second of each, ..."""
        if not self.windowing.when.sees_each_record:
            return [rows]
        number = pl.int_range(pl.len())
        number = number.over(list(self.windowing.by)) if self.windowing.by else number
        return [part.drop("_number") for part in rows.with_columns(_number=number).partition_by("_number")]

    def _add(
        self, tables: dict[str, Table], combined: pl.DataFrame, now: Now, late: list[pl.DataFrame]
    ) -> pl.DataFrame:
        """Add rows to the windows they touch, and fire the windows whose trigger should fire."""
        result = None
        touched = self.intake.merge_fixed(tables, combined, now)
        if touched is None:
            timeless = combined.filter(pl.col(END).is_null())
            if timeless.height:
                late.append(self.lateness.rejected(timeless, NO_TIME))
                combined = combined.filter(pl.col(END).is_not_null())
            take_in = self.recomputation.apply if self.intake.recomputes else self.intake.collect
            result = take_in(tables, combined, now)
            if result.rejected is not None:
                late.append(self.lateness.with_last_panes(tables, result.rejected))
            touched = result.windows
            if self.values and result.rejected is not None:
                keys = self.intake.keys
                combined = combined.join(touched.select(keys), on=keys, how="semi", nulls_equal=True)
        touched = self.values.add(tables, combined, touched)
        rows = self.panes.trigger_rows(touched)
        if self.windowing.where.merges:
            self.trigger.root.on_merge(rows, now)
        everywhere = np.ones(touched.height, dtype=bool)
        self.trigger.root.on_elements(rows, everywhere, touched[COUNT].to_numpy(), now)
        labels = self.trigger.root.should_fire(rows, now)
        finished = self.trigger.root.on_fire(rows, labels > 0, now)
        touched = self.panes.with_times(touched.drop(COUNT), rows, now)
        after, changes = touched, pl.DataFrame(schema=self.output_schema)
        if (labels > 0).any():
            after, changes = self._fire(tables, touched, labels, finished, rows.none(), now)
        windows = tables[WINDOWS]
        if result is not None and result.gone is not None:
            windows = windows.drop(result.gone)
        tables[WINDOWS] = windows.put(after)
        if result is not None and result.retracted is not None:
            changes = pl.concat([self.panes.retractions(result.retracted).select(changes.columns), changes])
        return changes

    def _fire_due(self, tables: dict[str, Table], now: Now) -> tuple[pl.DataFrame, int]:
        """Fire the windows that the watermark or the clock has reached, and discard those past their lateness."""
        windows = tables[WINDOWS]
        due = windows.up_to(DUE, now.watermark)
        if self.trigger.has_deadlines:
            awake = windows.up_to(WAKE, now.processing_time)
            due = pl.concat([due, awake.filter(pl.col(DUE) > now.watermark)])
        if not due.height:
            return pl.DataFrame(schema=self.output_schema), 0
        rows = self.panes.trigger_rows(due)
        end, at = due[END].to_numpy(), due[DUE].to_numpy()
        unfinished = ~due[FINISHED].to_numpy()
        # A session that ended in the past, because it is what remains of a longer one, has fired when it was made.
        reached = (at <= now.watermark) & (at <= end) & (due[NONSPECULATIVE].to_numpy() == 0)
        called = reached
        if self.trigger.has_deadlines:
            called = called | (due[WAKE].to_numpy() <= now.processing_time)
        called = called & unfinished
        labels = np.where(called, self.trigger.root.should_fire(rows, now), 0)
        finished = self.trigger.root.on_fire(rows, labels > 0, now)
        gone = end + self.windowing.lateness_micros <= now.watermark
        # Rows that no pane has contained are emitted when the window is discarded, so that none is lost.
        closing = gone & unfinished & (labels == 0) & (due[PENDING].to_numpy() > 0)
        labels = np.where(closing, self.trigger.closing, labels)
        due = self.panes.with_times(due, rows, now)
        after, changes = due, pl.DataFrame(schema=self.output_schema)
        if (labels > 0).any():
            after, changes = self._fire(tables, due, labels, finished | closing, reached | closing, now)
        leaving = pl.col(END) + self.windowing.lateness_micros <= now.watermark
        windows = windows.put(after.filter(~leaving))
        evicted = after.filter(leaving)
        if evicted.height:
            windows = windows.remove(evicted)
            self.values.drop(tables, evicted)
            if self.intake.recomputes:
                self.recomputation.forget(tables, evicted)
            if CLOSED_WINDOWS in tables:
                tables[CLOSED_WINDOWS] = tables[CLOSED_WINDOWS].put(self.lateness.closed(evicted))
        tables[WINDOWS] = windows
        return changes, evicted.height

    def _fire(
        self,
        tables: dict[str, Table],
        frame: pl.DataFrame,
        labels: Array,
        finished: Array,
        may_be_on_time: Array,
        now: Now,
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Emit panes, with the values that are kept in tables of their own."""
        values = self.values
        if not values:
            return self.panes.fire(frame, labels, finished, may_be_on_time, now)
        fired = frame.filter(labels > 0)
        lists = values.read(tables, fired.select(self.intake.table_key))
        on = list(self.intake.table_key)
        whole = frame.join(lists, on=on, how="left", nulls_equal=True, maintain_order="left")
        after, changes = self.panes.fire(whole, labels, finished, may_be_on_time, now)
        if self.windowing.how is Mode.DISCARDING:
            values.drop(tables, fired)
        return after.select(frame.columns), changes

    def _forget(self, tables: dict[str, Table], now: Now) -> None:
        """Delete the points and closed windows that no later window and no late row can need."""
        for name, column in ((POINTS, UNTIL), (CLOSED_WINDOWS, FORGET)):
            if name in tables:
                table = tables[name]
                gone = table.up_to(column, now.watermark)
                tables[name] = table.remove(gone)

    def _wake_up(self, tables: dict[str, Table]) -> int | None:
        windows, times = tables[WINDOWS], []
        if self.trigger.has_deadlines:
            times.append(windows.where(pl.col(WAKE) < NEVER)[WAKE].min())
        if self.windowing.where.by_clock:
            times.append(windows.where(pl.col(DUE) < NEVER)[DUE].min())
        known = [int(time) for time in times if isinstance(time, int)]
        return min(known, default=None)
