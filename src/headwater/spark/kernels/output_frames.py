"""The output of a kernel as pandas frames, which Spark requires.

The columns of the frames are Arrow arrays, which Spark converts without copying. If a column has a type that Spark
would convert value by value, a frame has one row instead, with all rows packed into one binary value.
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
    """The columns that leave an operator; `times_in` names those for the `watermark` and the `clock`."""

    schema: pa.Schema
    times_in: Mapping[str, str]
    is_packed: bool

    def results(self, output: pl.DataFrame, now: Now) -> pd.DataFrame:
        """Return output rows with the times at which they were emitted."""
        table = to_arrow(output)
        if self.is_packed:
            return _packed(now.watermark, now.processing_time, to_bytes(table).to_pybytes())
        times = {"watermark": now.watermark, "clock": now.processing_time}
        for what, name in self.times_in.items():
            table = table.append_column(name, pa.repeat(pa.scalar(times[what], pa.int64()), table.num_rows))
        return _frame(table.cast(self.schema))

    def times_row(self, watermark: int, clock: int) -> pd.DataFrame:
        """Return a row of nulls that carries only the times."""
        if self.is_packed:
            return _packed(watermark, clock, None)
        times = {"watermark": watermark, "clock": clock}
        known = {name: times[what] for what, name in self.times_in.items()}
        arrays = [pa.array([known.get(field.name)], field.type) for field in self.schema]
        return _frame(pa.Table.from_arrays(arrays, schema=self.schema))


def _packed(watermark: int, clock: int, payload: bytes | None) -> pd.DataFrame:
    return pd.DataFrame({"watermark": [watermark], "clock": [clock], "payload": [payload]})


def _frame(table: pa.Table) -> pd.DataFrame:
    columns = zip(table.column_names, table.combine_chunks().columns, strict=True)
    return pd.DataFrame({name: pd.Series(pd.arrays.ArrowExtensionArray(column)) for name, column in columns})
