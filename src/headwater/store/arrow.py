"""A view's rows as an Arrow table, with the types that Spark computed."""

import base64
import json
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headwater.store.databases.engine import Db
from headwater.store.shapes import ViewShape
from headwater.store.statements import columns_of, table_of
from headwater.store.values.column_types import struct_fields
from headwater.store.values.columns import Value

_TYPES = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_BLOCK_ROWS = 50_000


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type for a Spark type; string for types without a counterpart.

    >>> arrow_type("struct<start:timestamp,counts:array<int>>")
    StructType(struct<start: timestamp[us, tz=UTC], counts: list<item: int32>>)
    """
    if kind.startswith("struct<"):
        return pa.struct([(name, arrow_type(field)) for name, field in struct_fields(kind).items()])
    if kind.startswith("array<"):
        return pa.list_(arrow_type(kind[len("array<") : -1]))
    if kind.startswith("map<"):
        key, value = struct_fields(f"struct<k:{kind[len('map<') : -1].replace(',', ',v:', 1)}>").values()
        return pa.map_(arrow_type(key), arrow_type(value))
    if kind.startswith("decimal("):
        precision, scale = kind[len("decimal(") : -1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return _TYPES.get(kind, pa.string())


def rows_as_arrow(db: Db, shape: ViewShape) -> pa.Table:
    """Return all rows of a view."""
    schema = pa.schema([(c.name, arrow_type(c.type)) for c in shape.columns])
    found = db.execute(f"select {columns_of(shape)} from {table_of(shape.name)}")
    return pa.Table.from_batches(list(_batches(found, schema)), schema=schema)


def _batches(found: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while rows := found.fetchmany(_BLOCK_ROWS):
        columns = zip(zip(*rows, strict=True), schema.types, strict=True)
        yield pa.RecordBatch.from_arrays([_array(list(c), kind) for c, kind in columns], schema=schema)


def _array(values: list[Value], kind: pa.DataType) -> pa.Array:
    is_ = pa.types
    if is_.is_floating(kind):
        return pa.array([float(value) if isinstance(value, str) else value for value in values], kind)
    if is_.is_boolean(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if is_.is_timestamp(kind) or is_.is_decimal(kind) or is_.is_date(kind):
        return pa.array(values, pa.string()).cast(kind)
    if is_.is_nested(kind):
        return pa.array([None if v is None else _from_json(json.loads(str(v)), kind) for v in values], kind)
    if is_.is_binary(kind):
        return pa.array([_from_json(value, kind) for value in values], kind)
    return pa.array(values, kind)


def _from_json(value: Any, kind: pa.DataType) -> Any:
    """Convert a value from JSON to the Python type that Arrow expects."""
    is_ = pa.types
    if value is None:
        return None
    if is_.is_struct(kind):
        return {field.name: _from_json(value[field.name], field.type) for field in kind}
    if is_.is_map(kind):
        return [
            (_from_json(_key(k, kind.key_type), kind.key_type), _from_json(v, kind.item_type))
            for k, v in value.items()
        ]
    if is_.is_list(kind):
        return [_from_json(each, kind.value_type) for each in value]
    if is_.is_timestamp(kind):
        return datetime.fromisoformat(value)
    if is_.is_date(kind):
        return date.fromisoformat(value)
    if is_.is_decimal(kind):
        return Decimal(value)
    if is_.is_binary(kind):
        return base64.b64decode(value)
    return float(value) if is_.is_floating(kind) else value


def _key(text: str, kind: pa.DataType) -> Any:
    """Convert a map key, which JSON can only represent as text."""
    if pa.types.is_integer(kind):
        return int(text)
    return text == "True" if pa.types.is_boolean(kind) else text
