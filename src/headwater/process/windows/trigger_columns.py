"""Triggers as columns: each node of a trigger tree owns a few columns of the table of windows.

A tree is compiled once. Then each of its steps (events arrived, should it fire, it fired, windows merged) is
computed for all windows at once, over NumPy arrays. Nothing here loops over keys or windows.

To add a trigger, add its node here and its case in `_Compiler.node`, and its class in `triggers`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from headwater.errors import InternalError
from headwater.process.durations import micros
from headwater.process.kernel import Now
from headwater.process.windows import triggers as t
from headwater.process.windows.columns import NEVER

CLOSING = "Closing"
"""Trigger name of the pane that is emitted when a window is discarded with events that no pane has contained."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TriggerRows:
    """Windows of the table: their ends, and the columns of the trigger's nodes, which nodes change in place.

    The functions of nodes take `now`, whose watermark is the processing time for windows by the clock.
    """

    end: Array
    columns: dict[str, Array]

    def ended(self, now: Now) -> Array:
        return self.end <= now.watermark

    def none(self) -> Array:
        return np.zeros(len(self.end), dtype=bool)


@dataclass(frozen=True, slots=True)
class TriggerField:
    """A column of a node: its value in a new window, and the function that combines it when windows merge."""

    dtype: Any
    default: int | bool
    merge: Literal["sum", "min", "max"]


class TriggerNode(Protocol):
    """A trigger evaluated for many windows at once; `mask` selects the windows that a call applies to."""

    def fields(self) -> Iterator[tuple[str, TriggerField]]:
        """Yield the columns of this node and of its children."""
        ...

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, now: Now) -> None:
        """Handle the arrival of events, `count` of them for each window."""
        ...

    def should_fire(self, rows: TriggerRows, now: Now) -> Array:
        """Return the number of the trigger that should fire for each window, 0 where none should."""
        ...

    def on_fire(self, rows: TriggerRows, mask: Array, now: Now) -> Array:
        """Handle a firing, and return the mask of windows in which the trigger is now finished."""
        ...

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        """Return to the initial state."""
        ...

    def on_merge(self, rows: TriggerRows, now: Now) -> None:
        """Handle a merge of windows: their columns have been combined, and their ends may have moved."""
        ...

    def wake(self, rows: TriggerRows, now: Now) -> Array:
        """Return the processing time at which each window must be examined next, or `NEVER`."""
        ...


@dataclass(frozen=True, slots=True)
class _Watermark:
    """Default and AfterWatermark: fire at the end of the window."""

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

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, now: Now) -> None:
        late = self._is_late(rows)
        if self.late is not None:
            self.late.on_elements(rows, mask & late, count, now)
        if self.early is not None:
            self.early.on_elements(rows, mask & ~late, count, now)

    def should_fire(self, rows: TriggerRows, now: Now) -> Array:
        fires = np.where(rows.ended(now), self.label, 0)
        if self.early is not None:
            fires = np.where(fires > 0, fires, self.early.should_fire(rows, now))
        if self.late is not None:
            fires = np.where(self._is_late(rows), self.late.should_fire(rows, now), fires)
        return fires

    def on_fire(self, rows: TriggerRows, mask: Array, now: Now) -> Array:
        late, ended = self._is_late(rows).copy(), rows.ended(now)
        if self.early is not None:
            self.early.on_fire(rows, mask & ~late & ~ended, now)
        if self.late is None:
            return mask & ended if self.finishes else rows.none()
        self.late.on_fire(rows, mask & late, now)
        rows.columns[self.column] |= mask & ended
        return rows.none()

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        if self.late is not None:
            rows.columns[self.column] &= ~mask
            self.late.reset(rows, mask)
        if self.early is not None:
            self.early.reset(rows, mask)

    def on_merge(self, rows: TriggerRows, now: Now) -> None:
        # A merged window whose end is still ahead gets an on-time pane again. Beam leaves it to the late trigger,
        # which may never emit the events that the window gained.
        if self.late is not None:
            rows.columns[self.column] &= rows.ended(now)
            self.late.on_merge(rows, now)
        if self.early is not None:
            self.early.on_merge(rows, now)

    def wake(self, rows: TriggerRows, now: Now) -> Array:
        wake = np.full(len(rows.end), NEVER)
        if self.early is not None:
            wake = np.where(rows.ended(now), NEVER, self.early.wake(rows, now))
        if self.late is not None:
            wake = np.where(self._is_late(rows), self.late.wake(rows, now), wake)
        return wake


