"""Transcripts: what happens to a computation and what it must say to that, as a document.

The form is that of Beam's `trigger_transcripts.yaml`, with more actions. A document names a computation and lists
actions; each is taken by a runner, and what comes out is held against what the document expects. See
`docs/how-to/transcripts.md` for all keys.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from headwater.change import CHANGE
from headwater.errors import HeadwaterError, InvalidError
from headwater.process.aggregates.aggregates import collect
from headwater.process.windows.windowing import EVENT_TIME_COLUMN, Windowing
from headwater.testing.notation import read_aggregate, read_mode, read_stamp, read_trigger, read_window

SECOND = 1_000_000
KEY, VALUE, VALUES = "key", "value", "values"

# Beam's keys beside ours; `windowfn` stands so in Beam's own file.
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
    """A runner said something else than the transcript expects."""


class Runner(Protocol):
    """What a transcript needs of a runner; times are microseconds."""

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
    """A document that was understood: the computation, the shape of its rows, and what happens."""

    name: str
    windowings: tuple[Windowing, ...]
    schema: pl.Schema
    inputs: tuple[str, ...]
    actions: tuple[tuple[str, Any], ...]
    error: str | None

    def check(self, make_runner: MakeRunner) -> None:
        """Run it; raises `Mismatch` where it does not hold.

        A document with `error` holds if running it fails with these words.
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
        marks: dict[str, int] = {}
        panes: list[dict[str, Any]] = []
        late: list[dict[str, Any]] = []
        for number, (action, argument) in enumerate(self.actions):
            place = f"{self.name}, action {number + 1} ({action})"
            if panes and action not in ("expect", "expect_late", "state"):
                raise Mismatch(f"{place}: unexpected output before it: {_shown(panes)}")
            match action:
                case "input":
                    runner.send(pl.DataFrame(argument, schema=self.schema))
                case "watermark":
                    marks.update(argument)
                    if len(marks) == len(self.inputs):
                        runner.advance_watermark(min(marks.values()))
                case "clock":
                    runner.advance_clock(argument)
                case "crash":
                    runner.crash()
                case "restart":
                    runner.restart()
                case "expect":
                    _match(place, "output", argument, panes)
                case "expect_late":
                    _match(place, "late rows", argument, late)
            panes += [_pane(row) for row in runner.take_output().iter_rows(named=True)]
            late += [_late_row(row) for row in runner.take_late().iter_rows(named=True)]
        if panes:
            raise Mismatch(f"{self.name}: unexpected output at the end: {_shown(panes)}")


def read_transcript(document: Mapping[str, Any]) -> Transcript:
    """Understand a document; raises `InvalidError` where it cannot be meant."""
    spec = {_ALIASES.get(key, key): value for key, value in document.items()}
    name = str(spec.get("name", "unnamed"))
    unknown = set(spec) - _KEYS
    if unknown:
        raise InvalidError(f"transcript {name!r} has a key {sorted(unknown)[0]!r}; there are {_listed(_KEYS)}")
    if not isinstance(spec.get("transcript"), list):
        raise InvalidError(f"transcript {name!r} has no list of actions under `transcript`")
    inputs = tuple(spec.get("inputs", ["input"]))
    actions = tuple(_action(name, inputs, action) for action in spec["transcript"])
    schema = _schema(actions)
    first = _windowing(spec, by=(KEY,))
    others = tuple(
        _windowing({_ALIASES.get(k, k): v for k, v in s.items()}, by=(KEY,)) for s in spec.get("then", [])
    )
    return Transcript(name, (first, *others), schema, inputs, actions, spec.get("error"))


