"""The relation that all queries read: its columns, and generated rows with unusual values."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import polars as pl

from headwater.change import CHANGE

SECOND = 1_000_000
SPAN = 120 * SECOND
"""All events of a query are within this time, so a delay of as much makes none of them late."""

END, ALONE = "~end", "~alone"
"""The groups of the rows that close all windows on Spark, with and without a row of the other input; results of
these groups are not compared."""

COLUMNS: dict[str, tuple[str, pl.DataType]] = {
    "id": ("bigint", pl.Int64()),
    "k": ("string", pl.String()),
    "v": ("bigint", pl.Int64()),
    "h": ("bigint", pl.Int64()),
    "x": ("double", pl.Float64()),
    "d": ("decimal(20,4)", pl.Decimal(20, 4)),
    "s": ("struct<a:bigint,b:string>", pl.Struct({"a": pl.Int64(), "b": pl.String()})),
    "l": ("array<bigint>", pl.List(pl.Int64())),
    "ts": ("timestamp", pl.Int64()),
}
"""Name, Spark's type and Polars' type; kernels get event times as microseconds."""

OTHER: dict[str, tuple[str, pl.DataType]] = {
    "k": ("string", pl.String()),
    "w": ("bigint", pl.Int64()),
    "oid": ("bigint", pl.Int64()),
    "ot": ("timestamp", pl.Int64()),
}
"""The columns of the other input of joins and unions."""

Row = dict[str, Any]

_KEYS = ("a", "b", "ä", "", "a\x00b", None)
_HUGE = (2**62, 2**63 - 1, -(2**63), -(2**62), 1, 0, -1)
_FLOATS = (0.0, -0.0, 1.5, -2.25, 1e300, -1e300, 5e-324, math.inf, -math.inf, math.nan)
BASES = (0, -(10**15), 1_700_000_000 * SECOND, -62_135_000_000 * SECOND, 253_402_300_900 * SECOND)
"""Times around which events are generated: 1970, 1938, 2023, the year 1, the year 10000."""
GLOBAL_BASES = BASES[:4]
"""Times within Global's window, which ends with the year 9999: the event time of its panes."""


def polars_schema(columns: dict[str, tuple[str, pl.DataType]]) -> pl.Schema:
    return pl.Schema({name: kind for name, (_, kind) in columns.items()})


def spark_ddl(columns: dict[str, tuple[str, pl.DataType]]) -> str:
    return ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())


@dataclass(frozen=True, slots=True)
class Data:
    """The input of a query: changes of the relation (a row and a weight) and rows of the other input."""

    changes: tuple[tuple[Row, int], ...]
    other: tuple[Row, ...]
    has_retractions: bool
    base: int

    @property
    def final(self) -> list[Row]:
        """The rows that remain when all changes are applied."""
        kept: dict[int, Row] = {}
        for row, weight in self.changes:
            if weight > 0:
                kept[row["id"]] = row
            else:
                del kept[row["id"]]
        return list(kept.values())

    def frame(self, changes: Sequence[tuple[Row, int]]) -> pl.DataFrame:
        """Return changes as a frame for a kernel, with weights if the input has retractions."""
        frame = pl.DataFrame([row for row, _ in changes], schema=polars_schema(COLUMNS), orient="row")
        if not self.has_retractions:
            return frame
        return frame.with_columns(pl.Series(CHANGE, [weight for _, weight in changes], pl.Int8))

    def other_frame(self, rows: Sequence[Row]) -> pl.DataFrame:
        return pl.DataFrame(list(rows), schema=polars_schema(OTHER), orient="row")


def generate(
    chance: random.Random, *, size: int = 40, retracts: bool = False, unusual: bool = True, base: int = 0
) -> Data:
    """Generate an input; `unusual` values are NaN, infinities, nulls and integers near the limits."""
    changes: list[tuple[Row, int]] = []
    present: list[Row] = []
    for number in range(size):
        if retracts and present and chance.random() < 0.5:
            changes.append((present.pop(chance.randrange(len(present))), -1))
        row = _row(chance, number, base, unusual=unusual)
        changes.append((row, 1))
        present.append(row)
    others: list[Row] = []
    for number in range(size // 3):
        # A history has one version for each key and time.
        at = base + (number * 7 % 100) * SECOND + number
        others.append({"k": chance.choice(_KEYS), "w": chance.randrange(5), "oid": number, "ot": at})
    return Data(tuple(changes), tuple(others), retracts, base)


def _row(chance: random.Random, number: int, base: int, *, unusual: bool) -> Row:
    def maybe(value: Any) -> Any:
        return None if unusual and chance.random() < 0.15 else value

    v = chance.randrange(-5, 10)
    return {
        "id": number,
        "k": chance.choice(_KEYS) if unusual else chance.choice(_KEYS[:3]),
        "v": maybe(v),
        "h": maybe(chance.choice(_HUGE) if unusual and chance.random() < 0.2 else v),
        "x": maybe(chance.choice(_FLOATS) if unusual and chance.random() < 0.5 else v / 4),
        "d": maybe(Decimal(chance.randrange(-(10**6), 10**6)).scaleb(-chance.randrange(5))),
        "s": maybe({"a": maybe(v), "b": chance.choice("xyz")}),
        "l": maybe([chance.randrange(3) for _ in range(chance.randrange(3))]),
        "ts": base + chance.randrange(100) * SECOND + (chance.choice((0, 0, 1, SECOND - 1)) if unusual else 0),
    }
