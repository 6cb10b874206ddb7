"""Decodes records to rows by a schema, and separates the records that do not match it.

A value must be a JSON object in valid UTF-8 whose fields have the declared types; a field may be missing (null),
but the event time may not. Every record is either a row (`good_rows`) or a dead letter (`bad_records`).
"""

import base64
import json
from typing import Any, cast

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headwater.app import Topic
from headwater.errors import InvalidError
from headwater.process.durations import micros
from headwater.process.watermarks import UserEstimate

COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
"""The columns of a record, those of Spark's Kafka source."""

EVENT_TIME_KEY = "headwater.eventTime"
BY_PARTITION_KEY = "headwater.byPartition"
"""Metadata of the event time's column: each task reads one partition, always the same; other sources do not."""
DELAY_KEY, IDLE_KEY = "headwater.delay", "headwater.idle"
"""Metadata of the event time's column, in microseconds: watermark delay, and time until a partition is idle."""
ESTIMATE_KEY = "headwater.watermark"
"""Metadata of the event time's column: a user's own estimate of the watermark, pickled, as Base64 text."""
RECORD_TIME = "timestamp"
IS_BAD = "_headwater_is_bad"
_ROW, _MISFIT = "_headwater_row", "_headwater_misfit"


def event_time_field(rows: DataFrame) -> StructField | None:
    """Return the field of the event time; Spark also copies its mark to a `window` made of it, a struct."""
    return next(
        (
            field
            for field in rows.schema.fields
            if field.metadata.get(EVENT_TIME_KEY) and not isinstance(field.dataType, StructType)
        ),
        None,
    )


def event_time_of(rows: DataFrame) -> str:
    """Return the event time's column, which has the mark in its metadata; raise InvalidError if there is none."""
    field = event_time_field(rows)
    if field is not None:
        return field.name
    raise InvalidError(
        f"there is no event time among the columns {', '.join(rows.columns)}: keep the topic's event time column, "
        "or name one with `app.topic(..., event_time=...)`"
    )


def estimate_of(rows: DataFrame, column: str) -> UserEstimate | None:
    """Return the user's own estimate of the watermark, if the topic was declared with one."""
    pickled = rows.schema[column].metadata.get(ESTIMATE_KEY)
    return None if pickled is None else cast(UserEstimate, cloudpickle.loads(base64.b64decode(pickled)))


def parse_schema(topic: Topic) -> StructType:
    """Parse a topic's schema and check that its event time is a timestamp."""
    assert topic.schema is not None
    try:
        schema = cast(StructType, StructType.fromDDL(topic.schema))
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidError(
            f"cannot read the schema of topic {topic.name!r}, {topic.schema!r}: {reason}"
        ) from error
    if topic.event_time is None:
        return schema
    if topic.event_time not in schema.names:
        raise InvalidError(
            f"topic {topic.name!r} has no column {topic.event_time!r} for its event time; "
            f"its schema has: {', '.join(schema.names)}"
        )
    kind = schema[topic.event_time].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise InvalidError(
            f"event time {topic.event_time!r} of topic {topic.name!r} is {kind.simpleString()}, expected timestamp"
        )
    return schema


def good_rows(records: DataFrame, topic: Topic) -> DataFrame:
    """Return the rows of the records that match the schema, with the event time marked."""
    if topic.schema is None:
        return mark_event_time(records, topic)
    decoded = _decode(records, parse_schema(topic)).where(~_is_bad(topic))
    return mark_event_time(decoded.select(*_row_columns(topic)), topic)


def decoded_records(records: DataFrame, topic: Topic, *others: str) -> DataFrame:
    """Return a row for each record: the columns of the topic's row, then `IS_BAD`, then the columns `others`.

    The names of the row's columns are replaced by their numbers, because `others` may have the same names.
    """
    if topic.schema is None:
        names = [name for name in records.columns if not name.startswith("_")]
        columns = [F.col(name).alias(f"_{number}") for number, name in enumerate(names)]
        return records.select(*columns, F.lit(False).alias(IS_BAD), *others)
    columns = [column.alias(f"_{number}") for number, column in enumerate(_row_columns(topic))]
    return _decode(records, parse_schema(topic)).select(*columns, _is_bad(topic).alias(IS_BAD), *others)


def mark_event_time(rows: DataFrame, topic: Topic) -> DataFrame:
    """Mark the column of a topic's rows that is their event time."""
    return _mark_event_time(rows, topic.event_time or RECORD_TIME, topic)


def _row_columns(topic: Topic) -> list[Column]:
    """Return the columns of a decoded record that are the topic's row."""
    schema = parse_schema(topic)
    columns = [F.col(f"{_ROW}.`{name}`").alias(name) for name in schema.names]
    if topic.event_time is not None:
        return columns
    if RECORD_TIME in schema.names:
        raise InvalidError(
            f"topic {topic.name!r} has a column 'timestamp' and no event time: pass event_time='timestamp', "
            "or rename the column so that the record's own timestamp can be the event time"
        )
    return [*columns, F.col(RECORD_TIME)]


