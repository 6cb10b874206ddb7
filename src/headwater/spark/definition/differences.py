"""Compares two definitions of a query, and says in words how they differ and what follows from it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from headwater.app import Query
from headwater.errors import ConflictError
from headwater.spark.definition.code_prints import comparable
from headwater.spark.definition.definition import RESULT, Definition, labels
from headwater.spark.definition.plan_steps import COLUMNS, FUNCTIONS, OTHERS, STEPS, WHERE
from headwater.spark.definition.state_types import columns_of_state

LISTED_MAX = 10
SHOWN_MAX = 120
"""Longer values are shortened around the difference."""
_CONTEXT = 20

_OLD_OBJECT = re.compile(r"<(?:.*\.)?(\w+) object>")
_AGGREGATE = re.compile(r"\bAggregate\((\w+)(?:, )?")


class Effect(StrEnum):
    """The effect of a difference on a query that continues from its checkpoint."""

    REFUSED = "refused"
    NEW_RECORDS = "applies to new records only"
    NONE = "has no effect until it is rebuilt"


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of a definition that has changed, in words."""

    text: str
    effect: Effect = Effect.REFUSED

    @property
    def is_compatible(self) -> bool:
        """True if the query can continue from its checkpoint."""
        return self.effect is not Effect.REFUSED

    def __str__(self) -> str:
        return self.text


def compare(was: Definition, now: Definition) -> list[Difference]:
    """Return the differences of two definitions; parts that the older one does not have are not compared."""
    if was.kind and was.kind != now.kind:
        return [Difference(f"it was a {was.kind}, and is a {now.kind} now")]
    found = [
        *_topics(was, now),
        *_changed("key", was.key, now.key),
        *_columns("the result", was.columns, now.columns),
        *_operators(was, now),
        *_aggregates(was, now),
    ]
    if not any(not difference.is_compatible for difference in found):
        # Differences in the user's code are clearer than those in Spark's plan.
        found += _native(was, now)
    if was.version > 1:
        found += _all_steps(was, now)
        found += _destination(was, now)
    found += _changed("partitions of Spark", was.partitions, now.partitions, Effect.NONE)
    return list(dict.fromkeys(found))


def check_definition(query: Query, was: Definition | None, now: Definition) -> list[Difference]:
    """Compare a query with the definition in its checkpoint, and return the compatible differences.

    Raises ConflictError if the query cannot continue from the checkpoint.
    """
    found = [] if was is None else compare(was, now)
    fatal = [str(difference) for difference in found if not difference.is_compatible]
    if not fatal:
        return found
    if len(fatal) > LISTED_MAX:
        fatal = [*fatal[:LISTED_MAX], f"and {len(fatal) - LISTED_MAX} more"]
    changes = f" {fatal[0]}" if len(fatal) == 1 else "".join(f"\n  - {text}" for text in fatal)
    raise ConflictError(
        f"cannot continue {query.kind} {query.name!r}: its definition has changed since its checkpoint was "
        f"made:{changes}",
        hint=continue_hint(query, is_view=query.kind == "view" and was is not None and was.kind != "sink"),
    )


def continue_hint(query: Query, *, is_view: bool) -> str:
    """Return a hint for a query that cannot continue from its checkpoint; a view can be recomputed alongside."""
    ways = [
        f"headwater rebuild {query.name} --from start: delete the results, and start with the first record",
        f"headwater rebuild {query.name} --from now: keep the results, and continue from here with empty state",
        "give it another name: then both versions run side by side",
    ]
    if is_view:
        ways.insert(
            0, f"headwater rebuild {query.name}: recompute it from the log, and swap it in when it has caught up"
        )
    return "do one of these, then run the app again:\n" + "\n".join(f"  - {way}" for way in ways)


# -- topics and columns ---------------------------------------------------------------------------------------


def _topics(was: Definition, now: Definition) -> Iterator[Difference]:
    names = [[topic["name"] for topic in definition.topics] for definition in (was, now)]
    if names[0] != names[1]:
        yield from _changed("topics", names[0], names[1])
        return
    new = Effect.NEW_RECORDS
    for one, other in zip(was.topics, now.topics, strict=True):
        name = f"topic {other['name']}"
        effect = Effect.REFUSED if now.has_state or was.has_state else new
        yield from _changed(f"{name}, event time", one["event time"], other["event time"], effect)
        yield from _columns(name, one["schema"], other["schema"], new)
        for part in ("delay", "idle"):
            yield from _changed(f"{name}, {part}", one[part], other[part], new)
        if "watermark" in one:
            yield from _code(f"{name}, its watermark function", one["watermark"], other["watermark"], new)


