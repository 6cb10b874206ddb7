"""Transcripts: a computation, its input and the expected output, as a document.

The form is that of Beam's `trigger_transcripts.yaml`, with more actions. A document names a computation and lists
actions. A runner performs each action, and the output is compared with what the document expects. See
`docs/how-to/transcripts.md` for all keys.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from headwater.change import CHANGE
from headwater.errors import HeadwaterError, InvalidError
from headwater.process.aggregates.aggregates import collect
from headwater.process.windows.windowing import EVENT_TIME_COLUMN, Stamp, Windowing
from headwater.testing.notation import read_aggregate, read_mode, read_stamp, read_trigger, read_window

SECOND = 1_000_000
KEY, VALUE, VALUES = "key", "value", "values"

# Beam's keys for ours; `windowfn` is spelled so in Beam's own file.
_ALIASES = {
    "window_fn": "where",
    "windowfn": "where",
    "trigger_fn": "when",
    "accumulation_mode": "how",
    "timestamp_combiner": "stamp",
    "allowed_lateness": "lateness",
}
_KEYS = {"name", "where", "when", "how", "stamp", "lateness", "what", "then", "inputs", "transcript"}
_KEYS |= {"error", "broken_on"}
_ACTIONS = {"input", "watermark", "clock", "expect", "expect_late", "crash", "restart", "state"}


class Mismatch(HeadwaterError):
    """The output of a runner differs from what the transcript expects."""


class Runner(Protocol):
    """The interface of runners that transcripts use; times are microseconds."""

    def send(self, rows: pl.DataFrame) -> None: ...

    def advance_watermark(self, to: int) -> None: ...

    def advance_clock(self, to: int) -> None: ...

    def crash(self) -> None: ...

    def restart(self) -> None: ...

    def take_output(self) -> pl.DataFrame: ...

    def take_late(self) -> pl.DataFrame: ...


MakeRunner = Callable[[Sequence[Windowing], pl.Schema], Runner]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A parsed document: the computation, the schema of its rows, and the actions.

    `stamp_shift` is added to the event time of panes. Beam's own test window moves times; our kernel does not.
    """

    name: str
    windowings: tuple[Windowing, ...]
    schema: pl.Schema
    inputs: tuple[str, ...]
    actions: tuple[tuple[str, Any], ...]
    error: str | None
    stamp_shift: int = 0

    def check(self, make_runner: MakeRunner) -> None:
        """Run the transcript, and raise `Mismatch` if it does not hold.

        A document with `error` holds if running it fails with a message that contains this text.
        """
        if self.error is None:
            self._run(make_runner)
            return
        try:
            self._run(make_runner)
        except HeadwaterError as error:
            if self.error.lower() in str(error).lower():
                return
            raise Mismatch(f"{self.name}: fails with {str(error)!r}, not with {self.error!r}") from error
        raise Mismatch(f"{self.name}: holds, but should fail with {self.error!r}")

    def _run(self, make_runner: MakeRunner) -> None:
        runner = make_runner(self.windowings, self.schema)
        run_actions(
            self.name, self._steps(), runner, output=lambda row: _pane(row, self.stamp_shift), late=_late_row
        )

    def _steps(self) -> Iterator[tuple[str, Any]]:
        """Yield the actions as `run_actions` takes them: rows as a frame, and the watermark of all inputs."""
        watermarks: dict[str, int] = {}
        for action, argument in self.actions:
            if action == "input":
                yield action, pl.DataFrame(argument, schema=self.schema)
            elif action == "watermark":
                watermarks.update(argument)
                yield action, min(watermarks.values()) if len(watermarks) == len(self.inputs) else None
            else:
                yield action, argument


