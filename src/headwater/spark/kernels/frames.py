"""Convert Polars frames to and from bytes, and their types to Spark's.

Strings are sent with plain offsets, not as views, so that a slice of a frame takes no more bytes than its rows
need.
"""

import json
from collections.abc import Iterable, Iterator, Sequence

import polars as pl
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from headwater.process.table import HASH

_PLAIN = pl.CompatLevel.oldest()


def to_arrow(frame: pl.DataFrame) -> pa.Table:
    """Convert a frame to Arrow with types that Spark accepts."""
    return frame.to_arrow(compat_level=_PLAIN)


def from_arrow(table: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def to_bytes(table: pa.Table) -> pa.Buffer:
    """Write one Arrow stream, uncompressed: Spark compresses what it shuffles and stores."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def from_bytes(data: bytes | memoryview | pa.Buffer) -> pl.DataFrame:
    return from_arrow(pa.ipc.open_stream(data).read_all())


_CONSTANTS = b"headwater.constants"


def to_lean(frame: pl.DataFrame) -> pa.Table:
    """Convert a frame to Arrow, with integer columns that have one value in all rows moved to the metadata.

    For a table of windows this saves half of the bytes, and reading them back takes no memory.
    """
    constants = {}
    for series in frame.drop(HASH, strict=False).iter_columns() if frame.height else ():
        is_plain = series.dtype.is_integer() or series.dtype == pl.Boolean
        if is_plain and series.null_count() == 0 and series.min() == series.max():
            constants[series.name] = int(series[0])
    if len(constants) == frame.width > 0:
        constants.popitem()  # One column is kept for the number of rows.
    kinds = {name: str(frame.schema[name]) for name in constants}
    lean = {"columns": frame.columns, "values": constants, "kinds": kinds}
    table = to_arrow(frame.drop(constants))
    return table.replace_schema_metadata({_CONSTANTS: json.dumps(lean).encode()})


def from_lean(table: pa.Table) -> pl.DataFrame:
    """Restore a frame from the result of `to_lean`."""
    lean = json.loads((table.schema.metadata or {}).get(_CONSTANTS, b"{}"))
    frame = from_arrow(table)
    if not lean.get("values"):
        return frame
    values = [
        pl.lit(value).cast(getattr(pl, lean["kinds"][name])).alias(name) for name, value in lean["values"].items()
    ]
    return frame.with_columns(*values).select(lean["columns"])


def slices(frame: pl.DataFrame, rows_max: int) -> Iterator[pl.DataFrame]:
    """Cut a frame into pieces of bounded length; an empty frame has none."""
    for start in range(0, frame.height, rows_max):
        yield frame.slice(start, rows_max)


def concat(frames: Sequence[pl.DataFrame], otherwise: pl.DataFrame) -> pl.DataFrame:
    """Concatenate frames, with nulls in columns that only some have; return `otherwise` if there are no rows."""
    some = [frame for frame in frames if frame.height]
    if len(some) < 2:
        return some[0] if some else otherwise
    same = all(frame.schema == some[0].schema for frame in some)
    return pl.concat(some, how="vertical" if same else "diagonal")


def in_pieces(frames: Iterable[pl.DataFrame], rows_max: int) -> Iterator[pl.DataFrame]:
    """Concatenate neighbouring frames up to `rows_max` rows; no frame may be longer than that."""
    waiting: list[pl.DataFrame] = []
    rows = 0
    for frame in frames:
        if waiting and rows + frame.height > rows_max:
            yield concat(waiting, waiting[0])
            waiting, rows = [], 0
        waiting.append(frame)
        rows += frame.height
    if rows:
        yield concat(waiting, waiting[0])


def empty_like(schema: StructType) -> pl.DataFrame:
    """Return an empty frame with the types that a DataFrame's batches have in Python."""
    return from_arrow(to_arrow_schema(schema, timezone="UTC").empty_table())


def as_schema(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """Cast a batch to the schema of `empty_like`: Spark sends timestamps in the time zone of its session."""
    return frame if frame.schema == schema else frame.cast(schema)


def spark_schema(frame: pl.DataFrame) -> StructType:
    return from_arrow_schema(to_arrow(frame.clear()).schema, prefer_timestamp_ntz=True)