def _columns(
    what: str, was: Mapping[str, str], now: Mapping[str, str], effect: Effect = Effect.REFUSED
) -> Iterator[Difference]:
    for name in dict.fromkeys([*was, *now]):
        if name not in was:
            yield Difference(f"{what} has a new column {name!r} ({_short(now[name])})", effect)
        elif name not in now:
            yield Difference(f"{what} no longer has the column {name!r} ({_short(was[name])})", effect)
        else:
            yield from _changed(f"{what}, column {name!r}", was[name], now[name], effect)


# -- operators ------------------------------------------------------------------------------------------------


def _operators(was: Definition, now: Definition) -> Iterator[Difference]:
    names = [[operator["name"] for operator in definition.operators] for definition in (was, now)]
    if names[0] != names[1]:
        yield from _changed("operators", names[0], names[1])
        return
    for label, one, other in zip(labels(now.operators), was.operators, now.operators, strict=True):
        parts = list(dict.fromkeys([*one, *other]))
        if was.version == 1:
            parts = [part for part in parts if part in one]
        found = [
            each
            for part in parts
            if part != "state"
            for each in _part(label, part, one.get(part), other.get(part))
        ]
        yield from found
        if not any(not difference.is_compatible for difference in found):
            yield from _state(label, one.get("state"), other.get("state"))


def _part(label: str, part: str, was: Any, now: Any) -> Iterator[Difference]:
    what = f"operator {label}, {part}"
    if part != "what" or not isinstance(was, dict) or not isinstance(now, dict):
        effect = Effect.NEW_RECORDS if part == "lateness" else Effect.REFUSED
        yield from _changed(what, was, now, effect)
        return
    for name in dict.fromkeys([*was, *now]):
        if name not in was:
            yield Difference(f"{what}: {name!r} is new ({_short(_shown(now[name]))})")
        elif name not in now:
            yield Difference(f"{what}: {name!r} is gone ({_short(_shown(was[name]))})")
        else:
            yield from _changed(f"{what} {name}", _OLD_OBJECT.sub(r"\1()", str(was[name])), now[name])
    if list(was) != list(now) and set(was) == set(now):
        yield Difference(f"{what}: the order has changed: {_shown(list(was))} -> {_shown(list(now))}")


def _state(label: str, was: Mapping[str, str] | None, now: Mapping[str, str] | None) -> Iterator[Difference]:
    if was is None or now is None:
        if was != now:
            how = ("Spark's own operator", "a kernel of Headwater")
            before, after = how if was is None else how[::-1]
            yield Difference(f"operator {label}: it was computed by {before}, and is computed by {after} now")
        return
    for table in dict.fromkeys([*was, *now]):
        before, after = was.get(table, "{}"), now.get(table, "{}")
        if before == after:
            continue
        one, other = columns_of_state(before), columns_of_state(after)
        if one == other:
            yield Difference(f"operator {label}: the order of the columns in its state has changed")
        yield from _columns(f"operator {label}: its state", one, other)


def _aggregates(was: Definition, now: Definition) -> Iterator[Difference]:
    """Compare the code of the user's own aggregates: what they keep, and what they compute from it."""
    for name in was.aggregates.keys() & now.aggregates.keys():
        one, other = was.aggregates[name], now.aggregates[name]
        yield from _code(
            f"operator {name}, what the aggregate keeps (`partial`, `merge`)", one["state"], other["state"]
        )
        effect = Effect.NEW_RECORDS
        yield from _code(f"operator {name}, the result of the aggregate", one["result"], other["result"], effect)


# -- Spark's own operators ------------------------------------------------------------------------------------