@dataclass(frozen=True, slots=True)
class _Count:
    label: int
    column: str
    count: int

    def fields(self) -> Iterator[tuple[str, TriggerField]]:
        yield self.column, TriggerField(np.int64, 0, "sum")

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, now: Now) -> None:
        rows.columns[self.column] += np.where(mask, count, 0)

    def should_fire(self, rows: TriggerRows, now: Now) -> Array:
        return np.where(rows.columns[self.column] >= self.count, self.label, 0)

    def on_fire(self, rows: TriggerRows, mask: Array, now: Now) -> Array:
        return mask

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        rows.columns[self.column][mask] = 0

    def on_merge(self, rows: TriggerRows, now: Now) -> None:
        pass  # counts add up

    def wake(self, rows: TriggerRows, now: Now) -> Array:
        return np.full(len(rows.end), NEVER)


@dataclass(frozen=True, slots=True)
class _ProcessingTime:
    label: int
    column: str
    delay: int
    aligned_to: int

    def fields(self) -> Iterator[tuple[str, TriggerField]]:
        yield self.column, TriggerField(np.int64, NEVER, "min")

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, now: Now) -> None:
        deadline = now.processing_time + self.delay
        if self.aligned_to:
            deadline = -(-deadline // self.aligned_to) * self.aligned_to
        column = rows.columns[self.column]
        column[mask & (column == NEVER)] = deadline

    def should_fire(self, rows: TriggerRows, now: Now) -> Array:
        return np.where(rows.columns[self.column] <= now.processing_time, self.label, 0)

    def on_fire(self, rows: TriggerRows, mask: Array, now: Now) -> Array:
        return mask

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        rows.columns[self.column][mask] = NEVER

    def on_merge(self, rows: TriggerRows, now: Now) -> None:
        pass  # the earliest deadline holds

    def wake(self, rows: TriggerRows, now: Now) -> Array:
        # A deadline that has passed without a firing waits for another trigger, whose firing evaluates it again.
        column = rows.columns[self.column]
        return np.where(column > now.processing_time, column, NEVER)


@dataclass(frozen=True, slots=True)
class _Repeatedly:
    inner: TriggerNode

    def fields(self) -> Iterator[tuple[str, TriggerField]]:
        return self.inner.fields()

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, now: Now) -> None:
        self.inner.on_elements(rows, mask, count, now)

    def should_fire(self, rows: TriggerRows, now: Now) -> Array:
        return self.inner.should_fire(rows, now)

    def on_fire(self, rows: TriggerRows, mask: Array, now: Now) -> Array:
        self.inner.reset(rows, self.inner.on_fire(rows, mask, now))
        return rows.none()

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        self.inner.reset(rows, mask)

    def on_merge(self, rows: TriggerRows, now: Now) -> None:
        self.inner.on_merge(rows, now)

    def wake(self, rows: TriggerRows, now: Now) -> Array:
        return self.inner.wake(rows, now)


@dataclass(frozen=True, slots=True)
class _Parallel:
    """AfterAny, AfterAll and OrFinally: several triggers at the same time."""

    nodes: tuple[TriggerNode, ...]
    needs_all: bool

    def fields(self) -> Iterator[tuple[str, TriggerField]]:
        for node in self.nodes:
            yield from node.fields()

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, now: Now) -> None:
        for node in self.nodes:
            node.on_elements(rows, mask, count, now)

    def should_fire(self, rows: TriggerRows, now: Now) -> Array:
        labels = np.stack([node.should_fire(rows, now) for node in self.nodes])
        if self.needs_all:  # the pane names the last of them
            return np.where((labels > 0).all(axis=0), labels[-1], 0)
        return np.asarray(np.take_along_axis(labels, (labels > 0).argmax(axis=0)[None], axis=0)[0])

    def on_fire(self, rows: TriggerRows, mask: Array, now: Now) -> Array:
        finished = []
        for node in self.nodes:
            fires = mask & (node.should_fire(rows, now) > 0)
            finished.append(node.on_fire(rows, fires, now))
        return np.asarray(np.all(finished, axis=0) if self.needs_all else np.any(finished, axis=0))

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        for node in self.nodes:
            node.reset(rows, mask)

    def on_merge(self, rows: TriggerRows, now: Now) -> None:
        for node in self.nodes:
            node.on_merge(rows, now)

    def wake(self, rows: TriggerRows, now: Now) -> Array:
        return np.asarray(np.min([node.wake(rows, now) for node in self.nodes], axis=0))


