"""The kernel of a windowed computation: what, where, when and how over a few tables.

The table `windows` has a row for each key and window that is open: the partials of its aggregates, its trigger's
columns, how many panes it emitted, and when it is to be looked at next (`due` by the watermark, `wake` by the
clock). What exact aggregates need of all values is in tables beside it, see `values`. Sliding windows also need
`points`: the partials of each moment, of which windows to come are made.

Where windows have a lateness, `closed` remembers the last pane of those that went, for rows that come later still.

A step looks up the windows that its rows touch and those that are due, and no others.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.aggregates.exact_values import Values
from headwater.process.aggregates.folds import Folds
from headwater.process.kernel import KernelStep, Now, State
from headwater.process.table import Table
from headwater.process.windows.intake import POINTS, WINDOWS, Intake
from headwater.process.windows.lateness import CLOSED_WINDOWS, EXPIRED, NO_TIME
from headwater.process.windows.panes import PaneBuilder
from headwater.process.windows.placement import END, START
from headwater.process.windows.trigger_columns import NEVER, Array, CompiledTrigger, Moment, compile_trigger
from headwater.process.windows.trigger_end import TriggerEnd
from headwater.process.windows.triggers import is_per_record
from headwater.process.windows.windowing import Mode, Windowing
from headwater.process.windows.windows import Session, Sliding, Time


@dataclass(frozen=True, slots=True)
class WindowedKernel:
    """A windowed computation over rows of one schema; made by `of`."""

    windowing: Windowing
    schema: pl.Schema
    firing: CompiledTrigger
    painter: PaneBuilder
    gathering: Intake
    output_schema: pl.Schema

    @classmethod
    def of(cls, windowing: Windowing, schema: pl.Schema) -> "WindowedKernel":
        """Build the kernel for rows of this schema; the event time must be there as Int64 microseconds."""
        schema = pl.Schema(schema)
        for column in (*windowing.by, windowing.time):
            if column not in schema and (column != windowing.time or windowing.where.by is Time.EVENT):
                raise InvalidError(f"windowed: there is no column {column!r}; the columns are {', '.join(schema)}")
        if schema.get(windowing.time, pl.Int64) != pl.Int64:
            raise InvalidError(
                f"windowed: the event time {windowing.time!r} is {schema[windowing.time]}, not Int64 microseconds"
            )
        change = CHANGE if CHANGE in schema else None
        is_fixed = not isinstance(windowing.where, Session | Sliding)
        folds = Folds.of(windowing.what, schema, "_time", change, beside=lambda bag: is_fixed and not bag.bounded)
        firing = compile_trigger(windowing.when)
        painter = PaneBuilder(windowing, folds, firing)
        gathering = Intake(windowing, schema, folds, firing, painter)
        nothing = gathering.whole(gathering.combine(pl.DataFrame(schema=schema), Now()))
        return cls(windowing, schema, firing, painter, gathering, painter.none(nothing).schema)

    @property
    def combined_schema(self) -> pl.Schema:
        """What `combine` gives."""
        return self.combine(pl.DataFrame(schema=self.schema), Now()).schema

    @property
    def late_schema(self) -> pl.Schema:
        """The columns of the late ledger."""
        return self.gathering.refusing.ledger(
            self.gathering.refusing.rejected(self._nothing(), EXPIRED), Moment(0, 0)
        ).schema

    @property
    def values(self) -> Values:
        """What is kept beside the table of windows."""
        return Values(self.gathering.folds, tuple(self.gathering.table_key))

    def initial(self) -> State:
        combined = self._nothing()
        # Sessions are looked up by their group, whose others they may join.
        by = self.windowing.by if isinstance(self.windowing.where, Session) else None
        tables = {WINDOWS: Table.empty(self.gathering.fresh(combined).schema, self.gathering.table_key, by)}
        tables |= self.values.empty(combined.schema)
        if isinstance(self.windowing.where, Sliding):
            tables[POINTS] = Table.empty(self.gathering.points(combined).schema, (*self.windowing.by, "at"))
        if self.windowing.lateness_micros:
            tables[CLOSED_WINDOWS] = Table.empty(
                self.gathering.refusing.closed(self.gathering.fresh(combined)).schema,
                (*self.windowing.by, START, END),
            )
        return tables

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        # Windows by the clock are known only when the rows are taken in; where a trigger may finish at any time,
        # or looks at each event, all rows have to travel anyway.
        by_clock = self.windowing.where.by is Time.PROCESSING
        if (
            by_clock
            or is_per_record(self.windowing.when)
            or self.gathering.refusing.finishes is TriggerEnd.ANY_TIME
        ):
            return rows
        combined = self.gathering.combine(rows, now)
        is_merging = isinstance(self.windowing.where, Session)
        return self.gathering.combine_sessions(combined) if is_merging else combined

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        watermark = now.watermark if self.windowing.where.by is Time.EVENT else now.processing_time
        moment = Moment(watermark, now.processing_time)
        tables, changes = dict(state), []
        late: list[pl.DataFrame] = []
        if "_n" in rows.columns:
            parts = [rows]
        else:
            parts = [self.gathering.combine(part, now) for part in self._passes(rows)]
        for part in parts:
            if part.height:
                changes.append(self._take_in(tables, part, moment, late))
        due, evicted = self._fire_due(tables, moment)
        self._forget(tables, moment)
        output = pl.concat([*changes, due])
        ledger = self.gathering.refusing.ledger(pl.concat(late), moment) if late else None
        counters = {
            "panes": output.filter(pl.col(CHANGE) > 0).height,
            "late": 0 if ledger is None else ledger.height,
            "evicted": evicted,
        }
        return KernelStep(tables, output, self._wake_up(tables), ledger, counters)

    def _nothing(self) -> pl.DataFrame:
        return self.gathering.combine(pl.DataFrame(schema=self.schema), Now())

    def _passes(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        """The rows as they are; or, to be seen one by one, the first of each key, then the second of each."""
        if not is_per_record(self.windowing.when):
            return [rows]
        number = pl.int_range(pl.len())
        number = number.over(list(self.windowing.by)) if self.windowing.by else number
        return [part.drop("_number") for part in rows.with_columns(_number=number).partition_by("_number")]

    def _take_in(
        self, tables: dict[str, Table], combined: pl.DataFrame, moment: Moment, late: list[pl.DataFrame]
    ) -> pl.DataFrame:
        """Add rows to the windows they touch, and fire those of them whose trigger says so."""
        gone = None
        touched = self.gathering.meet(tables, combined, moment)
        if touched is None:
            timeless = combined.filter(pl.col(END).is_null())
            if timeless.height:
                late.append(self.gathering.refusing.rejected(timeless, NO_TIME))
                combined = combined.filter(pl.col(END).is_not_null())
            gathered = self.gathering.gather(tables, combined, moment)
            gone = gathered.gone
            if gathered.rejected is not None:
                late.append(self.gathering.refusing.with_last_panes(tables, gathered.rejected))
            touched = self.gathering.merge(gathered.union)
            if self.values and gathered.rejected is not None:
                keys = self.gathering.keys
                combined = combined.join(touched.select(keys), on=keys, how="semi", nulls_equal=True)
        touched = self.values.take(tables, combined, touched)
        rows = self.painter.rows_of(touched)
        if isinstance(self.windowing.where, Session):
            self.firing.root.on_merge(rows, moment)
        everywhere = np.ones(touched.height, dtype=bool)
        self.firing.root.on_elements(rows, everywhere, touched["_n"].to_numpy(), moment)
        labels = self.firing.root.should_fire(rows, moment)
        finished = self.firing.root.on_fire(rows, labels > 0, moment)
        touched = self.painter.with_times(touched.drop("_n"), rows, moment)
        after, changes = touched, pl.DataFrame(schema=self.output_schema)
        if (labels > 0).any():
            after, changes = self._fire(tables, touched, labels, finished, rows.none(), moment)
        windows = tables[WINDOWS] if gone is None else tables[WINDOWS].drop(gone)
        tables[WINDOWS] = windows.put(after)
        return changes

    def _fire_due(self, tables: dict[str, Table], moment: Moment) -> tuple[pl.DataFrame, int]:
        """Fire what the watermark or the clock has reached, and let go of what is past its lateness."""
        windows = tables[WINDOWS]
        due = windows.up_to("due", moment.watermark)
        if self.firing.has_deadlines:
            awake = windows.up_to("wake", moment.processing_time)
            due = pl.concat([due, awake.filter(pl.col("due") > moment.watermark)])
        if not due.height:
            return pl.DataFrame(schema=self.output_schema), 0
        rows = self.painter.rows_of(due)
        end, at = due[END].to_numpy(), due["due"].to_numpy()
        unfinished = ~due["finished"].to_numpy()
        reached = (at <= moment.watermark) & (at <= end)
        called = reached
        if self.firing.has_deadlines:
            called = called | (due["wake"].to_numpy() <= moment.processing_time)
        called = called & unfinished
        labels = np.where(called, self.firing.root.should_fire(rows, moment), 0)
        finished = self.firing.root.on_fire(rows, labels > 0, moment)
        gone = end + self.windowing.lateness_micros < moment.watermark
        # What no pane has shown is shown when the window goes: nothing is lost in silence.
        closing = gone & unfinished & (labels == 0) & (due["pending"].to_numpy() > 0)
        labels = np.where(closing, len(self.firing.names) - 1, labels)
        due = self.painter.with_times(due, rows, moment)
        after, changes = due, pl.DataFrame(schema=self.output_schema)
        if (labels > 0).any():
            after, changes = self._fire(tables, due, labels, finished | closing, reached | closing, moment)
        leaving = pl.col(END) + self.windowing.lateness_micros < moment.watermark
        windows = windows.put(after.filter(~leaving))
        evicted = after.filter(leaving)
        if evicted.height:
            windows = windows.drop(evicted.select(self.gathering.keys))
            self.values.drop(tables, evicted)
            if CLOSED_WINDOWS in tables:
                tables[CLOSED_WINDOWS] = tables[CLOSED_WINDOWS].put(self.gathering.refusing.closed(evicted))
        tables[WINDOWS] = windows
        return changes, evicted.height

    def _fire(
        self,
        tables: dict[str, Table],
        frame: pl.DataFrame,
        labels: Array,
        finished: Array,
        may_be_on_time: Array,
        moment: Moment,
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Emit panes, with the values that are kept beside the windows."""
        values = self.values
        if not values:
            return self.painter.fire(frame, labels, finished, may_be_on_time, moment)
        fired = frame.filter(labels > 0)
        lists = values.read(tables, fired.select(self.gathering.table_key))
        on = list(self.gathering.table_key)
        whole = frame.join(lists, on=on, how="left", nulls_equal=True, maintain_order="left")
        after, changes = self.painter.fire(whole, labels, finished, may_be_on_time, moment)
        if self.windowing.how is Mode.DISCARDING:
            values.drop(tables, fired)
        return after.select(frame.columns), changes

    def _forget(self, tables: dict[str, Table], moment: Moment) -> None:
        """Let go of what no window to come and no late row can ask for any more."""
        for name, column in ((POINTS, "until"), (CLOSED_WINDOWS, "forget")):
            if name in tables:
                table = tables[name]
                gone = table.up_to(column, moment.watermark)
                tables[name] = table.drop(gone.select(table.key)) if gone.height else table

    def _wake_up(self, tables: dict[str, Table]) -> int | None:
        windows, times = tables[WINDOWS], []
        if self.firing.has_deadlines:
            times.append(windows.where(pl.col("wake") < NEVER)["wake"].min())
        if self.windowing.where.by is Time.PROCESSING:
            times.append(windows.where(pl.col("due") < NEVER)["due"].min())
        known = [int(time) for time in times if isinstance(time, int)]
        return min(known, default=None)
