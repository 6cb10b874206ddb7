"""Table: rows by key, as a value. What a kernel remembers between two steps is a few of these."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import polars as pl


@dataclass(frozen=True, slots=True)
class Table:
    """One row for each key. A change gives a new table and leaves this one as it is."""

    key: tuple[str, ...]
    rows: pl.DataFrame

    @classmethod
    def empty(cls, schema: pl.Schema, key: Sequence[str]) -> Self:
        return cls(tuple(key), pl.DataFrame(schema=schema))

    def get(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The rows whose key is in `keys`, which may name only some of the key's columns."""
        return self.rows.join(keys, on=keys.columns, how="semi", nulls_equal=True)

    def where(self, condition: pl.Expr) -> pl.DataFrame:
        """The rows for which a condition holds."""
        return self.rows.filter(condition)

    def put(self, rows: pl.DataFrame) -> Self:
        """With these rows, each in the place of the one that had its key."""
        kept = self.rows.join(rows, on=list(self.key), how="anti", nulls_equal=True)
        return type(self)(self.key, pl.concat([kept, rows.select(kept.columns)]))

    def drop(self, keys: pl.DataFrame) -> Self:
        """Without the rows whose key is in `keys`, which may name only some of the key's columns."""
        return type(self)(self.key, self.rows.join(keys, on=keys.columns, how="anti", nulls_equal=True))

    def __len__(self) -> int:
        return self.rows.height
