"""The definition of a query: the parts of its computation that its checkpoint depends on.

It is saved in the query's checkpoint (`definition.json`) and compared before the first batch of a run. If the
change is compatible with the state, the query continues and the change is reported. Any other change is refused,
because Spark would fail later with an obscure message or, worse, continue and mix old state with a new
computation.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from headwater.app import Query, Topic
from headwater.errors import ConflictError
from headwater.files import replacing
from headwater.spark.kernels.watermark_sources import METADATA_COLUMNS
from headwater.spark.source.decoding import parse_schema

FILE = "definition.json"

Described = Mapping[str, Any]

_STATEFUL = {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Join"}
_NODE = re.compile(r"^[\s:+-]*~?(\w+)(.*)$")
_IDENTITIES = re.compile(r"#\d+L?|-T\d+ms| at 0x[0-9a-f]+|@[0-9a-f]+")
_WINDOW = "precisetimestampconversion"

_COMPATIBLE = {"schema", "delay", "idle", "lateness", "partitions"}
"""Parts that may change without invalidating the state of a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """`operators` are Headwater's in order, `native` Spark's stateful ones, `partitions` the number Spark uses."""

    topics: Sequence[Described]
    key: Sequence[str]
    columns: Described
    operators: Sequence[Described]
    native: Sequence[str]
    partitions: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of a definition that has changed."""

    what: str
    was: Any
    now: Any

    @property
    def is_compatible(self) -> bool:
        """True if the query can continue from its checkpoint."""
        return self.what.rpartition(" ")[2] in _COMPATIBLE

    def __str__(self) -> str:
        return f"{self.what}: {_shown(self.was)} -> {_shown(self.now)}"


def define(query: Query, rows: DataFrame, operators: Sequence[Described]) -> Definition:
    """Describe a query by the DataFrame that its function returned."""
    plan = rows._jdf.queryExecution().analyzed().toString()
    definition = Definition(
        topics=[_describe_topic(topic) for topic in query.topics],
        key=query.key,
        columns={f.name: f.dataType.simpleString() for f in rows.schema.fields if f.name not in METADATA_COLUMNS},
        operators=[_plain(operator) for operator in operators],
        native=list(_native(plan)),
        partitions=int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 0),
    )
    return _from_json(json.dumps(asdict(definition)))  # Normalized: lists for tuples, strings for keys.


def compare(was: Definition, now: Definition) -> list[Difference]:
    """Return the differences of two definitions."""
    found: list[Difference] = []
    for field in fields(Definition):
        found += _differences(field.name, getattr(was, field.name), getattr(now, field.name))
    return found


def check_definition(folder: Path, query: Query, now: Definition) -> list[Difference]:
    """Compare a query with the definition in its checkpoint, and return the compatible differences.

    Raises ConflictError if the query cannot continue from the checkpoint in `folder`.
    """
    was = read_definition(folder)
    found = [] if was is None else compare(was, now)
    fatal = [difference for difference in found if not difference.is_compatible]
    if fatal:
        # Differences in the user's code are clearer than those in Spark's plan.
        shown = [difference for difference in fatal if not difference.what.startswith("native")] or fatal
        changes = "; ".join(map(str, shown))
        raise ConflictError(
            f"cannot continue {query.kind} {query.name!r}: its definition has changed since its checkpoint was "
            f"made; {changes}",
            hint=continue_hint(query),
        )
    return found


def continue_hint(query: Query) -> str:
    """Return a hint for a query that cannot continue from its checkpoint."""
    ways = [
        f"headwater rebuild {query.name} --from start: delete the results, and start with the first record",
        f"headwater rebuild {query.name} --from now: keep the results, and continue from here with empty state",
        "give it another name: then both versions run side by side",
    ]
    if query.kind == "view":
        ways.insert(
            0, f"headwater rebuild {query.name}: recompute it from the log, and swap it in when it has caught up"
        )
    return "do one of these, then run the app again:\n" + "\n".join(f"  - {way}" for way in ways)


def read_definition(folder: Path) -> Definition | None:
    """Return the definition in the checkpoint in `folder`; None if it has none."""
    try:
        return _from_json((folder / FILE).read_text())
    except FileNotFoundError:
        return None


def write_definition(folder: Path, definition: Definition) -> None:
    """Save a definition in the checkpoint; a crash leaves no partial file."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / FILE) as temporary:
        temporary.write_text(json.dumps(asdict(definition), indent=1))


def keep_partitions(was: Definition | None, now: Definition) -> Definition:
    """Keep the number of partitions that a checkpoint was made with, as Spark does."""
    return now if was is None else replace(now, partitions=was.partitions)


def _from_json(text: str) -> Definition:
    return Definition(**json.loads(text))


def _describe_topic(topic: Topic) -> Described:
    schema = (
        {} if topic.schema is None else {f.name: f.dataType.simpleString() for f in parse_schema(topic).fields}
    )
    return {
        "name": topic.name,
        "schema": schema,
        "event time": topic.event_time,
        "delay": topic.delay,
        "idle": topic.idle,
    }


def _plain(value: Any) -> Any:
    """Convert a value to JSON's types; dataclasses become text such as `Tumbling('1 minute')`."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        values = ((f, getattr(value, f.name)) for f in fields(value))
        parts = [
            _written(part) if f.default is MISSING else f"{f.name}={_written(part)}"
            for f, part in values
            if f.default is MISSING or part != f.default
        ]
        return f"{type(value).__name__}({', '.join(parts)})"
    return value if value is None or isinstance(value, str | int | float) else _IDENTITIES.sub("", repr(value))


def _written(value: Any) -> str:
    return repr(value) if isinstance(value, str) and not isinstance(value, Enum) else str(_plain(value))


def _native(plan: str) -> Iterator[str]:
    for line in plan.splitlines():
        found = _NODE.match(line)
        if found is None:
            continue
        node = _IDENTITIES.sub("", found[1] + found[2])
        if found[1] in _STATEFUL:
            yield node
        elif found[1] == "Project" and _WINDOW in node:
            # Spark's plan has windows as long arithmetic expressions, so a hash stands for one.
            yield f"time window {hashlib.sha256(node.encode()).hexdigest()[:8]}"


def _differences(what: str, was: Any, now: Any) -> Iterator[Difference]:
    """Compare mappings and lists item by item, so that a message names only what has changed."""
    if was == now:
        return
    if isinstance(was, dict) and isinstance(now, dict) and what.rpartition(" ")[2] != "schema":
        for name in dict.fromkeys([*was, *now]):
            yield from _differences(f"{what} {name}", was.get(name), now.get(name))
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now) and what != "key":
        for number, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from _differences(_item(what, number, other), one, other)
    else:
        yield Difference(what, was, now)


def _item(what: str, number: int, item: Any) -> str:
    """Return the name of an item of a list, for messages."""
    name = item.get("name") if isinstance(item, dict) else None
    return f"{what.removesuffix('s')} {name or number}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    return str(value)
