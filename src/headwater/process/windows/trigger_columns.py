"""Triggers as columns: each node of a trigger tree owns a few columns of the table of windows.

A tree is compiled once; then each of its moments (events came, may it fire, it fired, windows merged) is done for
all rows at once, over numpy arrays. Nothing here loops over keys or windows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from headwater.process.durations import micros
from headwater.process.windows import triggers as t

NEVER = 2**62
"""A time that does not come: later than any deadline."""

CLOSING = "Closing"
"""The name of what fires when a window is given up with events that no pane has shown."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Moment:
    """The times at which rows are looked at."""

    watermark: int
    processing_time: int


@dataclass(frozen=True, slots=True)
class TriggerRows:
    """Some rows of the table of windows: their ends, and the triggers' columns, which nodes change in place."""

    end: Array
    columns: dict[str, Array]

    def ended(self, moment: Moment) -> Array:
        return self.end <= moment.watermark

    def none(self) -> Array:
        return np.zeros(len(self.end), dtype=bool)


@dataclass(frozen=True, slots=True)
class TriggerField:
    """A column of a node: its value in a new window, and what becomes of it when windows merge."""

    dtype: Any
    default: int | bool
    merge: Literal["sum", "min", "max"]


class TriggerNode(Protocol):
    """A trigger over many windows at once; `mask` says for which of them something happens."""

    def fields(self) -> Iterator[tuple[str, TriggerField]]:
        """The columns of this node and those below."""
        ...

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, moment: Moment) -> None:
        """Events came, `count` of them for each window."""
        ...

    def should_fire(self, rows: TriggerRows, moment: Moment) -> Array:
        """The number of the trigger that wants to fire, 0 where none does."""
        ...

    def on_fire(self, rows: TriggerRows, mask: Array, moment: Moment) -> Array:
        """It fired; gives where it is finished now."""
        ...

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        """Begin anew."""
        ...

    def on_merge(self, rows: TriggerRows, moment: Moment) -> None:
        """Windows were merged: their columns are, and the ends may have moved."""
        ...

    def wake(self, rows: TriggerRows, moment: Moment) -> Array:
        """The processing time at which it wants to be asked, `NEVER` where there is none."""
        ...


@dataclass(frozen=True, slots=True)
class _Watermark:
    """Default and AfterWatermark: what happens at the end of the window."""

    label: int
    column: str
    early: TriggerNode | None
    late: TriggerNode | None
    finishes: bool

    def fields(self) -> Iterator[tuple[str, TriggerField]]:
        if self.late is not None:
            yield self.column, TriggerField(np.bool_, False, "max")
            yield from self.late.fields()
        if self.early is not None:
            yield from self.early.fields()

    def _is_late(self, rows: TriggerRows) -> Array:
        return rows.columns[self.column] if self.late is not None else rows.none()

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, moment: Moment) -> None:
        late = self._is_late(rows)
        if self.late is not None:
            self.late.on_elements(rows, mask & late, count, moment)
        if self.early is not None:
            self.early.on_elements(rows, mask & ~late, count, moment)

    def should_fire(self, rows: TriggerRows, moment: Moment) -> Array:
        fires = np.where(rows.ended(moment), self.label, 0)
        if self.early is not None:
            fires = np.where(fires > 0, fires, self.early.should_fire(rows, moment))
        if self.late is not None:
            fires = np.where(self._is_late(rows), self.late.should_fire(rows, moment), fires)
        return fires

    def on_fire(self, rows: TriggerRows, mask: Array, moment: Moment) -> Array:
        late, ended = self._is_late(rows).copy(), rows.ended(moment)
        if self.early is not None:
            self.early.on_fire(rows, mask & ~late & ~ended, moment)
        if self.late is None:
            return mask & ended if self.finishes else rows.none()
        self.late.on_fire(rows, mask & late, moment)
        rows.columns[self.column] |= mask & ended
        return rows.none()

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        if self.late is not None:
            rows.columns[self.column] &= ~mask
            self.late.reset(rows, mask)
        if self.early is not None:
            self.early.reset(rows, mask)

    def on_merge(self, rows: TriggerRows, moment: Moment) -> None:
        # A merged window whose end is still to come will be on time again; Beam leaves it to the late trigger,
        # which may never show what the window gained.
        if self.late is not None:
            rows.columns[self.column] &= rows.ended(moment)
            self.late.on_merge(rows, moment)
        if self.early is not None:
            self.early.on_merge(rows, moment)

    def wake(self, rows: TriggerRows, moment: Moment) -> Array:
        wake = np.full(len(rows.end), NEVER)
        if self.early is not None:
            wake = np.where(rows.ended(moment), NEVER, self.early.wake(rows, moment))
        if self.late is not None:
            wake = np.where(self._is_late(rows), self.late.wake(rows, moment), wake)
        return wake


