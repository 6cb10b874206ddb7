"""A batch of changes as what a table needs: the rows to put and the keys to delete."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import polars as pl
import pyarrow as pa

from headwater.errors import InvalidError
from headwater.sink import Batch, Stream

_SIGN, _AT = "_headwater_sign", "_headwater_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetChanges:
    """At most one row for each key in both together; `deletes` has the key columns only."""

    puts: pa.Table
    deletes: pa.Table


def check_changes_have_key(stream: Stream, attempt: str) -> None:
    """For a table, from which a row can be taken only by its key."""
    if stream.changes and not stream.key:
        raise InvalidError(
            f"{attempt}: its rows can be taken back, and without a key nobody could tell which one is meant",
            hint="give @app.sink a key: the columns that tell the rows apart",
        )


def fold(batch: Batch, key: Sequence[str]) -> NetChanges:
    """What is left of each key's rows: the last one decides."""
    rows = batch.rows
    signs = batch.signs if batch.signs is not None else pa.array([1] * rows.num_rows, pa.int8())
    # Only the keys take part, so that rows may have columns of any type.
    keys = cast(pl.DataFrame, pl.from_arrow(rows.select(list(key)).append_column(_SIGN, signs)))
    last = keys.with_row_index(_AT).group_by(list(key), maintain_order=True).agg(pl.col(_SIGN, _AT).last())
    return NetChanges(
        puts=rows.take(_places(last.filter(pl.col(_SIGN) > 0))),
        deletes=rows.select(list(key)).take(_places(last.filter(pl.col(_SIGN) < 0))),
    )


def _places(last: pl.DataFrame) -> Any:
    return last.get_column(_AT).sort().to_arrow()
