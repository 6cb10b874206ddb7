"""Small streams and batches for tests of sinks."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headwater.sink import Batch, Stream

Change = tuple[Any, Any, int]
"""A key, a value, and 1 for an insert or -1 for a retraction."""

KEYED = pa.schema({"k": pa.string(), "v": pa.int64()})


def stream_of(*, key: str | None = None, changes: bool = False) -> Stream:
    """Return a stream of rows (k string, v bigint)."""
    return Stream(query="app.q", schema=KEYED, key=(key,) if key else (), changes=changes)


def batch_of(number: int, changes: list[Change], *, run: str = "r", signed: bool = True) -> Batch:
    """Return a batch of rows (k string, v bigint); with signs only if rows may be retracted."""
    rows = table(KEYED, [(k, v) for k, v, _ in changes])
    return Batch(
        run=run, number=number, rows=rows, signs=signs([sign for *_, sign in changes]) if signed else None
    )


def table(schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Return rows as an Arrow table."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def signs(values: Iterable[int]) -> pa.Array:
    return pa.array(list(values), pa.int8())
