"""The simulator: runs a kernel in this process, with a clock and a watermark that tests advance.

Tests use it, and it is the reference for the other runners. A chain of computations runs one kernel after another:
the output of each is the input of the next.
"""

import io
from collections.abc import Sequence

import polars as pl

from headwater.errors import InvalidError
from headwater.process.kernel import Kernel, KernelStep, Now, State
from headwater.process.table import Table


class Simulator:
    """One run of a kernel, or of several in a chain. Output and late rows are kept until they are taken."""

    def __init__(self, *kernels: Kernel) -> None:
        if not kernels:
            raise InvalidError("a simulator needs one or more kernels, got none")
        self._kernels = kernels
        self._states: list[State] = [kernel.initial() for kernel in kernels]
        self._wake_ups: list[int | None] = [None] * len(kernels)
        self._now = Now()
        self._before = Now()
        self._crashes = False
        self._output: list[pl.DataFrame] = []
        self._late: list[pl.DataFrame] = []
        self.counters: dict[str, int] = {}

    @property
    def now(self) -> Now:
        return self._now

    @property
    def states(self) -> Sequence[State]:
        """The current state of each kernel."""
        return tuple(self._states)

    def send(self, rows: pl.DataFrame) -> None:
        """Process rows in one step."""
        self._run(rows)

    def advance_watermark(self, to: int) -> None:
        """Advance the watermark: event time is complete up to it."""
        if to < self._now.watermark:
            raise InvalidError(f"the watermark is {self._now.watermark} and cannot go back to {to}")
        self._now = Now(to, self._now.processing_time)
        self._run(None)

    def advance_clock(self, to: int) -> None:
        """Advance the clock, with a step at each time in between at which a kernel has a deadline."""
        if to < self._now.processing_time:
            raise InvalidError(f"the clock is at {self._now.processing_time} and cannot go back to {to}")
        while (wake_up := min((w for w in self._wake_ups if w is not None), default=None)) is not None:
            if not self._now.processing_time < wake_up < to:
                break
            self._now = Now(self._now.watermark, wake_up)
            self._run(None)
        self._now = Now(self._now.watermark, to)
        self._run(None)

    def crash(self) -> None:
        """Discard the result of the next step, and repeat the step from the saved state."""
        self._crashes = True

    def restart(self) -> None:
        """Continue from the saved state alone."""
        self._states = [{name: reloaded(table) for name, table in state.items()} for state in self._states]

    def take_output(self) -> pl.DataFrame:
        """Return the changes since the last call."""
        output, self._output = self._output, []
        return pl.concat(output) if output else pl.DataFrame()

    def take_late(self) -> pl.DataFrame:
        """Return the rows that no window accepted since the last call; of a chain, those of its first kernel."""
        late, self._late = self._late, []
        return pl.concat(late) if late else pl.DataFrame()

    def _run(self, rows: pl.DataFrame | None) -> None:
        if self._crashes:
            self._crashes = False
            self._steps(rows)
            self.restart()
        steps = self._steps(rows)
        self._before = self._now
        self._states = [step.state for step in steps]
        self._wake_ups = [step.wake_up for step in steps]
        if steps[-1].output.height:
            self._output.append(steps[-1].output)
        if steps[0].late is not None and steps[0].late.height:
            self._late.append(steps[0].late)
        for step in steps:
            for name, number in step.counters.items():
                self.counters[name] = self.counters.get(name, 0) + number

    def _steps(self, rows: pl.DataFrame | None) -> list[KernelStep]:
        """Run a step of each kernel. A later kernel gets its rows before the watermark that produced them."""
        steps: list[KernelStep] = []
        for number, kernel in enumerate(self._kernels):
            state, now = self._states[number], self._now
            if rows is None:
                step = kernel.step(state, _no_rows(kernel), now)
            elif number == 0:
                step = kernel.step(state, rows, now)
            else:
                step = _step_twice(kernel, state, rows, self._before, now)
            steps.append(step)
            rows = step.output
        return steps


def _step_twice(kernel: Kernel, state: State, rows: pl.DataFrame, before: Now, now: Now) -> KernelStep:
    first = kernel.step(state, rows, Now(before.watermark, now.processing_time))
    second = kernel.step(first.state, rows.clear(), now)
    counters = {name: first.counters.get(name, 0) + n for name, n in second.counters.items()}
    late = [part for part in (first.late, second.late) if part is not None]
    return KernelStep(
        second.state,
        pl.concat([first.output, second.output]),
        second.wake_up,
        pl.concat(late) if late else None,
        counters,
    )


def _no_rows(kernel: Kernel) -> pl.DataFrame:
    return pl.DataFrame(schema=kernel.schema)


def reloaded(table: Table) -> Table:
    """Return a table as it is after a restart: written to bytes and read back."""
    file = io.BytesIO()
    table.rows.write_ipc_stream(file)
    file.seek(0)
    rows = pl.read_ipc_stream(file)
    return Table.empty(rows.schema, table.key, table.by).put(rows)