def record_schema() -> StructType:
    """Return the schema of a topic's records."""
    return cast(StructType, StructType.fromDDL(COLUMNS))


def row_schema(topic: Topic, records: StructType) -> StructType:
    """Return the schema of a topic's rows; `records` is that of its records."""
    if topic.schema is None:
        return records
    schema = parse_schema(topic)
    return schema if topic.event_time is not None else StructType([*schema.fields, records[RECORD_TIME]])


def bad_records(records: DataFrame, topic: Topic) -> DataFrame:
    """Return the records that do not match the schema, unchanged."""
    schema = parse_schema(topic)
    return _decode(records, schema).where(_is_bad(topic)).select(*records.columns)


def matching_records(records: DataFrame, topic: Topic) -> DataFrame:
    """Return the records whose rows `good_rows` returns, unchanged."""
    if topic.schema is None:
        return records
    return _decode(records, parse_schema(topic)).where(~_is_bad(topic)).select(*records.columns)


def explain_misfit(value: bytes | None, topic: Topic) -> str:
    """Return the reason why a record does not match the schema."""
    if value is None:
        return "the value is null, expected a JSON object"
    try:
        parsed = json.loads(value)
    except UnicodeDecodeError as error:
        return f"the value is not UTF-8: {error.reason} at byte {error.start}"
    except ValueError as error:
        return f"the value is not JSON: {error}"
    if not isinstance(parsed, dict):
        return f"the value is a JSON {_json_kind(parsed)}, expected an object"
    for field in parse_schema(topic).fields:
        if problem := _field_problem(field, parsed.get(field.name)):
            return problem
    if topic.event_time is not None and parsed.get(topic.event_time) is None:
        return f"the event time {topic.event_time!r} is missing"
    return f"the value does not match the schema {topic.schema!r}"


def _decode(records: DataFrame, schema: StructType) -> DataFrame:
    tolerant = StructType([*schema.fields, StructField(_MISFIT, StringType())])
    # Times without a zone are in UTC, whatever the time zone of the session is.
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MISFIT, "timeZone": "UTC"}
    return records.withColumn(_ROW, F.from_json(F.col("value").cast("string"), tolerant, options))


def _is_bad(topic: Topic) -> Column:
    text = F.col("value").cast("string")
    # Spark would silently take the first object of an array and drop the others.
    is_array = F.ltrim(text).startswith("[")
    bad = F.col(_ROW).isNull() | F.col(f"{_ROW}.{_MISFIT}").isNotNull() | is_array | ~F.is_valid_utf8(text)
    if topic.event_time is not None:
        bad = bad | F.col(f"{_ROW}.`{topic.event_time}`").isNull()
    # Null means that some part is unknown: the record counts as bad.
    return F.coalesce(bad, F.lit(True))


def _mark_event_time(rows: DataFrame, column: str, topic: Topic) -> DataFrame:
    marks: dict[str, bool | int | str] = {EVENT_TIME_KEY: True, BY_PARTITION_KEY: True}
    for key, duration in ((DELAY_KEY, topic.delay), (IDLE_KEY, topic.idle)):
        if duration is not None:
            marks[key] = micros(duration)
    if topic.watermark is not None:
        # A view's function gets only a DataFrame, so the estimate is attached to its column.
        marks[ESTIMATE_KEY] = base64.b64encode(_pickled(UserEstimate(topic.watermark))).decode()
    return rows.withMetadata(column, marks)


def _pickled(value: Any) -> bytes:
    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def _field_problem(field: StructField, value: Any) -> str | None:
    if value is None or _fits(field.dataType, value):
        return None
    kind = field.dataType.simpleString()
    return f"field {field.name!r} is {json.dumps(value)[:100]}, expected {kind}"


def _fits(kind: DataType, value: Any) -> bool:
    """Return whether a JSON value can be of a type; finer problems get the general message."""
    if isinstance(kind, BooleanType):
        return isinstance(value, bool)
    if isinstance(kind, NumericType):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, StructType | MapType):
        return isinstance(value, dict)
    if isinstance(kind, ArrayType):
        return isinstance(value, list)
    if isinstance(kind, TimestampType | TimestampNTZType):
        return _looks_like_time(value)
    return True


def _looks_like_time(value: Any) -> bool:
    if isinstance(value, int | float):
        return not isinstance(value, bool)
    return isinstance(value, str) and value[:4].isdigit() and "-" in value


def _json_kind(value: Any) -> str:
    kinds = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return kinds.get(type(value), "null")
