"""Polars frames as bytes, and their types as Spark's.

Strings travel with plain offsets, not as views: then a slice of a frame takes no more bytes than its rows need.
"""

from collections.abc import Iterable, Iterator, Sequence

import polars as pl
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

_PLAIN = pl.CompatLevel.oldest()


def to_arrow(frame: pl.DataFrame) -> pa.Table:
    """A frame as Arrow with types that Spark takes."""
    return frame.to_arrow(compat_level=_PLAIN)


def from_arrow(table: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def to_bytes(table: pa.Table) -> pa.Buffer:
    """One Arrow stream. Not compressed: Spark compresses what it shuffles and what it stores."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def from_bytes(data: bytes | memoryview | pa.Buffer) -> pl.DataFrame:
    return from_arrow(pa.ipc.open_stream(data).read_all())


def slices(frame: pl.DataFrame, rows_max: int) -> Iterator[pl.DataFrame]:
    """A frame in pieces of bounded length; nothing for an empty one."""
    for start in range(0, frame.height, rows_max):
        yield frame.slice(start, rows_max)


def concat(frames: Sequence[pl.DataFrame], otherwise: pl.DataFrame) -> pl.DataFrame:
    """All rows in one frame, with nulls in columns that only some have; `otherwise` if there are none."""
    some = [frame for frame in frames if frame.height]
    if len(some) < 2:
        return some[0] if some else otherwise
    same = all(frame.schema == some[0].schema for frame in some)
    return pl.concat(some, how="vertical" if same else "diagonal")


def in_pieces(frames: Iterable[pl.DataFrame], rows_max: int) -> Iterator[pl.DataFrame]:
    """Frames, none of them longer than `rows_max`, put together as long as that is so of the whole too."""
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
    """What a batch of a DataFrame looks like when it comes to Python, without rows."""
    return from_arrow(to_arrow_schema(schema, timezone="UTC").empty_table())


def spark_schema(frame: pl.DataFrame) -> StructType:
    return from_arrow_schema(to_arrow(frame.clear()).schema)