@dataclass(frozen=True, slots=True)
class _Count:
    label: int
    column: str
    count: int

    def fields(self) -> Iterator[tuple[str, TriggerField]]:
        yield self.column, TriggerField(np.int64, 0, "sum")

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, moment: Moment) -> None:
        rows.columns[self.column] += np.where(mask, count, 0)

    def should_fire(self, rows: TriggerRows, moment: Moment) -> Array:
        return np.where(rows.columns[self.column] >= self.count, self.label, 0)

    def on_fire(self, rows: TriggerRows, mask: Array, moment: Moment) -> Array:
        return mask

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        rows.columns[self.column][mask] = 0

    def on_merge(self, rows: TriggerRows, moment: Moment) -> None:
        pass  # counts add up

    def wake(self, rows: TriggerRows, moment: Moment) -> Array:
        return np.full(len(rows.end), NEVER)


@dataclass(frozen=True, slots=True)
class _ProcessingTime:
    label: int
    column: str
    delay: int
    aligned_to: int

    def fields(self) -> Iterator[tuple[str, TriggerField]]:
        yield self.column, TriggerField(np.int64, NEVER, "min")

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, moment: Moment) -> None:
        deadline = moment.processing_time + self.delay
        if self.aligned_to:
            deadline = -(-deadline // self.aligned_to) * self.aligned_to
        column = rows.columns[self.column]
        column[mask & (column == NEVER)] = deadline

    def should_fire(self, rows: TriggerRows, moment: Moment) -> Array:
        return np.where(rows.columns[self.column] <= moment.processing_time, self.label, 0)

    def on_fire(self, rows: TriggerRows, mask: Array, moment: Moment) -> Array:
        return mask

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        rows.columns[self.column][mask] = NEVER

    def on_merge(self, rows: TriggerRows, moment: Moment) -> None:
        pass  # the earliest deadline holds

    def wake(self, rows: TriggerRows, moment: Moment) -> Array:
        # A deadline that has passed and fired nothing waits for something else, which will ask again.
        column = rows.columns[self.column]
        return np.where(column > moment.processing_time, column, NEVER)


@dataclass(frozen=True, slots=True)
class _Repeatedly:
    inner: TriggerNode

    def fields(self) -> Iterator[tuple[str, TriggerField]]:
        return self.inner.fields()

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, moment: Moment) -> None:
        self.inner.on_elements(rows, mask, count, moment)

    def should_fire(self, rows: TriggerRows, moment: Moment) -> Array:
        return self.inner.should_fire(rows, moment)

    def on_fire(self, rows: TriggerRows, mask: Array, moment: Moment) -> Array:
        self.inner.reset(rows, self.inner.on_fire(rows, mask, moment))
        return rows.none()

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        self.inner.reset(rows, mask)

    def on_merge(self, rows: TriggerRows, moment: Moment) -> None:
        self.inner.on_merge(rows, moment)

    def wake(self, rows: TriggerRows, moment: Moment) -> Array:
        return self.inner.wake(rows, moment)


@dataclass(frozen=True, slots=True)
class _Parallel:
    """AfterAny, AfterAll and OrFinally: several at the same time."""

    nodes: tuple[TriggerNode, ...]
    needs_all: bool

    def fields(self) -> Iterator[tuple[str, TriggerField]]:
        for node in self.nodes:
            yield from node.fields()

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, moment: Moment) -> None:
        for node in self.nodes:
            node.on_elements(rows, mask, count, moment)

    def should_fire(self, rows: TriggerRows, moment: Moment) -> Array:
        wishes = np.stack([node.should_fire(rows, moment) for node in self.nodes])
        if self.needs_all:  # the last of them is named
            return np.where((wishes > 0).all(axis=0), wishes[-1], 0)
        return np.asarray(np.take_along_axis(wishes, (wishes > 0).argmax(axis=0)[None], axis=0)[0])

    def on_fire(self, rows: TriggerRows, mask: Array, moment: Moment) -> Array:
        finished = []
        for node in self.nodes:
            fires = mask & (node.should_fire(rows, moment) > 0)
            finished.append(node.on_fire(rows, fires, moment))
        return np.asarray(np.all(finished, axis=0) if self.needs_all else np.any(finished, axis=0))

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        for node in self.nodes:
            node.reset(rows, mask)

    def on_merge(self, rows: TriggerRows, moment: Moment) -> None:
        for node in self.nodes:
            node.on_merge(rows, moment)

    def wake(self, rows: TriggerRows, moment: Moment) -> Array:
        return np.asarray(np.min([node.wake(rows, moment) for node in self.nodes], axis=0))


