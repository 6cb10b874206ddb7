"""The definition of a query: the parts of its computation that its checkpoint depends on.

It is saved in the query's checkpoint (`definition.json`) and compared before the first batch of a run
(`differences`). If the change is compatible with the state, the query continues and the change is reported. Any
other change is refused, because Spark would fail later with an obscure message or, worse, continue and mix old
state with a new computation.

    topics, key, columns    what the query reads, and the rows of its result
    operators, native       Headwater's stateful operators and Spark's own
    steps                   filters and computed columns, before each operator and after the last one
    aggregates, destination the code of the user's own aggregates; where a sink writes to
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame

from headwater.app import Query, SinkQuery, Topic
from headwater.files import replacing
from headwater.process.aggregates.aggregates import Aggregate
from headwater.spark.definition.code_prints import print_of_code, prints_of_aggregate
from headwater.spark.definition.plan_steps import PlanReader, neutral_settings
from headwater.spark.kernels.attach import INPUTS
from headwater.spark.kernels.watermark_sources import METADATA_COLUMNS
from headwater.spark.source.decoding import event_time_of, parse_schema

FILE = "definition.json"
VERSION = 2
"""In version 1, `native` had lines of Spark's plan, and there were no steps, aggregates and destinations."""

Described = Mapping[str, Any]

RESULT = "result"
"""The name of the steps after the last stateful operator."""

_IDENTITIES = re.compile(r"#\d+L?|-T\d+ms| at 0x[0-9a-f]+|@[0-9a-f]+")

_CREDENTIALS = re.compile(r"(?<=//)[^@/]*@|\b(?:user|password)=(?:'[^']*'|[^&\s]*)[&\s]?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """`operators` are Headwater's in order, `native` Spark's stateful ones, `partitions` the number Spark uses."""

    topics: Sequence[Described]
    key: Sequence[str]
    columns: Described
    operators: Sequence[Described]
    native: Sequence[Any]
    partitions: int
    version: int = 1
    kind: str = ""
    steps: Described = field(default_factory=dict)
    aggregates: Described = field(default_factory=dict)
    destination: str = ""

    @property
    def has_state(self) -> bool:
        return bool(self.operators or self.native)


def define(query: Query, rows: DataFrame, operators: Sequence[Described]) -> Definition:
    """Describe a query by the DataFrame that its function returned."""
    spark = rows.sparkSession
    reader = PlanReader(spark)
    with neutral_settings(spark):
        steps = {
            f"{label}{side}": reader.steps(rows_in, _used(operator, rows_in))
            for label, operator in zip(labels(operators), operators, strict=True)
            for side, rows_in in _inputs(operator)
        }
        steps[RESULT] = reader.steps(rows)
        native = reader.native(rows)
    definition = Definition(
        topics=[_describe_topic(topic) for topic in query.topics],
        key=query.key,
        columns={f.name: f.dataType.simpleString() for f in rows.schema.fields if f.name not in METADATA_COLUMNS},
        operators=[_plain({n: part for n, part in one.items() if n != INPUTS}) for one in operators],
        native=native,
        partitions=int(spark.conf.get("spark.sql.shuffle.partitions") or 0),
        version=VERSION,
        kind=query.kind,
        steps=steps,
        aggregates=_aggregates(operators),
        destination=_destination(query),
    )
    return _from_json(json.dumps(asdict(definition)))  # Normalized: lists for tuples, strings for keys.


def labels(operators: Sequence[Described]) -> list[str]:
    """Return names for messages: `top`, or `top 1` and `top 2` if there are several."""
    counts, seen = Counter(operator["name"] for operator in operators), Counter[str]()
    found = []
    for operator in operators:
        name = operator["name"]
        seen[name] += 1
        found.append(name if counts[name] == 1 else f"{name} {seen[name]}")
    return found


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
        "watermark": None if topic.watermark is None else print_of_code(topic.watermark),
    }


def _inputs(operator: Described) -> list[tuple[str, DataFrame]]:
    """Return the DataFrames that an operator was applied to, with their names for messages."""
    found = operator.get(INPUTS, ())
    sides = ("",) if len(found) == 1 else (", left side", ", right side")
    return list(zip(sides, found, strict=False))


def _used(operator: Described, rows: DataFrame) -> list[str] | None:
    """Return the columns that an operator uses of its input; None if it keeps whole rows."""
    if operator["name"] not in ("windowed", "aggregate"):
        return None
    if any(isinstance(aggregate, Column) for aggregate in operator["what"].values()):
        return None  # An aggregate of Spark's may use any column of the input.
    columns = [aggregate.column for aggregate in operator["what"].values()]
    try:
        time = [event_time_of(rows)]
    except Exception:  # Only some operators need an event time, and those have checked it.
        time = []
    return [*operator["by"], *(name for name in columns if name is not None), *time]


def _aggregates(operators: Sequence[Described]) -> Described:
    """Return the prints of the user's own aggregates, by operator and name."""
    found = {}
    for label, operator in zip(labels(operators), operators, strict=True):
        for name, aggregate in operator.get("what", {}).items():
            if not isinstance(aggregate, Aggregate | Column):
                found[f"{label}, {name}"] = prints_of_aggregate(aggregate)
    return found


def _destination(query: Query) -> str:
    """Return a sink as text, without secrets: `repr` leaves those out."""
    if not isinstance(query, SinkQuery):
        return ""
    sink: Any = query.to
    if not is_dataclass(sink):
        return type(sink).__name__
    server = getattr(sink, "dsn", None)
    at = "" if server is None else f" at {_CREDENTIALS.sub('', server)}"
    return _IDENTITIES.sub("", repr(sink)) + at


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
    if value is None or isinstance(value, str | int | float):
        return value
    kind: Any = type(value)
    if kind.__repr__ is object.__repr__:  # With the name of the program's file, which may change.
        return f"{type(value).__name__}()"
    return _IDENTITIES.sub("", repr(value))


def _written(value: Any) -> str:
    return repr(value) if isinstance(value, str) and not isinstance(value, Enum) else str(_plain(value))