def _windowing(spec: Mapping[str, Any], by: tuple[str, ...]) -> Windowing:
    placed = read_window(spec.get("where", "Global"))
    stamp, transformed = read_stamp(spec.get("stamp", "end"))
    lateness = spec.get("lateness", 0)
    what = {name: read_aggregate(text) for name, text in spec.get("what", {}).items()}
    return Windowing(
        what=what or {VALUES: collect(VALUE)},
        where=placed.where,
        when=read_trigger(spec.get("when", "Default")),
        how=read_mode(spec.get("how", "accumulating")),
        by=by,
        lateness=(lateness if isinstance(lateness, str) else f"{lateness} seconds") if lateness else None,
        stamp=stamp,
        stamp_shift=placed.shift if transformed else 0,
    )


def _action(name: str, inputs: tuple[str, ...], action: Mapping[str, Any]) -> tuple[str, Any]:
    kinds = set(action) - {"from"}
    if len(kinds) != 1 or not kinds <= _ACTIONS:
        raise InvalidError(f"transcript {name!r} has an action {dict(action)!r}; there are {_listed(_ACTIONS)}")
    (kind,) = kinds
    argument = action[kind]
    match kind:
        case "input":
            return kind, list(_elements(name, argument))
        case "watermark":
            marks = argument if isinstance(argument, Mapping) else dict.fromkeys(inputs, argument)
            if unknown := set(marks) - set(inputs):
                raise InvalidError(
                    f"transcript {name!r} has a watermark of {sorted(unknown)[0]!r}, no input of it"
                )
            return kind, {input_name: _micros(mark) for input_name, mark in marks.items()}
        case "clock":
            return kind, _micros(argument)
        case _:
            return kind, argument


def _elements(name: str, argument: Any) -> Iterator[dict[str, Any]]:
    """Elements are their own times; or mappings with `time` and columns; or lists of these by key."""
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
        yield {KEY: "key", EVENT_TIME_COLUMN: None if time is None else _micros(time), **columns, **change}


def _schema(actions: Sequence[tuple[str, Any]]) -> pl.Schema:
    rows = [row for action, argument in actions if action == "input" for row in argument]
    for row in rows:
        if any(CHANGE in other for other in rows):
            row.setdefault(CHANGE, 1)
    found = pl.DataFrame(rows, infer_schema_length=None).schema if rows else pl.Schema()
    columns: dict[str, pl.DataType] = {KEY: pl.String(), EVENT_TIME_COLUMN: pl.Int64(), VALUE: pl.Int64()}
    return pl.Schema(columns | {name: dtype for name, dtype in found.items() if dtype != pl.Null})


def _pane(row: Mapping[str, Any]) -> dict[str, Any]:
    pane = {name: value for name, value in row.items() if name not in ("window_start", "window_end")}
    pane |= {
        "window": [row["window_start"] // SECOND, (row["window_end"] - 1) // SECOND],
        "timestamp": row["event_time"] // SECOND,
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


def _match(place: str, what: str, expected: Sequence[Mapping[str, Any]], found: list[dict[str, Any]]) -> None:
    """Take away from what was found what is expected; each may say only part of what it means."""
    for wanted in expected:
        meant = {k: sorted(v) if k == VALUES and isinstance(v, list) else v for k, v in wanted.items()}
        if found and (unknown := set(meant) - set(found[0])):
            raise InvalidError(
                f"{place}: {sorted(unknown)[0]!r} is nothing that {what} have; there are {_listed(found[0])}"
            )
        for candidate in found:
            if all(candidate[k] == v for k, v in meant.items()):
                found.remove(candidate)
                break
        else:
            raise Mismatch(f"{place}: unmatched {what}: {dict(wanted)!r} is not among {_shown(found)}")
    if found and what != "output":
        raise Mismatch(f"{place}: unexpected {what}: {_shown(found)}")


def _shown(found: Sequence[Mapping[str, Any]]) -> str:
    hidden = {"timing", "event_time", "is_final", "pane", "nonspeculative_pane", CHANGE}
    return str([{k: v for k, v in row.items() if k not in hidden} for row in found])


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))


def _micros(seconds: Any) -> int:
    if not isinstance(seconds, int | float):
        raise InvalidError(f"a time in a transcript is a number of seconds, not {seconds!r}")
    return round(seconds * SECOND)
