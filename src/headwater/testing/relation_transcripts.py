"""Transcripts of tables and joins: the rows of each side, and the expected changes.

    name: a_click_after_its_search
    join: {on: user, how: left, within: 60}
    transcript:
      - input: [{user: ann, query: tea, time: 0}]
        from: left
      - input: [{user: ann, page: /tea, time: 5}]
        from: right
      - expect: [{query: tea, page: /tea, change: 1}]

A document has one of `join`, `table`, `aggregate`, `top`, `deduplicate`, `rolling` with that function's arguments.
Rows are mappings of columns; `time`, `change`, `position` and `deleted` describe a row and are not columns of it.
Watermark, clock, crash and restart are as in transcripts of windows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.tables.aggregate import AggregateKernel
from headwater.process.tables.as_of_join import GONE, AsOfKernel, NowKernel
from headwater.process.tables.changelog import AT, DELETED, POSITION, ChangelogKernel
from headwater.process.tables.interval_join import Bounds, IntervalKernel
from headwater.process.tables.ranking import RankingKernel, RankLateness, RankOrder
from headwater.process.tables.sides import LEFT, RIGHT, Sides, read_how
from headwater.process.tables.table_join import JoinKernel
from headwater.testing.notation import read_aggregate
from headwater.testing.transcripts import SECOND, Runner, run_actions, to_micros

KINDS = ("join", "table", "aggregate", "top", "deduplicate", "rolling")

_ACTIONS = {"input", "watermark", "clock", "expect", "expect_late", "crash", "restart"}
_TIME = "_event_time"
_ROW_METADATA = {"time": _TIME, "change": CHANGE, "position": f"{POSITION}0", "deleted": DELETED}

MakeRunner = Callable[[Sequence[Any], pl.Schema], Runner]


@dataclass(frozen=True, slots=True)
class RelationTranscript:
    """A parsed document: the kernel, and the actions."""

    name: str
    kernel: Any
    actions: tuple[tuple[str, Any], ...]

    def check(self, make_runner: MakeRunner) -> None:
        """Run the transcript, and raise `Mismatch` if it does not hold."""
        runner = make_runner([self.kernel], self.kernel.schema)
        run_actions(self.name, self.actions, runner, output=_change, late=_late_row)


def is_relational(document: Mapping[str, Any]) -> bool:
    """Return True if a document is about a table or a join."""
    return any(kind in document for kind in KINDS)


def read_relational(document: Mapping[str, Any]) -> RelationTranscript:
    """Parse a document, and raise `InvalidError` if it is not a valid transcript."""
    name = str(document.get("name", "unnamed"))
    kinds = [kind for kind in KINDS if kind in document]
    unknown = set(document) - {"name", "transcript", *kinds}
    if len(kinds) != 1 or unknown:
        keys = ", ".join(sorted({*kinds, *unknown}))
        raise InvalidError(
            f"transcript {name!r} has the keys {keys}; give one of {', '.join(KINDS)}, and `transcript`"
        )
    if not isinstance(document.get("transcript"), list):
        raise InvalidError(f"transcript {name!r} has no list of actions under `transcript`")
    actions = [_action(name, action) for action in document["transcript"]]
    frames = {
        side: _schema([a for a in actions if a[0] == "input" and a[2] == side]) for side in ("left", "right")
    }
    kind = kinds[0]
    # YAML 1.1 reads a bare `on` as true.
    arguments = {("on" if name is True else name): value for name, value in document[kind].items()}
    try:
        kernel = _join(arguments, frames) if kind == "join" else _one_input(kind, arguments, frames["left"])
    except (KeyError, TypeError) as error:
        raise InvalidError(
            f"transcript {name!r}: cannot make a {kind} with the arguments {arguments!r}: {error}"
        ) from error
    sides = kernel.sides if kind == "join" else None
    return RelationTranscript(
        name, kernel, tuple((a, _frame(arg, side, frames[side], kernel, sides)) if a == "input" else (a, arg)
                            for a, arg, side in actions)
    )  # fmt: skip


def _action(name: str, action: Mapping[str, Any]) -> tuple[str, Any, str]:
    kinds = set(action) - {"from"}
    side = action.get("from", "left")
    if len(kinds) != 1 or not kinds <= _ACTIONS or side not in ("left", "right"):
        listed = ", ".join(sorted(_ACTIONS))
        raise InvalidError(
            f"transcript {name!r} has an unknown action {dict(action)!r}; "
            f"the actions are {listed}, from left or right"
        )
    (kind,) = kinds
    argument = to_micros(action[kind]) if kind in ("watermark", "clock") else action[kind]
    return kind, argument, side


def _schema(inputs: Sequence[tuple[str, Any, str]]) -> pl.Schema:
    rows = [_row(row) for _, argument, _ in inputs for row in argument]
    schema = dict(pl.DataFrame(rows, infer_schema_length=None).schema) if rows else {}
    kinds = {_TIME: pl.Int64(), CHANGE: pl.Int8(), f"{POSITION}0": pl.Int64(), DELETED: pl.Boolean()}
    return pl.Schema({column: kinds.get(column, kind) for column, kind in schema.items()})


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    named = {_ROW_METADATA.get(column, column): value for column, value in row.items()}
    if named.get(_TIME) is not None:
        named[_TIME] = round(named[_TIME] * SECOND)
    return named


def _join(arguments: dict[str, Any], schemas: Mapping[str, pl.Schema]) -> Any:
    how, on = read_how(arguments.pop("how", "inner")), arguments.pop("on")
    metadata = (_TIME, DELETED)
    left, right = (
        pl.Schema({c: k for c, k in schemas[s].items() if c not in metadata}) for s in ("left", "right")
    )
    lateness = round(arguments.pop("lateness", 0) * SECOND)
    within, as_of = arguments.pop("within", None), arguments.pop("as_of", None)
    if arguments:
        raise TypeError(f"unknown {', '.join(arguments)}")
    if within is not None:
        least, most = within if isinstance(within, list) else (0, within)
        bounds = Bounds(round(least * SECOND), round(most * SECOND))
        return IntervalKernel.of(on, how, left, right, bounds=bounds, lateness=lateness)
    if as_of == "event_time":
        return AsOfKernel.of(on, how, left, right, lateness=lateness)
    return (JoinKernel if as_of is None else NowKernel).of(on, how, left, right)


def _one_input(kind: str, arguments: dict[str, Any], schema: pl.Schema) -> Any:
    by, order = (_names(arguments.get(name, ())) for name in ("by", "order"))
    order = [f"{_TIME}{name.removeprefix('time')}" if name.split()[0] == "time" else name for name in order]
    late = None if "lateness" not in arguments else round(arguments["lateness"] * SECOND)
    what = {name: read_aggregate(text) for name, text in arguments.get("what", {}).items()}
    match kind:
        case "table":
            if late is not None:
                schema = pl.Schema({(AT if name == _TIME else name): kind for name, kind in schema.items()})
            return ChangelogKernel.of(_names(arguments["key"]), schema, late)
        case "aggregate":
            return AggregateKernel.of(what, by, schema)
        case "top":
            return RankingKernel.top(arguments["n"], by, RankOrder.read(order), schema, arguments.get("rank"))
        case "rolling":
            lateness = None if late is None else RankLateness(_TIME, late)
            return RankingKernel.rolling(arguments["last"], what, by, RankOrder.read(order), schema, lateness)
        case _:
            chosen = RankOrder.read(order)
            chosen = chosen.reversed if arguments.get("keep") == "last" else chosen
            return RankingKernel.top(1, _names(arguments["key"]), chosen, schema)


def _frame(rows: Any, side: str, schema: pl.Schema, kernel: Any, sides: Sides | None) -> pl.DataFrame:
    frame = pl.DataFrame([{CHANGE: 1, **_row(row)} for row in rows], schema={**schema, CHANGE: pl.Int8})
    if sides is None:
        return frame.rename({_TIME: AT} if AT in kernel.schema else {}).select(kernel.schema.names())
    time = _TIME if _TIME in frame.columns else None
    sided = sides.rows(LEFT if side == "left" else RIGHT, frame, time)
    if GONE not in kernel.schema:
        return sided
    gone = frame[DELETED] if DELETED in frame.columns else pl.Series([None] * frame.height, dtype=pl.Boolean)
    return sided.with_columns(gone.alias(GONE))


def _names(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _change(row: Mapping[str, Any]) -> dict[str, Any]:
    return {("change" if name == CHANGE else name): value for name, value in row.items() if name != _TIME}


def _late_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"reason": row["reason"], **row["row"]}
