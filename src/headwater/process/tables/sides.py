"""Two inputs as one: the rows of both sides of a join in one frame, with a column for the side.

A runner runs a kernel over one stream of rows. The rows of a join have the columns `_side` (0 left, 1 right), the
values of the join's keys, the row itself in `_left` or `_right` (the other is null), its event time in
microseconds, and `_change`. So equal keys of both sides are in the same bucket, and runners need no special case
for two inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import polars as pl

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.changes import CHANGE_TYPE, ROW, join_names, with_weights
from headwater.process.kernel import Now

SIDE, LEFT, RIGHT, TIME = "_side", "_left", "_right", "_time"
SIDES = (LEFT, RIGHT)

BOTH_SIDES = pl.struct(pl.col(LEFT).alias("left"), pl.col(RIGHT).alias("right"))
"""A row of a join's input as the late ledger contains it."""


class How(StrEnum):
    """The kind of a join, which decides which rows it emits."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"

    @property
    def has_pairs(self) -> bool:
        """True if the output contains columns of both sides."""
        return self not in (How.SEMI, How.ANTI)

    def keeps(self, side: str) -> bool:
        """Return True if unmatched rows of this side are emitted."""
        others = {LEFT: (How.LEFT, How.FULL, How.ANTI), RIGHT: (How.RIGHT, How.FULL)}
        return self in others[side]


def read_how(how: str, possible: Sequence[How] = tuple(How)) -> How:
    """Parse the kind of a join; Spark's names are accepted as well."""
    aliases = {"outer": "full", "left_semi": "semi", "left_anti": "anti"}
    try:
        found = How(aliases.get(how, how))
    except ValueError:
        raise InvalidError(f"join: how={how!r} is unknown; use one of {join_names(list(How))}") from None
    if found not in possible:
        raise InvalidError(f"join: how={how!r} is not possible here; use one of {join_names(possible)}")
    return found


