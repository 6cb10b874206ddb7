"""What a kernel says, in the frames in which Spark takes it from Python.

A pandas frame is the form that Spark asks for. Its columns are Arrow's own here, which Spark's conversion hands on
as they are. Where a column has a type that the conversion would take apart value by value, a frame has one row,
with all rows packed in one binary value.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
import polars as pl
import pyarrow as pa

from headwater.process.kernel import Now
from headwater.spark.kernels.frames import to_arrow, to_bytes


@dataclass(frozen=True, slots=True)
class OutputShape:
    """The columns that leave an operator; `told` names those that carry the `watermark` and the `clock`."""

    schema: pa.Schema
    told_in: Mapping[str, str]
    is_packed: bool

    def results(self, output: pl.DataFrame, now: Now) -> pd.DataFrame:
        """Rows that were said at a time."""
        table = to_arrow(output)
        if self.is_packed:
            return _packed(now.watermark, now.processing_time, to_bytes(table).to_pybytes())
        times = {"watermark": now.watermark, "clock": now.processing_time}
        for what, name in self.told_in.items():
            table = table.append_column(name, pa.repeat(pa.scalar(times[what], pa.int64()), table.num_rows))
        return _frame(table.cast(self.schema))

    def told(self, watermark: int, clock: int) -> pd.DataFrame:
        """A row that only tells the time."""
        if self.is_packed:
            return _packed(watermark, clock, None)
        times = {"watermark": watermark, "clock": clock}
        known = {name: times[what] for what, name in self.told_in.items()}
        arrays = [pa.array([known.get(field.name)], field.type) for field in self.schema]
        return _frame(pa.Table.from_arrays(arrays, schema=self.schema))


def _packed(watermark: int, clock: int, payload: bytes | None) -> pd.DataFrame:
    return pd.DataFrame({"watermark": [watermark], "clock": [clock], "payload": [payload]})


def _frame(table: pa.Table) -> pd.DataFrame:
    columns = zip(table.column_names, table.combine_chunks().columns, strict=True)
    return pd.DataFrame({name: pd.Series(pd.arrays.ArrowExtensionArray(column)) for name, column in columns})