def run_actions(
    name: str,
    actions: Iterable[tuple[str, Any]],
    runner: Runner,
    *,
    output: Callable[[Mapping[str, Any]], dict[str, Any]],
    late: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> None:
    """Perform actions on a runner, and raise `Mismatch` if its rows are not the expected ones.

    `output` and `late` convert rows of the runner to the form in which a transcript expects them. A watermark of
    None is not yet known for all inputs.
    """
    found: list[dict[str, Any]] = []
    found_late: list[dict[str, Any]] = []
    for number, (action, argument) in enumerate(actions):
        context = f"{name}, action {number + 1} ({action})"
        if found and action not in ("expect", "expect_late", "state"):
            raise Mismatch(f"{context}: unexpected output before it: {_format(found)}")
        match action:
            case "input":
                runner.send(argument)
            case "watermark":
                if argument is not None:
                    runner.advance_watermark(argument)
            case "clock":
                runner.advance_clock(argument)
            case "crash":
                runner.crash()
            case "restart":
                runner.restart()
            case "expect":
                _match(context, "output", argument, found)
            case "expect_late":
                _match(context, "late rows", argument, found_late)
        found += [output(row) for row in runner.take_output().iter_rows(named=True)]
        found_late += [late(row) for row in runner.take_late().iter_rows(named=True)]
    if found:
        raise Mismatch(f"{name}: unexpected output at the end: {_format(found)}")


def read_transcript(document: Mapping[str, Any]) -> Transcript:
    """Parse a document, and raise `InvalidError` if it is not a valid transcript."""
    spec = {_ALIASES.get(key, key): value for key, value in document.items()}
    name = str(spec.get("name", "unnamed"))
    unknown = set(spec) - _KEYS
    if unknown:
        raise InvalidError(
            f"transcript {name!r} has an unknown key {sorted(unknown)[0]!r}; the keys are {_join(_KEYS)}"
        )
    if not isinstance(spec.get("transcript"), list):
        raise InvalidError(f"transcript {name!r} has no list of actions under `transcript`")
    inputs = tuple(spec.get("inputs", ["input"]))
    actions = tuple(_action(name, inputs, action) for action in spec["transcript"])
    schema = _schema(actions)
    if set(document) & {"window_fn", "windowfn"}:
        spec.setdefault("how", "accumulating")  # Beam's default
    specs = [spec, *({_ALIASES.get(k, k): v for k, v in other.items()} for other in spec.get("then", []))]
    windowings, shifts = zip(*(_windowing(one, by=(KEY,)) for one in specs), strict=True)
    return Transcript(name, windowings, schema, inputs, actions, spec.get("error"), shifts[-1])


def _windowing(spec: Mapping[str, Any], by: tuple[str, ...]) -> tuple[Windowing, int]:
    """Parse a computation; also return by how much the event times of its panes are shifted."""
    window = read_window(spec.get("where", "Global"))
    stamp, is_transformed = read_stamp(spec.get("stamp", "end"))
    lateness = spec.get("lateness", 0)
    what = {name: read_aggregate(text) for name, text in spec.get("what", {}).items()}
    windowing = Windowing(
        what=what or {VALUES: collect(VALUE)},
        where=window.where,
        when=read_trigger(spec.get("when", "Default")),
        how=read_mode(spec["how"]) if "how" in spec else None,
        by=by,
        lateness=(lateness if isinstance(lateness, str) else f"{lateness} seconds") if lateness else None,
        stamp=stamp,
    )
    return windowing, window.shift if is_transformed and stamp is not Stamp.END else 0


def _action(name: str, inputs: tuple[str, ...], action: Mapping[str, Any]) -> tuple[str, Any]:
    kinds = set(action) - {"from"}
    if len(kinds) != 1 or not kinds <= _ACTIONS:
        raise InvalidError(
            f"transcript {name!r} has an unknown action {dict(action)!r}; the actions are {_join(_ACTIONS)}"
        )
    (kind,) = kinds
    argument = action[kind]
    match kind:
        case "input":
            return kind, list(_elements(name, argument))
        case "watermark":
            marks = argument if isinstance(argument, Mapping) else dict.fromkeys(inputs, argument)
            if unknown := set(marks) - set(inputs):
                raise InvalidError(
                    f"transcript {name!r} has a watermark of {sorted(unknown)[0]!r}, which is not an input; "
                    f"the inputs are {_join(inputs)}"
                )
            return kind, {input_name: to_micros(mark) for input_name, mark in marks.items()}
        case "clock":
            return kind, to_micros(argument)
        case _:
            return kind, argument


def _elements(name: str, argument: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of an `input` action.

    An element is a number, which is its time and its value, or a mapping with `time` and columns. A mapping of
    keys to lists gives the elements of several keys.
    """
    if isinstance(argument, Mapping):
        for key, elements in argument.items():
            for element in _elements(name, elements):
                yield {**element, KEY: str(key)}
        return
    for element in argument:
        columns = {VALUE: element, "time": element} if not isinstance(element, Mapping) else dict(element)
        if "time" not in columns:
            raise InvalidError(f"transcript {name!r} has an element without `time`: {element!r}")
        time = columns.pop("time")
        change = {CHANGE: columns.pop("change")} if "change" in columns else {}
        columns.setdefault(VALUE, time)
        yield {KEY: "key", EVENT_TIME_COLUMN: None if time is None else to_micros(time), **columns, **change}


def _schema(actions: Sequence[tuple[str, Any]]) -> pl.Schema:
    rows = [row for action, argument in actions if action == "input" for row in argument]
    for row in rows:
        if any(CHANGE in other for other in rows):
            row.setdefault(CHANGE, 1)
    found = pl.DataFrame(rows, infer_schema_length=None).schema if rows else pl.Schema()
    columns: dict[str, pl.DataType] = {KEY: pl.String(), EVENT_TIME_COLUMN: pl.Int64(), VALUE: pl.Int64()}
    return pl.Schema(columns | {name: dtype for name, dtype in found.items() if dtype != pl.Null})


def _pane(row: Mapping[str, Any], stamp_shift: int) -> dict[str, Any]:
    pane = {name: value for name, value in row.items() if name not in ("window_start", "window_end")}
    pane |= {
        "window": [row["window_start"] // SECOND, (row["window_end"] - 1) // SECOND],
        "timestamp": (row["event_time"] + stamp_shift) // SECOND,
        "index": row["pane"],
        "nonspeculative_index": row["nonspeculative_pane"],
        "early": row["timing"] == "early",
        "late": row["timing"] == "late",
        "on_time": row["timing"] == "on_time",
        "final": row["is_final"],
        "retract": row[CHANGE] < 0,
    }
    if isinstance(pane.get(VALUES), list):
        pane[VALUES] = sorted(pane[VALUES])
    return pane


def _late_row(row: Mapping[str, Any]) -> dict[str, Any]:
    end = row["window_end"]
    return {
        **(row["row"] or {}),
        "window": None if end is None else [row["window_start"] // SECOND, (end - 1) // SECOND],
        "time": None if row["event_time"] is None else row["event_time"] // SECOND,
        "late_by": None if row["late_by"] is None else row["late_by"] // SECOND,
        "reason": row["reason"],
        "last_pane": row["last_pane"],
    }


def _match(context: str, what: str, expected: Sequence[Mapping[str, Any]], found: list[dict[str, Any]]) -> None:
    """Remove the expected rows from those found; an expected row may name only some of the columns."""
    for wanted in expected:
        values = {k: sorted(v) if k == VALUES and isinstance(v, list) else v for k, v in wanted.items()}
        if found and (unknown := set(values) - set(found[0])):
            raise InvalidError(
                f"{context}: {what} have no column {sorted(unknown)[0]!r}; the columns are {_join(found[0])}"
            )
        for candidate in found:
            if all(candidate[k] == v for k, v in values.items()):
                found.remove(candidate)
                break
        else:
            raise Mismatch(f"{context}: unmatched {what}: {dict(wanted)!r} is not among {_format(found)}")
    if found and what != "output":
        raise Mismatch(f"{context}: unexpected {what}: {_format(found)}")


def _format(found: Sequence[Mapping[str, Any]]) -> str:
    hidden = {"timing", "event_time", "is_final", "pane", "nonspeculative_pane", CHANGE}
    return str([{k: v for k, v in row.items() if k not in hidden} for row in found])


def _join(names: Any) -> str:
    return ", ".join(sorted(names))


def to_micros(seconds: Any) -> int:
    """Convert a time of a transcript to microseconds."""
    if not isinstance(seconds, int | float):
        raise InvalidError(f"a time in a transcript must be a number of seconds, not {seconds!r}")
    return round(seconds * SECOND)