@dataclass(frozen=True, slots=True)
class _Each:
    """AfterEach: one after the other, `column` saying whose turn it is."""

    column: str
    nodes: tuple[TriggerNode, ...]

    def fields(self) -> Iterator[tuple[str, TriggerField]]:
        yield self.column, TriggerField(np.int64, 0, "max")
        for node in self.nodes:
            yield from node.fields()

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, moment: Moment) -> None:
        for number, node in enumerate(self.nodes):
            node.on_elements(rows, mask & (rows.columns[self.column] == number), count, moment)

    def should_fire(self, rows: TriggerRows, moment: Moment) -> Array:
        fires = np.zeros(len(rows.end), dtype=np.int64)
        for number, node in enumerate(self.nodes):
            fires = np.where(rows.columns[self.column] == number, node.should_fire(rows, moment), fires)
        return fires

    def on_fire(self, rows: TriggerRows, mask: Array, moment: Moment) -> Array:
        turn = rows.columns[self.column].copy()
        for number, node in enumerate(self.nodes):
            rows.columns[self.column][node.on_fire(rows, mask & (turn == number), moment)] += 1
        return np.asarray(mask & (rows.columns[self.column] == len(self.nodes)))

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        rows.columns[self.column][mask] = 0
        for node in self.nodes:
            node.reset(rows, mask)

    def on_merge(self, rows: TriggerRows, moment: Moment) -> None:
        for node in self.nodes:
            node.on_merge(rows, moment)

    def wake(self, rows: TriggerRows, moment: Moment) -> Array:
        wake = np.full(len(rows.end), NEVER)
        for number, node in enumerate(self.nodes):
            wake = np.where(rows.columns[self.column] == number, node.wake(rows, moment), wake)
        return wake


@dataclass(frozen=True, slots=True)
class CompiledTrigger:
    """A compiled trigger: the root of its nodes, their columns, and the names by which panes call it."""

    root: TriggerNode
    fields: Mapping[str, TriggerField]
    names: Sequence[str]
    has_on_time_pane: bool
    has_deadlines: bool


class _Compiler:
    def __init__(self) -> None:
        self.names = [""]  # number 0 fires nothing
        self._columns = 0

    def node(self, trigger: t.Trigger) -> TriggerNode:
        match trigger:
            case t.Default():
                return _Watermark(self._label(trigger), self._column(), None, None, finishes=False)
            case t.AfterWatermark(early, late):
                return _Watermark(
                    self._label(trigger),
                    self._column(),
                    None if early is None else _Repeatedly(self.node(early)),
                    None if late is None else _Repeatedly(self.node(late)),
                    finishes=late is None,
                )
            case t.AfterCount(count):
                return _Count(self._label(trigger), self._column(), count)
            case t.EveryBatch() | t.PerRecord():
                return _Repeatedly(_Count(self._label(trigger), self._column(), 1))
            case t.AfterProcessingTime(delay, aligned_to):
                waits = (micros(delay) if delay else 0, micros(aligned_to) if aligned_to else 0)
                return _ProcessingTime(self._label(trigger), self._column(), *waits)
            case t.Repeatedly(inner):
                return _Repeatedly(self.node(inner))
            case t.OrFinally(inner, until):
                return _Parallel((self.node(inner), self.node(until)), needs_all=False)
            case t.AfterAny(several):
                return _Parallel(tuple(map(self.node, several)), needs_all=False)
            case t.AfterAll(several):
                return _Parallel(tuple(map(self.node, several)), needs_all=True)
            case t.AfterEach(several):
                return _Each(self._column(), tuple(map(self.node, several)))

    def _label(self, trigger: t.Trigger) -> int:
        self.names.append(t.name_of(trigger))
        return len(self.names) - 1

    def _column(self) -> str:
        self._columns += 1
        return f"_trigger{self._columns}"


def compile_trigger(trigger: t.Trigger) -> CompiledTrigger:
    """Make a trigger's nodes and name their columns."""
    compiler = _Compiler()
    root = compiler.node(trigger)
    names = [*compiler.names, CLOSING]
    return CompiledTrigger(
        root=root,
        fields=dict(root.fields()),
        names=names,
        has_on_time_pane=_has_on_time_pane(trigger),
        has_deadlines=any(name.startswith("AfterProcessingTime") for name in names),
    )


def _has_on_time_pane(trigger: t.Trigger) -> bool:
    match trigger:
        case t.Default() | t.AfterWatermark():
            return True
        case t.Repeatedly(inner):
            return _has_on_time_pane(inner)
        case t.OrFinally(inner, until):
            return _has_on_time_pane(inner) or _has_on_time_pane(until)
        case t.AfterAny(several) | t.AfterAll(several) | t.AfterEach(several):
            return any(map(_has_on_time_pane, several))
        case _:
            return False