def _native(was: Definition, now: Definition) -> list[Difference]:
    if was.version == 1:
        return []
    names = [[node["name"] for node in definition.native] for definition in (was, now)]
    if names[0] != names[1]:
        return list(_changed("stateful operators of Spark", names[0], names[1]))
    found: list[Difference] = []
    for one, other in zip(was.native, now.native, strict=True):
        for part in dict.fromkeys([*one, *other]):
            if part == STEPS:
                continue
            found += _changed(f"{other['name']}, {part}", one.get(part), other.get(part))
    return found


# -- steps ----------------------------------------------------------------------------------------------------


def _all_steps(was: Definition, now: Definition) -> list[Difference]:
    """Compare the filters and computed columns before each operator and after the last one."""
    found: dict[str, Difference] = {}
    for label in was.steps.keys() & now.steps.keys():
        where = "after the operators" if label == RESULT else f"before operator {label}"
        if label == RESULT and not now.has_state:
            where = "the function"
        for text in _steps(was.steps[label], now.steps[label]):
            found[f"{label} {text}"] = Difference(f"{where}: {text}", Effect.NEW_RECORDS)
    known = {difference.text.partition(": ")[2] for difference in found.values()}
    for one, other in zip_longest(was.native, now.native):
        if one is None or other is None or one["name"] != other["name"]:
            continue
        for text in _steps(one.get(STEPS, {}), other.get(STEPS, {})):
            if text not in known:
                found[f"{other['name']} {text}"] = Difference(
                    f"before {other['name']}: {text}", Effect.NEW_RECORDS
                )
    return [found[key] for key in sorted(found)]


def _steps(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    one, other = was.get(COLUMNS, {}), now.get(COLUMNS, {})
    for name in dict.fromkeys([*one, *other]):
        for difference in _changed(name, one.get(name, name), other.get(name, name)):
            yield difference.text
    for part, word in ((WHERE, "filter"), (OTHERS, "step")):
        gone = [text for text in was.get(part, ()) if text not in now.get(part, ())]
        new = [text for text in now.get(part, ()) if text not in was.get(part, ())]
        if len(gone) == len(new) == 1:
            yield from (difference.text for difference in _changed(word, gone[0], new[0]))
            continue
        yield from (f"{word} removed: {_short(text)}" for text in gone)
        yield from (f"{word} added: {_short(text)}" for text in new)
    functions = was.get(FUNCTIONS, {}), now.get(FUNCTIONS, {})
    for name in functions[0].keys() & functions[1].keys():
        for difference in _code(f"function {name}", functions[0][name], functions[1][name]):
            yield difference.text


def _destination(was: Definition, now: Definition) -> Iterator[Difference]:
    for difference in _changed("destination", was.destination, now.destination, Effect.NEW_RECORDS):
        text = f"{difference}; rows that are already written are not copied there"
        yield Difference(text, difference.effect)


# -- words ----------------------------------------------------------------------------------------------------


def _changed(what: str, was: Any, now: Any, effect: Effect = Effect.REFUSED) -> Iterator[Difference]:
    if was != now:
        yield Difference(f"{what}: {' -> '.join(_shortened(_shown(was), _shown(now)))}", effect)


def _code(what: str, was: str | None, now: str | None, effect: Effect = Effect.REFUSED) -> Iterator[Difference]:
    """Compare two prints of code; prints of different versions cannot be compared."""
    if was is None or now is None:
        if was != now:
            yield Difference(f"{what} {'is new' if was is None else 'is gone'}", effect)
    elif comparable(was, now) and was != now:
        yield Difference(f"{what}: its code has changed", effect)


def _shown(value: Any) -> str:
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(part)}" for name, part in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_shown, value))
    return _AGGREGATE.sub(r"\1(", str(value))


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."


def _shortened(was: str, now: str) -> tuple[str, str]:
    """Leave out what two long texts have in common, except some characters around the difference."""
    if max(len(was), len(now)) <= SHOWN_MAX:
        return was, now
    start = next((n for n, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    start = max(0, start - _CONTEXT)
    shared = zip(reversed(was[start:]), reversed(now[start:]), strict=False)
    end = next((n for n, (a, b) in enumerate(shared) if a != b), 0)
    end = max(0, end - _CONTEXT)
    cut = [text[start : len(text) - end] for text in (was, now)]
    before, after = "..." if start else "", "..." if end else ""
    one, other = (f"{before}{_short(text)}{after}" for text in cut)
    return one, other
