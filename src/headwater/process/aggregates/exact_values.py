"""The values that exact aggregates need (`distinct`, `quantile`, `top_k`, `collect`), in tables beside windows.

As a list in its window's row, all values of a window would be written anew with every batch. Here each value is a
row of its own (the window's key, the value, how often), and a batch writes the values that it brings. They are
read when a pane fires, and not even then for `distinct`: that is counted on the way.

This is for windows whose key never changes. Sessions, which merge, keep their values in lists, see `folds.Bag`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from headwater.process.aggregates.folds import Bag, Folds
from headwater.process.table import Table


@dataclass(frozen=True, slots=True)
class Values:
    """Which aggregates keep their values beside rows of this `key`, and how."""

    folds: Folds
    key: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.folds.beside)

    def empty(self, combined: pl.Schema) -> dict[str, Table]:
        """The tables, for what is combined to rows of this schema."""
        tables = {}
        for number, bag in self._bags():
            kept = combined[f"_a{number}_bag"]
            assert isinstance(kept, pl.List) and isinstance(kept.inner, pl.Struct)
            schema = {**{name: combined[name] for name in self.key}, **kept.inner.to_schema()}
            tables[_table(number)] = Table.empty(pl.Schema(schema), (*self.key, *bag.fields), self.key)
        return tables

    def take(self, tables: dict[str, Table], came: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
        """Put the values of what `came` into the tables; gives the rows they belong to, with what was counted."""
        for number, bag in self._bags():
            table = tables[_table(number)]
            key = list(table.key)
            lists = came.select(*self.key, f"_a{number}_bag").drop_nulls(f"_a{number}_bag")
            long = lists.explode(f"_a{number}_bag").unnest(f"_a{number}_bag")
            delta = long.group_by(key, maintain_order=True).agg(pl.col("w").sum())
            known = table.get(delta.select(key))
            both = delta.join(known, on=key, how="left", nulls_equal=True, suffix="_was", maintain_order="left")
            both = both.with_columns(pl.col("w_was").fill_null(0)).with_columns(pl.col("w") + pl.col("w_was"))
            table = table.put(both.filter(pl.col("w") != 0))
            gone = both.filter(pl.col("w") == 0).select(key)
            tables[_table(number)] = table.drop(gone) if gone.height else table
            if bag.is_count:
                more = (pl.col("w") > 0).cast(pl.Int64) - (pl.col("w_was") > 0).cast(pl.Int64)
                rows = self._counted(rows, both.group_by(self.key).agg(_more=more.sum()), f"_a{number}_n")
        return rows

    def read(self, tables: dict[str, Table], rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with the lists of their values, of which results are made."""
        key = list(self.key)
        for number, bag in self._bags():
            if not bag.is_count:
                found = bag.gather(tables[_table(number)].get(rows.select(key)), key)
                found = found.rename({"bag": f"_a{number}_bag"})
                rows = rows.join(found, on=key, how="left", nulls_equal=True, maintain_order="left")
        return rows

    def drop(self, tables: dict[str, Table], rows: pl.DataFrame) -> None:
        """Forget the values of these rows."""
        for number, _ in self._bags():
            tables[_table(number)] = tables[_table(number)].drop(rows.select(self.key))

    def _bags(self) -> Iterator[tuple[int, Bag]]:
        for number in self.folds.beside:
            bag = self.folds.folds[number]
            assert isinstance(bag, Bag)
            yield number, bag

    def _counted(self, rows: pl.DataFrame, counts: pl.DataFrame, name: str) -> pl.DataFrame:
        joined = rows.join(counts, on=list(self.key), how="left", nulls_equal=True, maintain_order="left")
        return joined.with_columns(pl.col(name).fill_null(0) + pl.col("_more").fill_null(0)).drop("_more")


def _table(number: int) -> str:
    return f"values{number}"