@dataclass(frozen=True, slots=True)
class Sides:
    """The two inputs of a join: the pairs of columns that must be equal, and the output. Created by `of`."""

    left: pl.Schema
    right: pl.Schema
    pairs: tuple[tuple[str, str], ...]
    how: How

    @classmethod
    def of(
        cls, on: str | Sequence[str] | Mapping[str, str], how: How, left: pl.Schema, right: pl.Schema
    ) -> "Sides":
        """Check that rows of these schemas can be joined.

        `on` names columns that both sides have, or maps columns of the left side to columns of the right side. A
        key with the same name on both sides is in the output once; any other column name must be on one side only.
        """
        pairs = pairs_of(on)
        left, right = (pl.Schema({n: t for n, t in side.items() if n != CHANGE}) for side in (left, right))
        for l_name, r_name in pairs:
            for name, schema, which in ((l_name, left, "left"), (r_name, right, "right")):
                if name not in schema:
                    raise InvalidError(
                        f"join: the {which} side has no column {name!r}; it has: {join_names(list(schema))}"
                    )
            key_type(l_name, left[l_name], r_name, right[r_name])
        sides = cls(left, right, pairs, how)
        clash = [name for name in sides.right_columns if name in left]
        if clash and how.has_pairs:
            raise InvalidError(
                f"join: both sides have a column {join_names(clash)}; rename it on one side, "
                f"such as .withColumnRenamed({clash[0]!r}, {'right_' + clash[0]!r})"
            )
        return sides

    @property
    def keys(self) -> list[str]:
        return [f"_key{number}" for number in range(len(self.pairs))]

    @property
    def right_columns(self) -> list[str]:
        """The columns of the right side, without keys that have the same name on the left side."""
        shared = {r_name for l_name, r_name in self.pairs if l_name == r_name}
        return [name for name in self.right if name not in shared]

    @property
    def schema(self) -> pl.Schema:
        """The schema of a kernel's input: rows of both sides."""
        kinds = [key_type(a, self.left[a], b, self.right[b]) for a, b in self.pairs]
        return pl.Schema(
            {
                SIDE: pl.Int8(),
                **dict(zip(self.keys, kinds, strict=True)),
                LEFT: pl.Struct(self.left),
                RIGHT: pl.Struct(self.right),
                TIME: pl.Int64(),
                CHANGE: CHANGE_TYPE,
            }
        )

    @property
    def output_schema(self) -> pl.Schema:
        right = {name: self.right[name] for name in self.right_columns} if self.how.has_pairs else {}
        return pl.Schema({**self.left, **right, CHANGE: CHANGE_TYPE})

    def rows(self, side: str, rows: pl.DataFrame, time: str | None = None) -> pl.DataFrame:
        """Convert rows of one side to a kernel's input."""
        schema, number = (self.left, 0) if side == LEFT else (self.right, 1)
        return rows.select(
            pl.lit(number).alias(SIDE),
            *(pl.col(pair[number]).alias(key) for key, pair in zip(self.keys, self.pairs, strict=True)),
            *(self._struct(name, schema if name == side else None) for name in SIDES),
            (pl.lit(None) if time is None else pl.col(time)).alias(TIME),
            (pl.col(CHANGE) if CHANGE in rows.columns else pl.lit(1)).alias(CHANGE),
        ).cast(self.schema)

    def without_unmatchable(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """Leave out the rows that can be in no result, and return their number.

        These have a null key, which equals nothing, and are of a side whose unmatched rows are not emitted.
        """
        kept = [number for number, side in enumerate(SIDES) if self.how.keeps(side)]
        matchable = rows.filter(pl.all_horizontal(pl.col(self.keys).is_not_null()) | pl.col(SIDE).is_in(kept))
        return matchable, rows.height - matchable.height

    def of_side(self, rows: pl.DataFrame, side: str) -> pl.DataFrame:
        """Return the rows of one side: keys, time, the row as a struct, and its weight."""
        mine = rows.filter(pl.col(SIDE) == SIDES.index(side))
        return with_weights(mine.select(*self.keys, TIME, pl.col(side).alias(ROW), CHANGE))

    def output(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Convert rows with `_left` and `_right`, one of which may be null, and a weight to the output."""
        shared = {name for pair in self.pairs for name in pair if pair[0] == pair[1]}
        chosen = []
        for name in self.left:
            value = pl.col(LEFT).struct.field(name)
            if name in shared and self.how.has_pairs:
                value = pl.coalesce(value, pl.col(RIGHT).struct.field(name))
            chosen.append(value.cast(self.left[name]).alias(name))
        if self.how.has_pairs:
            chosen += [pl.col(RIGHT).struct.field(name).alias(name) for name in self.right_columns]
        return rows.select(*chosen, CHANGE)

    def alone(self, rows: pl.DataFrame, side: str) -> pl.DataFrame:
        """Return rows of one side, which are in `_row`, with null for the other side."""
        other = RIGHT if side == LEFT else LEFT
        kind = pl.Struct(self.right if side == LEFT else self.left)
        both = {side: pl.col(ROW), other: pl.lit(None, kind)}
        return rows.select(*(both[name].alias(name) for name in SIDES), CHANGE)

    def _struct(self, name: str, schema: pl.Schema | None) -> pl.Expr:
        kind = pl.Struct(self.left if name == LEFT else self.right)
        return (pl.lit(None, kind) if schema is None else pl.struct(list(schema))).alias(name)


@dataclass(frozen=True, slots=True)
class TwoInputKernel:
    """The common part of all kernels with two inputs; see `kernel`."""

    sides: Sides

    @property
    def by(self) -> tuple[str, ...]:
        return tuple(self.sides.keys)

    @property
    def schema(self) -> pl.Schema:
        return self.sides.schema

    @property
    def output_schema(self) -> pl.Schema:
        return self.sides.output_schema

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        return rows


def pairs_of(on: str | Sequence[str] | Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Parse `on` to pairs of columns: left, right."""
    if isinstance(on, str):
        on = [on]
    pairs = tuple(on.items()) if isinstance(on, Mapping) else tuple((name, name) for name in on)
    if not pairs:
        raise InvalidError("join: `on` is empty; name the columns that must be equal on both sides")
    return pairs


def key_type(left: str, left_type: pl.DataType, right: str, right_type: pl.DataType) -> pl.DataType:
    """Return the type in which two keys are compared: equal types, or Int64 for integers of different sizes."""
    if left_type == right_type:
        return left_type
    if left_type.is_integer() and right_type.is_integer():
        return pl.Int64()
    raise InvalidError(
        f"join: {left!r} is {left_type} on the left and {right!r} is {right_type} on the right; "
        "cast one of them to the other's type"
    )
