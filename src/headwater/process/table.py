"""Table: rows by key, as a value. The state of a kernel is a few tables.

A table consists of a few sorted *runs*, oldest first, and the changes since they were sealed (a log-structured
merge tree). Changes are kept separately, with a tombstone for each deleted key; a newer row replaces an older one
of the same key. So the cost of reading or changing rows depends on their number, not on the size of the table. A
sealed run never changes: a runner can keep it, share it and map it into memory. `sealed` turns the changes into a
run and merges runs of similar size, so that there are about log(n) of them.

Inside a run, rows are sorted by a hash of `by`, the columns that reads name; by default, the whole key. If `by` is
a part of the key, half of the hash is that of `by` and half that of the rest of the key: rows with an equal part
are adjacent, and one of them is found without reading the others. Polars' hash may change with its version: a
runner that stores runs must store `hash_mark()` with them, and rebuild the runs (`Run.of`) if it differs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl

Hashes = npt.NDArray[np.uint64]

HASH, GONE = "_hash", "_gone"

GROWTH = 4
"""A run is merged into the previous one unless that is more than this many times as long. A greater number means
fewer runs to search and more rows to copy."""

_SEED = 7
_MIX = np.uint64(0x9E3779B97F4A7C15)
"""Knuth's multiplier: spreads the bits of one column's hash before the hash of the next column is combined."""

_HALF, _LOW, _NONE = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(0)


def key_hash(rows: pl.DataFrame, columns: Sequence[str]) -> Hashes:
    """Return a hash of some columns for each row; equal in all processes with the same version of Polars."""
    hashes: Hashes = np.zeros(rows.height, dtype=np.uint64)
    for number, name in enumerate(columns):
        part = rows.get_column(name).hash(_SEED).to_numpy()
        hashes = part if number == 0 else (hashes * _MIX) ^ part
    return hashes


def _sort_hash(rows: pl.DataFrame, by: Sequence[str], rest: Sequence[str]) -> Hashes:
    """Return the hash by which rows are sorted in a run."""
    hashes = key_hash(rows, by)
    return (hashes & ~_LOW) | (key_hash(rows, rest) >> _HALF) if rest else hashes


@cache
def hash_mark() -> int:
    """Return a number that identifies the version of the hash."""
    sample = pl.DataFrame({"text": ["headwater", None], "number": [1, -1], "real": [0.5, None]})
    return int(key_hash(sample, sample.columns).sum())


class _Needles:
    """Keys to look up, sorted by their hashes, which are of whole keys or of the part `by`."""

    __slots__ = ("distinct", "hashes", "keys", "open")

    def __init__(self, keys: pl.DataFrame, by: Sequence[str], rest: Sequence[str]) -> None:
        is_whole = set(rest) <= set(keys.columns)
        hashes = _sort_hash(keys, by, rest) if is_whole else key_hash(keys, by) & ~_LOW
        order = np.argsort(hashes)
        self.hashes = hashes[order]
        self.keys = keys[order]
        self.distinct = is_whole and _all_differ(self.hashes)
        self.open = _NONE if is_whole else _LOW
        """The bits of a hash that are not compared."""

    @classmethod
    def ordered(cls, keys: pl.DataFrame, hashes: Hashes) -> Self:
        """Create needles of keys that are sorted already and have different hashes."""
        needles = cls.__new__(cls)
        needles.keys, needles.hashes, needles.distinct, needles.open = keys, hashes, True, _NONE
        return needles

    def without(self, found: npt.NDArray[np.bool_]) -> "_Needles":
        """Return the needles that have not been found."""
        return _Needles.ordered(self.keys.filter(~found), self.hashes[~found])


@dataclass(frozen=True, slots=True)
class Matches:
    """The result of `Table.match`: the hash of each key, and the rows found, which have a column `_hash`.

    No two different keys have the same hash, so rows and keys can be joined by it alone.
    """

    hashes: Hashes
    rows: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Run:
    """Rows sorted by their hashes, with the additional columns `_hash` and `_gone` (tombstones)."""

    frame: pl.DataFrame
    hashes: Hashes = field(repr=False)
    distinct: bool
    lows: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    """Cache of the least values of columns; a run never changes."""

    @classmethod
    def of(cls, rows: pl.DataFrame, by: Sequence[str], rest: Sequence[str] = ()) -> Self:
        """Create a run of rows in any order, which have a column `_gone`."""
        hashes = _sort_hash(rows, by, rest)
        order = np.argsort(hashes, kind="stable")
        ordered = rows[order].with_columns(pl.Series(HASH, hashes[order]))
        return cls.ordered(ordered)

    @classmethod
    def ordered(cls, frame: pl.DataFrame) -> Self:
        """Create a run of rows that are sorted already."""
        hashes = frame.get_column(HASH).rechunk().to_numpy()
        return cls(frame, hashes, _all_differ(hashes))

    def __len__(self) -> int:
        return self.frame.height

    @property
    def has_tombstones(self) -> bool:
        """True if some of its rows are tombstones."""
        if GONE not in self.lows:
            self.lows[GONE] = int(bool(self.frame.get_column(GONE).any()))
        return self.lows[GONE] > 0

    def low(self, column: str) -> int:
        """Return the least value of an integer column; the greatest integer if there is none."""
        if column not in self.lows:
            least = self.frame.get_column(column).min()
            self.lows[column] = least if isinstance(least, int) else 2**63 - 1
        return self.lows[column]

    def positions(self, needles: _Needles) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_] | None]:
        """Return the indexes of rows with these hashes; and, if hashes are distinct, which needles were found."""
        if not len(self.hashes):
            return np.zeros(0, dtype=np.intp), None
        if self.distinct and needles.distinct:
            low = np.searchsorted(self.hashes, needles.hashes)
            found = self.hashes[np.minimum(low, len(self.hashes) - 1)] == needles.hashes
            return low[found], found
        wanted = np.unique(needles.hashes)
        low = np.searchsorted(self.hashes, wanted)
        lengths = np.searchsorted(self.hashes, wanted | needles.open, side="right") - low
        before = np.cumsum(lengths) - lengths
        return np.repeat(low - before, lengths) + np.arange(lengths.sum()), None

    def find(self, needles: _Needles) -> pl.DataFrame:
        """Return the rows with these keys, tombstones included."""
        at, found = self.positions(needles)
        rows = self.frame[at]
        if found is None:
            return _semi(rows, needles.keys)
        keys = needles.keys if found.all() else needles.keys.filter(found)
        same = _equal(rows, keys)
        return rows if same.all() else rows.filter(same)


@dataclass(frozen=True, slots=True)
class Table:
    """One row for each key. A change returns a new table and leaves this one unchanged."""

    key: tuple[str, ...]
    by: tuple[str, ...]
    fresh: pl.DataFrame
    runs: tuple[Run, ...] = ()
    hashes: Hashes | None = None
    """The hashes of the rows of `fresh`, if they are known and the rows are sorted by them."""

    @classmethod
    def empty(cls, schema: pl.Schema, key: Sequence[str], by: Sequence[str] | None = None) -> Self:
        """Create a table without rows. A read that names all columns of `by`, a part of the key, does not scan."""
        fresh = pl.DataFrame(schema={**schema, GONE: pl.Boolean})
        return cls(tuple(key), tuple(key if by is None else by), fresh)

    @property
    def schema(self) -> pl.Schema:
        return pl.Schema({name: kind for name, kind in self.fresh.schema.items() if name != GONE})

    @property
    def rest(self) -> tuple[str, ...]:
        """The part of the key that is not in `by`."""
        return tuple(name for name in self.key if name not in self.by)

    @property
    def rows(self) -> pl.DataFrame:
        """All rows; reads the whole table."""
        return self.where(pl.lit(True))

    def get(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Return the rows whose key is in `keys`, which may have only some of the key's columns."""
        keys = self._cast(keys)
        found = [part for part in self._find(keys, self.runs, self.fresh) if part.height]
        rows = _newest(found, self.key) if found else self.fresh.clear()
        return rows.filter(~pl.col(GONE)).select(self._columns)

    def match(self, keys: pl.DataFrame) -> Matches | None:
        """Return the rows with these keys, which may contain duplicates, to be joined with the keys by hash.

        Returns None if that is not possible: two different keys have the same hash, `by` is not the whole key, or
        there are changes that are not in runs. Use `get` then.
        """
        if not self.by or self.by != self.key or self.fresh.height:
            return None
        keys = self._cast(keys.select(self.key))
        hashes = key_hash(keys, self.by)
        order = np.argsort(hashes)
        ordered = hashes[order]
        is_first = np.ones(len(ordered), dtype=np.bool_)
        is_first[1:] = ordered[1:] != ordered[:-1]
        if not is_first.all():
            repeated = np.flatnonzero(~is_first)
            if not _equal(keys[order[repeated]], keys[order[repeated - 1]]).all():
                return None
            order, ordered = order[is_first], ordered[is_first]
        found = self._find_distinct(_Needles.ordered(keys[order], ordered))
        return None if found is None else Matches(hashes, found)

    def _find_distinct(self, needles: _Needles) -> pl.DataFrame | None:
        """Return the rows of runs with these keys, whose hashes are distinct; None if hashes are not enough."""
        parts: list[pl.DataFrame] = []
        for run in reversed(self.runs):
            at, found = run.positions(needles)
            if found is None:
                if len(run):
                    return None
                continue
            if not len(at):
                continue
            rows = run.frame[at]
            if not _equal(rows, needles.keys if found.all() else needles.keys.filter(found)).all():
                return None
            parts.append(rows if not run.has_tombstones else rows.filter(~pl.col(GONE)))
            needles = needles.without(found)
        empty = self.fresh.with_columns(pl.lit(0, pl.UInt64).alias(HASH))
        rows = pl.concat([part.select(empty.columns) for part in parts]) if parts else empty
        return rows.drop(GONE)

    def up_to(self, column: str, limit: int) -> pl.DataFrame:
        """Return the rows in which an integer column is at most `limit`; runs without such rows are not read."""
        return self._where(pl.col(column) <= limit, lambda run: run.low(column) <= limit)

    def where(self, condition: pl.Expr) -> pl.DataFrame:
        """Return the rows for which a condition is true."""
        return self._where(condition, lambda run: True)

    def _where(self, condition: pl.Expr, may_have: Callable[[Run], bool]) -> pl.DataFrame:
        wanted = ~pl.col(GONE) & condition
        fresh = self.fresh.filter(wanted) if self.fresh.height else self.fresh
        parts = [fresh.select(self._columns)]
        for number in reversed(range(len(self.runs))):
            if not may_have(self.runs[number]):
                continue
            rows = self.runs[number].frame.filter(wanted).select(self._columns)
            if rows.height:
                rows = self._not_in(rows, self.runs[number + 1 :])
            parts.append(rows)
        some = [part for part in parts if part.height]
        return pl.concat(some) if some else parts[0]

    def put(self, rows: pl.DataFrame) -> Self:
        """Insert rows, replacing those with the same key.

        If rows have their hashes, as returned by `match`, the hashes are not computed again.
        """
        if not rows.height:
            return self
        if HASH in rows.columns and not self.fresh.height:
            hashes = rows.get_column(HASH).rechunk().to_numpy()
            if (hashes[1:] < hashes[:-1]).any():
                rows = rows.sort(HASH)
                hashes = rows.get_column(HASH).to_numpy()
            fresh = self._cast(rows.select(self._columns)).with_columns(pl.lit(False).alias(GONE))
            return type(self)(self.key, self.by, fresh, self.runs, hashes)
        rows = self._cast(rows.select(self._columns)).with_columns(pl.lit(False).alias(GONE))
        return self._with(rows)

    def drop(self, keys: pl.DataFrame) -> Self:
        """Delete the rows whose key is in `keys`, which may have only some of the key's columns."""
        return self.remove(self.get(keys))

    def remove(self, rows: pl.DataFrame) -> Self:
        """Delete rows that were read from this table; unlike `drop`, this does not look for them again."""
        if not rows.height:
            return self
        if not self.runs:
            return type(self)(self.key, self.by, _anti(self.fresh, rows.select(self.key)))
        tombstones = rows.select(self.key).with_columns(
            *(pl.lit(None, kind).alias(name) for name, kind in self.schema.items() if name not in self.key),
            pl.lit(True).alias(GONE),
        )
        return self._with(tombstones.select(self.fresh.columns))

    def sealed(self) -> Self:
        """Return a table with the same rows, with all changes in runs."""
        if not self.fresh.height:
            return self
        if self.hashes is None:
            newest = Run.of(self.fresh, self.by, self.rest)
        else:
            newest = Run.ordered(self.fresh.with_columns(pl.Series(HASH, self.hashes)))
        runs = [*self.runs, newest]
        while len(runs) > 1 and len(runs[-2]) <= GROWTH * len(runs[-1]):
            newer, older = runs.pop(), runs.pop()
            runs.append(_merge(self, older, newer, first=not runs))
        return self.of_runs([run for run in runs if len(run)])

    def of_runs(self, runs: Sequence[Run]) -> Self:
        """Return a table with the same schema that consists of these runs, oldest first."""
        return type(self)(self.key, self.by, self.fresh.clear(), tuple(runs))

    def __len__(self) -> int:
        return self.rows.height

    # -- internal ---------------------------------------------------------------------------------------------

    @property
    def _columns(self) -> list[str]:
        return [name for name in self.fresh.columns if name != GONE]

    def _cast(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Cast rows to the table's types, because the hash of a number depends on its width."""
        kinds = self.fresh.schema
        wrong = {name: kinds[name] for name, kind in rows.schema.items() if kind != kinds[name]}
        return rows.cast(wrong) if wrong else rows  # type: ignore[arg-type]

    def _find(self, keys: pl.DataFrame, runs: Sequence[Run], fresh: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Yield the rows of each part that have these keys, newest part first."""
        columns = self.fresh.columns
        if fresh.height:
            yield _semi(fresh, keys)
        indexed = bool(self.by) and set(self.by) <= set(keys.columns)
        needles = _Needles(keys, self.by, self.rest) if indexed and runs else None
        for run in reversed(runs):
            found = run.find(needles) if needles is not None else _semi(run.frame, keys)
            yield found.select(columns)

    def _not_in(self, rows: pl.DataFrame, newer: Sequence[Run]) -> pl.DataFrame:
        """Return the rows that have not been replaced in newer parts."""
        keys = rows.select(self.key)
        replaced = [part.select(self.key) for part in self._find(keys, newer, self.fresh) if part.height]
        return _anti(rows, pl.concat(replaced)) if replaced else rows

    def _with(self, changes: pl.DataFrame) -> Self:
        kept = _anti(self.fresh, changes.select(self.key)) if self.fresh.height else self.fresh
        fresh = pl.concat([kept, changes]) if kept.height else changes
        return type(self)(self.key, self.by, fresh, self.runs)


def _newest(parts: Sequence[pl.DataFrame], key: Sequence[str]) -> pl.DataFrame:
    """Return one row for each key, from the first part that has it; a part has a key only once."""
    if len(parts) == 1:
        return parts[0]
    rows = pl.concat(parts)
    return rows.unique(key, keep="first", maintain_order=True) if key else rows.head(1)


def _merge(table: Table, older: Run, newer: Run, *, first: bool) -> Run:
    """Merge two runs; tombstones are dropped if there is no older run (`first`)."""
    kept, added = _not_replaced(table, older, newer), np.arange(len(newer))
    if first and newer.has_tombstones:
        added = np.flatnonzero(~newer.frame.get_column(GONE).to_numpy())
    if first and older.has_tombstones:
        kept = kept[~older.frame.get_column(GONE).to_numpy()[kept]]
    hashes = np.concatenate([older.hashes[kept], newer.hashes[added]])
    # A stable sort of two sorted halves is a merge. The rows are then copied once.
    order = np.argsort(hashes, kind="stable")
    at = np.concatenate([kept, added + len(older)])[order]
    both = pl.concat([older.frame, newer.frame], rechunk=True)[at]
    return Run(both, hashes[order], older.distinct and newer.distinct and _all_differ(hashes[order]))


def _not_replaced(table: Table, older: Run, newer: Run) -> npt.NDArray[np.intp]:
    """Return the indexes of the rows of a run whose key is not in a newer run."""
    keys = newer.frame.select(table.key)
    if table.by:
        needles = _Needles.ordered(keys, newer.hashes) if newer.distinct else _Needles(keys, table.by, table.rest)
        at, found = older.positions(needles)
        # Different keys can have equal hashes: then join by key.
        if found is not None and _equal(older.frame.select(table.key)[at], needles.keys.filter(found)).all():
            keep = np.ones(len(older), dtype=np.bool_)
            keep[at] = False
            return np.flatnonzero(keep)
    numbered = older.frame.select(table.key).with_row_index("_at")
    return _anti(numbered, keys).get_column("_at").to_numpy().astype(np.intp)


def _all_differ(hashes: Hashes) -> bool:
    return not bool((hashes[1:] == hashes[:-1]).any())


def _equal(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.Series:
    """Return True for each row that equals the key with the same index in all columns of the keys."""
    same = pl.Series([True]).new_from_index(0, rows.height)
    for name in keys.columns:
        same = same & rows.get_column(name).eq_missing(keys.get_column(name))
    return same


def _semi(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    return _join(rows, keys, "semi") if keys.width else rows


def _anti(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    return _join(rows, keys, "anti") if keys.width else rows.clear()


def _join(rows: pl.DataFrame, keys: pl.DataFrame, how: Any) -> pl.DataFrame:
    return rows.join(keys, on=keys.columns, how=how, nulls_equal=True, maintain_order="left")
