"""The values that exact aggregates need (`distinct`, `quantile`, `top_k`, `collect`), in tables of their own.

As a list in its window's row, all values of a window would be rewritten with every batch. Here each value is a row
(the window's key, the value, its weight), and a batch writes only the values that it brings. Values are read when
a pane fires; for `distinct` not even then, because the window's row keeps a count. Values that are ordered by
time also have the number of their arrival (`s`), for those of the same time; the window's row keeps the next one.

This is for windows whose key never changes. Sessions, which merge, keep their values in lists, see `bags.Bag`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from headwater.process.aggregates.bags import Bag
from headwater.process.aggregates.folds import Folds, bag_column, count_column
from headwater.process.table import Table


@dataclass(frozen=True, slots=True)
class Values:
    """The tables of values of the aggregates `folds.separate`, for rows with this `key`."""

    folds: Folds
    key: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.folds.separate)

    def empty(self, combined: pl.Schema) -> dict[str, Table]:
        """Return empty tables, for combined rows of this schema."""
        tables = {}
        for number, bag in self._bags():
            kept = combined[bag_column(number)]
            assert isinstance(kept, pl.List) and isinstance(kept.inner, pl.Struct)
            schema = {**{name: combined[name] for name in self.key}, **kept.inner.to_schema()}
            schema |= {"s": pl.Int64()} if bag.order == "time" else {}
            tables[_table(number)] = Table.empty(pl.Schema(schema), (*self.key, *bag.fields), self.key)
        return tables

    def add(self, tables: dict[str, Table], arrived: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
        """Add the values of `arrived` rows to the tables, and return the `rows` they belong to with new counts."""
        for number, bag in self._bags():
            table = tables[_table(number)]
            key = list(table.key)
            lists = arrived.select(*self.key, bag_column(number)).drop_nulls(bag_column(number))
            long = lists.explode(bag_column(number)).unnest(bag_column(number))
            places = []
            if bag.order == "time":
                long, rows = self._numbered(long, rows, count_column(number))
                places = [bag.arrival]
            delta = long.group_by(key, maintain_order=True).agg(pl.col("w").sum(), *places)
            known = table.get(delta.select(key))
            both = delta.join(known, on=key, how="left", nulls_equal=True, suffix="_was", maintain_order="left")
            if places:
                moves = (pl.col("w") > 0) & bag.latest
                both = both.with_columns(pl.when(moves).then("s").otherwise(pl.coalesce("s_was", "s")).alias("s"))
            both = both.with_columns(pl.col("w_was").fill_null(0)).with_columns(pl.col("w") + pl.col("w_was"))
            table = table.put(both.filter(pl.col("w") != 0))
            gone = both.filter(pl.col("w") == 0).select(key)
            tables[_table(number)] = table.drop(gone) if gone.height else table
            if bag.is_count:
                more = (pl.col("w") > 0).cast(pl.Int64) - (pl.col("w_was") > 0).cast(pl.Int64)
                rows = self._add_counts(rows, both.group_by(self.key).agg(_more=more.sum()), count_column(number))
        return rows

    def read(self, tables: dict[str, Table], rows: pl.DataFrame) -> pl.DataFrame:
        """Add the lists of their values to rows, which results are computed from."""
        key = list(self.key)
        for number, bag in self._bags():
            if not bag.is_count:
                found = bag.collect(tables[_table(number)].get(rows.select(key)), key)
                found = found.rename({"bag": bag_column(number)})
                rows = rows.join(found, on=key, how="left", nulls_equal=True, maintain_order="left")
        return rows

    def drop(self, tables: dict[str, Table], rows: pl.DataFrame) -> None:
        """Delete the values of these rows."""
        for number, _ in self._bags():
            tables[_table(number)] = tables[_table(number)].drop(rows.select(self.key))

    def _bags(self) -> Iterator[tuple[int, Bag]]:
        for number in self.folds.separate:
            bag = self.folds.folds[number]
            assert isinstance(bag, Bag)
            yield number, bag

    def _numbered(self, long: pl.DataFrame, rows: pl.DataFrame, counter: str) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Number the values of each window in the order of arrival, and return the rows with new counters."""
        key = list(self.key)
        joined = long.join(rows.select(*key, counter), on=key, how="left", nulls_equal=True, maintain_order="left")
        place = pl.col(counter).fill_null(0) + pl.int_range(pl.len(), dtype=pl.Int64).over(key)
        numbered = joined.with_columns(place.alias("s")).drop(counter)
        more = numbered.group_by(key).agg(_more=pl.len().cast(pl.Int64))
        return numbered, self._add_counts(rows, more, counter)

    def _add_counts(self, rows: pl.DataFrame, counts: pl.DataFrame, name: str) -> pl.DataFrame:
        joined = rows.join(counts, on=list(self.key), how="left", nulls_equal=True, maintain_order="left")
        return joined.with_columns(pl.col(name).fill_null(0) + pl.col("_more").fill_null(0)).drop("_more")


def _table(number: int) -> str:
    return f"values{number}"
