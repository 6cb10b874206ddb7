"""Runs a query's kernels in this process: rows in random batches, with combining, restarts and crashes."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import polars as pl

from differential.operators import KernelForm
from differential.queries import Query
from differential.rows import COLUMNS, SPAN, Data, polars_schema
from differential.values import plain
from headwater.change import CHANGE
from headwater.process.kernel import BEGINNING, Now, State, time_before
from headwater.testing.simulator import reloaded

END = 2**62
Rows = list[tuple[Any, ...]]


def input_schema(data: Data) -> pl.Schema:
    """Return the schema of the rows that the first kernel of a query gets."""
    schema = polars_schema(COLUMNS)
    return pl.Schema({**schema, CHANGE: pl.Int8()}) if data.has_retractions else schema


class SimulatedQuery:
    """One run of a query."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._chance = random.Random(query.seed)
        schema = input_schema(query.data)
        self.last_inputs: list[pl.DataFrame] = []
        """The rows that the last operator got, by batch."""
        self._forms: list[KernelForm] = []
        self._states: list[State] = []
        self._schemas: list[pl.Schema] = []
        self._outputs: list[pl.DataFrame] = []
        has_changes = query.data.has_retractions
        for operator in query.operators:
            if operator.needs_rows and not has_changes:
                schema = pl.Schema({name: kind for name, kind in schema.items() if name != CHANGE})
            has_changes = operator.output_has_retractions(has_changes)
            form = operator.as_kernel(schema)
            self._schemas.append(schema)
            self._forms.append(form)
            self._states.append({} if form.kernel is None else form.kernel.initial())
            nothing = pl.DataFrame(schema=schema)
            schema = _run(form, {}, nothing, query.data.other_frame([]), Now(), None)[1].schema
            self._outputs.append(pl.DataFrame(schema=schema))

    def run(self) -> pl.DataFrame:
        """Process all rows and then the end of time; return the changes of the result, in order."""
        data, chance = self._query.data, self._chance
        delay = 0 if self._query.late else SPAN
        results, watermark, latest = [], BEGINNING, BEGINNING
        # A table that rows are joined with as of now must be there before them.
        cuts = self._cut(len(data.changes))
        others = [data.other, *([()] * (len(cuts) - 1))]
        if chance.random() < 0.7 and not self._needs_other_first:
            points = sorted(chance.randrange(len(data.other) + 1) for _ in range(len(cuts) - 1))
            bounds = [0, *points, len(data.other)]
            others = [data.other[start:end] for start, end in pairwise(bounds)]
        for (start, end), other in zip(cuts, others, strict=True):
            changes = data.changes[start:end]
            latest = max([latest, *(row["ts"] for row, _ in changes)])
            after = max(watermark, latest - delay) if latest > BEGINNING else watermark
            results.append(self._batch(data.frame(changes), data.other_frame(other), watermark, after))
            watermark = after
        results.append(self._batch(data.frame([]), data.other_frame([]), watermark, END))
        return pl.concat([result for result in results if result.width])

    @property
    def _needs_other_first(self) -> bool:
        return any(getattr(operator, "kind", "") in ("now", "side") for operator in self._query.operators)

    def _cut(self, size: int) -> list[tuple[int, int]]:
        points = sorted(self._chance.randrange(size + 1) for _ in range(self._chance.choice(self._query.cuts)))
        bounds = [0, *points, size]
        return list(pairwise(bounds))

    def _batch(self, rows: pl.DataFrame, other: pl.DataFrame, before: int, after: int) -> pl.DataFrame:
        """Run each operator: the rows at the old watermark, then nothing at the new one."""
        for number, form in enumerate(self._forms):
            rows = rows.select(self._schemas[number].names())
            if number == len(self._forms) - 1:
                self.last_inputs.append(rows)
            empty, no_other = rows.clear(), other.clear()
            state = self._reloaded(self._states[number])
            state, first = _run(form, state, rows, other, Now(before, 0), self._chance)
            state, second = _run(form, state, empty, no_other, Now(after, 0), None)
            self._states[number] = state
            schema = self._outputs[number].schema
            rows = pl.concat([first, second]).cast(dict(schema))  # type: ignore[arg-type]
            before, after = time_before(before, form.hold), time_before(after, form.hold)
        return rows

    def _reloaded(self, state: State) -> State:
        """Return the state as it is after a restart, sometimes."""
        if self._chance.random() < 0.7:
            return {name: table.sealed() for name, table in state.items()}
        return {name: reloaded(table) for name, table in state.items()}


def _run(
    form: KernelForm, state: State, rows: pl.DataFrame, other: pl.DataFrame, now: Now, chance: random.Random | None
) -> tuple[State, pl.DataFrame]:
    prepared = form.prepare(rows, other)
    if form.kernel is None:
        return state, form.finish(prepared)
    state = state or form.kernel.initial()
    if chance is not None and prepared.height:
        prepared = _combined(form.kernel, prepared, now, chance)
    step = form.kernel.step(state, prepared, now)
    return step.state, form.finish(step.output)


def _combined(kernel: Any, rows: pl.DataFrame, now: Now, chance: random.Random) -> pl.DataFrame:
    """Combine the rows as one to three tasks would, or leave them as they are."""
    tasks = chance.choice((0, 1, 2, 3))
    if tasks == 0:
        return rows
    numbers = pl.Series([chance.randrange(tasks) for _ in range(rows.height)])
    parts = [kernel.combine(rows.filter(numbers == task), now) for task in range(tasks)]
    parts = [part for part in parts if part.height] or parts[:1]
    same = all(part.schema == parts[0].schema for part in parts)
    return pl.concat(parts, how="vertical" if same else "diagonal")


def net_rows(changes: pl.DataFrame, columns: Sequence[str]) -> Rows:
    """Return the rows that remain when all changes are applied; raise if more are retracted than inserted."""
    kept: dict[Any, list[tuple[Any, ...]]] = {}
    missing: dict[Any, int] = {}
    weights = changes.get_column(CHANGE).to_list() if CHANGE in changes.columns else [1] * changes.height
    for row, weight in zip(changes.select(columns).iter_rows(), weights, strict=True):
        key = tuple(plain(value) for value in row)
        if weight > 0:
            if missing.get(key):
                missing[key] -= 1
            else:
                kept.setdefault(key, []).append(row)
        elif kept.get(key):
            kept[key].pop()
        else:
            missing[key] = missing.get(key, 0) + 1
    left = {key: number for key, number in missing.items() if number}
    assert not left, f"rows are retracted that were never inserted: {left}"
    return [row for rows in kept.values() for row in rows]
