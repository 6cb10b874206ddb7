"""Every row that an operator gets has an effect, or is in the late ledger, or is counted as ignored.

The rows are late, have no event time or no key, come out of order, or retract rows that are unknown. Each is given
to the operator alone: if neither the output nor the state differs from a step without it, it must be counted. In
one batch the same number of rows is counted. A new operator takes part as soon as it is in `EXAMPLES`.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

import headwater as hw
from differential.joins import Join
from differential.operators import KernelForm, Operator, Table
from differential.queries import EXAMPLES, Query
from differential.rows import SECOND, Data, Row, generate
from differential.simulated import input_schema
from differential.values import plain
from differential.windows import Windowed
from headwater.process.kernel import KernelStep, Now, State

WATERMARKS = (0, 30, 60, 90, 200)
"""The watermark of each part of the rows, in seconds; event times are from 0 to 100."""


@dataclass(frozen=True)
class Part:
    """Rows of both inputs that arrive at one watermark: changes of the relation, and rows of the other input."""

    changes: list[tuple[Row, int]]
    other: list[Row]
    now: Now

    def singly(self, data: Data, form: KernelForm) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        """Yield each row alone; rows of the other input only if the operator reads them."""
        nothing = data.frame([])
        for change in self.changes:
            yield data.frame([change]), data.other_frame([])
        for row in self.other:
            if form.prepare(nothing, data.other_frame([row])).height:
                yield nothing, data.other_frame([row])


def unusual_data(seed: int, *, retracts: bool) -> Data:
    """Generate rows out of order, some without a time or a key, and retractions of rows that never existed."""
    chance = random.Random(seed)
    data = generate(chance, size=20, retracts=retracts, unusual=True)
    changes = [(_without(row, row["id"], "ts"), weight) for row, weight in data.changes]
    if retracts:
        changes += [({**row, "id": row["id"] + 100}, -1) for row, _ in changes[::9]]
    chance.shuffle(changes)
    other = [_without(row, row["oid"], "ot") for row in data.other]
    return Data(tuple(changes), tuple(other), retracts, data.base)


def _without(row: Row, number: int, time: str) -> Row:
    """Return a row without its time or its key, if it has a certain number."""
    return {**row, **{0: {time: None}, 3: {"k": None}}.get(number % 6, {})}


def parts_of(data: Data) -> list[Part]:
    number = len(WATERMARKS)
    return [
        Part(list(data.changes[n::number]), list(data.other[n::number]), Now(seconds * SECOND))
        for n, seconds in enumerate(WATERMARKS)
    ]


def run(form: KernelForm, state: State, rows: pl.DataFrame, other: pl.DataFrame, now: Now) -> KernelStep:
    prepared = form.prepare(rows, other)
    if form.kernel is None:  # Spark's own operation on single rows
        return KernelStep({}, prepared)
    return form.kernel.step(state, form.kernel.combine(prepared, now), now)  # type: ignore[no-any-return]


def contents(frame: pl.DataFrame) -> Counter[Any]:
    return Counter(plain(row) for row in frame.iter_rows())


def differs(one: KernelStep, other: KernelStep) -> bool:
    """Return whether two steps differ in their output or their state."""
    tables = [(one.state[name].rows, other.state[name].rows) for name in one.state]
    return any(contents(ours) != contents(theirs) for ours, theirs in [(one.output, other.output), *tables])


def counted(step: KernelStep) -> int:
    late = 0 if step.late is None else step.late.height
    assert step.counters.get("late", 0) == late
    return late + step.counters.get("ignored", 0)


def is_in_several_windows(operator: Operator) -> bool:
    """Return whether a row may be late for one window and on time for another."""
    return isinstance(operator, Windowed) and isinstance(operator.where, hw.Hopping | hw.Sliding)


def depends_on_others(operator: Operator) -> bool:
    """Return whether a row that is late alone may be on time with another row of its batch, in one session."""
    return isinstance(operator, Windowed) and operator.where.merges


@pytest.mark.parametrize("retracts", [False, True], ids=["rows", "changes"])
@pytest.mark.parametrize("operator", EXAMPLES.values(), ids=list(EXAMPLES))
def test_every_row_has_an_effect_or_is_counted(operator: Operator, retracts: bool) -> None:
    data = unusual_data(0, retracts=retracts)
    if Query("", (operator,), data, 0).refusal:
        return
    form = operator.as_kernel(input_schema(data))
    state: State = {} if form.kernel is None else form.kernel.initial()
    total = 0
    for part in parts_of(data):
        whole = counted(run(form, state, data.frame(part.changes), data.other_frame(part.other), part.now))
        single = 0
        for rows, other in part.singly(data, form):
            step = run(form, state, rows, other, part.now)
            without = run(form, state, rows.clear(), other.clear(), part.now)
            number, has_effect = counted(step), differs(step, without)
            assert has_effect or number or operator.selects, (rows, other)
            assert not (has_effect and number) or is_in_several_windows(operator), (rows, other)
            state, single = step.state, single + number
        assert whole == single or depends_on_others(operator) or is_in_several_windows(operator)
        total += single
    assert total or not rejects_rows(operator)


def rejects_rows(operator: Operator) -> bool:
    """Return whether the operator must reject some of the rows, so that the test shows something."""
    if isinstance(operator, Windowed):
        return not operator.where.is_single
    return isinstance(operator, Table) or (isinstance(operator, Join) and operator.how != "full")