@dataclass(frozen=True, slots=True)
class _Each:
    """AfterEach: triggers in turn; `column` holds the number of the current one."""

    column: str
    nodes: tuple[TriggerNode, ...]

    def fields(self) -> Iterator[tuple[str, TriggerField]]:
        yield self.column, TriggerField(np.int64, 0, "max")
        for node in self.nodes:
            yield from node.fields()

    def on_elements(self, rows: TriggerRows, mask: Array, count: Array, now: Now) -> None:
        for number, node in enumerate(self.nodes):
            node.on_elements(rows, mask & (rows.columns[self.column] == number), count, now)

    def should_fire(self, rows: TriggerRows, now: Now) -> Array:
        fires = np.zeros(len(rows.end), dtype=np.int64)
        for number, node in enumerate(self.nodes):
            fires = np.where(rows.columns[self.column] == number, node.should_fire(rows, now), fires)
        return fires

    def on_fire(self, rows: TriggerRows, mask: Array, now: Now) -> Array:
        turn = rows.columns[self.column].copy()
        for number, node in enumerate(self.nodes):
            rows.columns[self.column][node.on_fire(rows, mask & (turn == number), now)] += 1
        return np.asarray(mask & (rows.columns[self.column] == len(self.nodes)))

    def reset(self, rows: TriggerRows, mask: Array) -> None:
        rows.columns[self.column][mask] = 0
        for node in self.nodes:
            node.reset(rows, mask)

    def on_merge(self, rows: TriggerRows, now: Now) -> None:
        for node in self.nodes:
            node.on_merge(rows, now)

    def wake(self, rows: TriggerRows, now: Now) -> Array:
        wake = np.full(len(rows.end), NEVER)
        for number, node in enumerate(self.nodes):
            wake = np.where(rows.columns[self.column] == number, node.wake(rows, now), wake)
        return wake


@dataclass(frozen=True, slots=True)
class CompiledTrigger:
    """A compiled trigger: the root of its nodes, their columns, and the names of its parts in panes, by number."""

    root: TriggerNode
    fields: Mapping[str, TriggerField]
    names: Sequence[str]
    has_on_time_pane: bool
    has_deadlines: bool

    @property
    def closing(self) -> int:
        """The number of the closing pane."""
        return len(self.names) - 1


class _Compiler:
    def __init__(self) -> None:
        self.names = [""]  # number 0: no trigger fires
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
                durations = (micros(delay) if delay else 0, micros(aligned_to) if aligned_to else 0)
                return _ProcessingTime(self._label(trigger), self._column(), *durations)
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
            case _:
                raise InternalError(f"cannot compile {trigger!r}: add a node for it to trigger_columns")

    def _label(self, trigger: t.Trigger) -> int:
        self.names.append(trigger.label)
        return len(self.names) - 1

    def _column(self) -> str:
        self._columns += 1
        return f"_trigger{self._columns}"


def compile_trigger(trigger: t.Trigger) -> CompiledTrigger:
    """Build a trigger's nodes and name their columns."""
    compiler = _Compiler()
    root = compiler.node(trigger)
    return CompiledTrigger(
        root=root,
        fields=dict(root.fields()),
        names=[*compiler.names, CLOSING],
        has_on_time_pane=trigger.has_on_time_pane,
        has_deadlines=trigger.has_deadlines,
    )
