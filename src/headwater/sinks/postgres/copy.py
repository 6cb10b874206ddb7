"""Rows as CSV for PostgreSQL's COPY, written by Arrow, which is faster than any loop over rows.

Text is always quoted and null never, so that COPY distinguishes an empty text from null. Types that Arrow's writer
does not support become text first: binary as `\\x...`, nested values as JSON.
"""

from collections.abc import Iterator
from typing import cast

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headwater.sinks.json_rows import json_values

_BLOCK_ROWS = 50_000
"""Bounds the memory that the text takes in addition to the rows."""


def csv_blocks(rows: pa.Table) -> Iterator[memoryview]:
    """Yield the rows as CSV without a header, in blocks."""
    for start in range(0, rows.num_rows, _BLOCK_ROWS):
        block = rows.slice(start, _BLOCK_ROWS)
        columns = [_csv_column(column) for column in block.columns]
        sink = pa.BufferOutputStream()
        options = csv.WriteOptions(include_header=False, quoting_style="needed")
        csv.write_csv(pa.Table.from_arrays(columns, names=block.column_names), sink, options)
        yield memoryview(sink.getvalue())


def _csv_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_nested(kind):
        return json_values(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        hexes = cast(pl.Series, pl.from_arrow(column)).bin.encode("hex").to_arrow()
        return pc.binary_join_element_wise(pa.scalar("\\x", hexes.type), hexes, pa.scalar("", hexes.type))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # In UTC, as the connection is: Arrow looks a zone up for each value, which takes 15 times as long.
        return column.cast(pa.timestamp(kind.unit))
    return column
