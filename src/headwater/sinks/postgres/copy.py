"""Rows as PostgreSQL's COPY reads them: CSV, written by Arrow, which is faster than any loop over rows.

Text is always quoted and null never, so that COPY tells an empty text from null. What Arrow's writer does not
know becomes text first: binary as `\\x...`, nested values as JSON.
"""

from collections.abc import Iterator
from typing import cast

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headwater.sinks.json_rows import json_values

_BLOCK_ROWS = 50_000
"""Bounds the memory for text beside the rows themselves."""


def csv_blocks(rows: pa.Table) -> Iterator[memoryview]:
    """The rows as CSV without a header, in pieces."""
    for start in range(0, rows.num_rows, _BLOCK_ROWS):
        some = rows.slice(start, _BLOCK_ROWS)
        columns = [_copied(column) for column in some.columns]
        sink = pa.BufferOutputStream()
        options = csv.WriteOptions(include_header=False, quoting_style="needed")
        csv.write_csv(pa.Table.from_arrays(columns, names=some.column_names), sink, options)
        yield memoryview(sink.getvalue())


def _copied(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_nested(kind):
        return json_values(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        hexes = cast(pl.Series, pl.from_arrow(column)).bin.encode("hex").to_arrow()
        return pc.binary_join_element_wise(pa.scalar("\\x", hexes.type), hexes, pa.scalar("", hexes.type))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # In UTC, as the connection is. A zone, which Arrow looks up for each value, takes 15 times as long.
        return column.cast(pa.timestamp(kind.unit))
    return column
