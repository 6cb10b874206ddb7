"""The net effect of a batch on a table: the rows to upsert and the keys to delete."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import polars as pl
import pyarrow as pa

from headwater.sink import Batch

_SIGN, _INDEX = "_headwater_sign", "_headwater_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetChanges:
    """The rows to upsert and the keys to delete; a key occurs at most once in both together.

    `deletes` has the key columns only.
    """

    puts: pa.Table
    deletes: pa.Table


def net_changes(batch: Batch, key: Sequence[str]) -> NetChanges:
    """Reduce a batch to one change per key: the last one wins."""
    rows = batch.rows
    signs = batch.signs if batch.signs is not None else pa.array([1] * rows.num_rows, pa.int8())
    # Polars sees the key columns only, so that the other columns may have any type.
    keys = cast(pl.DataFrame, pl.from_arrow(rows.select(list(key)).append_column(_SIGN, signs)))
    last = keys.with_row_index(_INDEX).group_by(list(key), maintain_order=True).agg(pl.col(_SIGN, _INDEX).last())
    return NetChanges(
        puts=rows.take(_indices(last.filter(pl.col(_SIGN) > 0))),
        deletes=rows.select(list(key)).take(_indices(last.filter(pl.col(_SIGN) < 0))),
    )


def _indices(last: pl.DataFrame) -> Any:
    return last.get_column(_INDEX).sort().to_arrow()
