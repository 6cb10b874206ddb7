"""Sums and means: the types of Spark, exact for integers and decimals; an overflow raises an error.

A sum is computed with Polars' own types, which wrap around silently. So the greatest possible total of a frame is
estimated first, which costs little; only if it could overflow, the sum is computed in wider numbers and checked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from headwater.errors import InvalidError
from headwater.process.aggregates.aggregates import FoldInput, Of

SUM, COUNT = "sum", "n"
_HIGH = "high"
"""The column of the upper halves of decimals, which exists only while a wide sum is computed."""

_HALF = 10**19
_DIGITS = 38
_ROWS_MAX = 10**9
"""No frame has more rows; Polars' indexes have 32 bits."""

_BIG, _SCALE = 2.0**960, 2.0**-64
"""Floats from `_BIG` on are summed separately, multiplied by `_SCALE`, so that no total becomes infinite."""


class ExactSum(Protocol):
    """A fold whose sum can overflow, and is then computed again in wider numbers and checked."""

    @property
    def limit(self) -> int:
        """The least magnitude of a total, as an integer, that does not fit its type."""
        ...

    @property
    def is_safe(self) -> bool:
        """True if the sum of a frame's rows fits, whatever the values."""
        ...

    def wide_partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        """Return the columns of a partial result as wide numbers."""
        ...

    def wide_merge(self, of: Of) -> Mapping[str, pl.Expr]:
        """Return the columns of several partial results, merged, as wide numbers."""
        ...

    def narrow(self, groups: pl.DataFrame, of: "Columns", what: str) -> pl.DataFrame:
        """Convert wide columns to those of a partial result; raise an InvalidError if a total does not fit."""
        ...


class Columns(Protocol):
    """A function that returns the full name of a partial column."""

    def __call__(self, name: str) -> str: ...


@dataclass(frozen=True, slots=True)
class IntegerSum:
    """The sum of integers, as bigint."""

    dtype: pl.DataType

    @property
    def limit(self) -> int:
        return 2**63

    @property
    def is_safe(self) -> bool:
        return self.dtype not in (pl.Int64, pl.UInt64, pl.UInt32)

    def partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        return _weighted(row.value.cast(pl.Int64), row)

    def wide_partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        return _weighted(row.value.cast(pl.Int128), row)

    def merge(self, of: Of) -> Mapping[str, pl.Expr]:
        return {SUM: of(SUM).sum(), COUNT: of(COUNT).sum()}

    def wide_merge(self, of: Of) -> Mapping[str, pl.Expr]:
        return {SUM: of(SUM).cast(pl.Int128).sum(), COUNT: of(COUNT).sum()}

    def narrow(self, groups: pl.DataFrame, of: Columns, what: str) -> pl.DataFrame:
        least, greatest = groups.select(low=pl.col(of(SUM)).min(), high=pl.col(of(SUM)).max()).row(0)
        if least is not None and not -self.limit <= least <= greatest < self.limit:
            raise InvalidError(
                f"{what} does not fit a bigint (-2^63 to 2^63 - 1); cast the column to decimal(38,0) or double "
                "first"
            )
        return groups.with_columns(pl.col(of(SUM)).cast(pl.Int64))

    def result(self, of: Of) -> pl.Expr:
        return pl.when(of(COUNT) > 0).then(of(SUM))


@dataclass(frozen=True, slots=True)
class IntegerMean:
    """The mean of integers, as double.

    Over changes the sum is exact: a rounding error would stay when the rows that caused it have been retracted.
    """

    changes: bool

    def partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        if not self.changes:
            return _weighted(row.value.cast(pl.Float64), row)
        columns = _weighted(row.value.cast(pl.Int128), row)
        # The sum of 2^63 integers has 126 bits, which always fit.
        return {**columns, SUM: columns[SUM].reinterpret(dtype=pl.Decimal(_DIGITS, 0))}

    def merge(self, of: Of) -> Mapping[str, pl.Expr]:
        return {SUM: of(SUM).sum(), COUNT: of(COUNT).sum()}

    def result(self, of: Of) -> pl.Expr:
        return pl.when(of(COUNT) > 0).then(of(SUM).cast(pl.Float64) / of(COUNT))


@dataclass(frozen=True, slots=True)
class DecimalSum:
    """The sum of decimals (p, s) as decimal (p + 10, s), or their mean as decimal (p + 4, s + 4), as in Spark."""

    precision: int
    scale: int
    is_mean: bool

    @property
    def limit(self) -> int:
        return int(10 ** min(_DIGITS, self.precision + 10))

    @property
    def is_safe(self) -> bool:
        return bool(10**self.precision * _ROWS_MAX < self.limit)

    @property
    def _total(self) -> pl.DataType:
        return pl.Decimal(_DIGITS, self.scale)

    def partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        columns = _weighted(row.value.to_physical(), row)
        return {**columns, SUM: columns[SUM].reinterpret(dtype=self._total)}

    def wide_partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        low, high = _halves(row.value)
        return {**_weighted(low, row), _HIGH: _weighted(high, row)[SUM]}

    def merge(self, of: Of) -> Mapping[str, pl.Expr]:
        total = of(SUM).to_physical().sum().reinterpret(dtype=self._total)
        return {SUM: total, COUNT: of(COUNT).sum()}

    def wide_merge(self, of: Of) -> Mapping[str, pl.Expr]:
        low, high = _halves(of(SUM))
        return {SUM: low.sum(), COUNT: of(COUNT).sum(), _HIGH: high.sum()}

    def narrow(self, groups: pl.DataFrame, of: Columns, what: str) -> pl.DataFrame:
        pairs = groups.select(of(_HIGH), of(SUM)).iter_rows()
        totals = [high * _HALF + low for high, low in pairs]
        if totals and not -self.limit < min(totals) <= max(totals) < self.limit:
            kind = f"decimal({min(_DIGITS, self.precision + 10)},{self.scale})"
            raise InvalidError(
                f"{what} does not fit its type {kind}; cast the column to a decimal with fewer digits after the "
                "point, or to double, first"
            )
        total = pl.Series(of(SUM), totals, dtype=pl.Int128).reinterpret(dtype=self._total)
        return groups.drop(of(_HIGH)).with_columns(total)

    def result(self, of: Of) -> pl.Expr:
        if self.is_mean:
            return self._mean(of)
        kind = pl.Decimal(min(_DIGITS, self.precision + 10), self.scale)
        return pl.when(of(COUNT) > 0).then(of(SUM)).cast(kind)

    def _mean(self, of: Of) -> pl.Expr:
        """Divide with the rounding of Spark: half up."""
        kind = pl.Decimal(min(_DIGITS, self.precision + 4), min(_DIGITS, self.scale + 4))
        factor = 10 ** (min(_DIGITS, self.scale + 4) - self.scale)
        total, count = of(SUM).to_physical(), pl.when(of(COUNT) > 0).then(of(COUNT)).cast(pl.Int128)
        size = pl.when(total < 0).then(total * -1).otherwise(total)
        whole = size // count
        if self.precision + 4 > _DIGITS:
            whole = whole.map_batches(lambda means: _checked(means, 10**_DIGITS // factor), return_dtype=pl.Int128)
        rest = size - whole * count
        mean = whole * factor + (rest * (2 * factor) + count) // (count * 2)
        return pl.when(total < 0).then(mean * -1).otherwise(mean).reinterpret(dtype=kind)


@dataclass(frozen=True, slots=True)
class FloatSum:
    """The sum or mean of floats that are never retracted, as double."""

    is_mean: bool

    def partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        return _weighted(row.value.cast(pl.Float64), row)

    def merge(self, of: Of) -> Mapping[str, pl.Expr]:
        return {SUM: of(SUM).sum(), COUNT: of(COUNT).sum()}

    def result(self, of: Of) -> pl.Expr:
        return pl.when(of(COUNT) > 0).then(of(SUM) / of(COUNT) if self.is_mean else of(SUM))


@dataclass(frozen=True, slots=True)
class FloatSumOfChanges:
    """The sum or mean of floats that may be retracted, as double.

    NaN and infinities are counted and not summed, because they could not be subtracted again. Neither could an
    infinite total of finite values, so the greatest values are scaled down in a sum of their own.
    """

    is_mean: bool

    def partial(self, row: FoldInput) -> Mapping[str, pl.Expr]:
        value = row.value.cast(pl.Float64)
        is_big = value.abs() >= _BIG
        small = pl.when(value.is_finite() & ~is_big).then(value).otherwise(0.0)
        big = pl.when(value.is_finite() & is_big).then(value * _SCALE).otherwise(0.0)
        counts = {"nan": value.is_nan(), "up": value == float("inf"), "down": value == float("-inf")}
        return {
            **_weighted(small, row),
            COUNT: row.weight.filter(value.is_not_null()).sum(),
            "big": (big * row.weight).sum(),
            **{name: row.weight.filter(matches).sum() for name, matches in counts.items()},
        }

    def merge(self, of: Of) -> Mapping[str, pl.Expr]:
        return {name: of(name).sum() for name in (SUM, COUNT, "big", "nan", "up", "down")}

    def result(self, of: Of) -> pl.Expr:
        nan, up, down = (of(name) > 0 for name in ("nan", "up", "down"))
        total = of(SUM) + of("big") / _SCALE
        total = (
            pl.when(nan | (up & down))
            .then(float("nan"))
            .when(up)
            .then(float("inf"))
            .when(down)
            .then(float("-inf"))
            .otherwise(total)
        )
        return pl.when(of(COUNT) > 0).then(total / of(COUNT) if self.is_mean else total)


Sum = IntegerSum | IntegerMean | DecimalSum | FloatSum | FloatSumOfChanges


def sum_of(dtype: pl.DataType, *, is_mean: bool, changes: bool) -> Sum:
    """Return the fold for the sum or mean of a column of numbers."""
    if isinstance(dtype, pl.Decimal):
        return DecimalSum(dtype.precision or _DIGITS, dtype.scale, is_mean)
    if dtype.is_integer():
        return IntegerMean(changes) if is_mean else IntegerSum(dtype)
    return FloatSumOfChanges(is_mean) if changes else FloatSum(is_mean)


def could_overflow(fold: ExactSum, values: pl.Series, weights: pl.Series | None = None) -> bool:
    """Return True if the sum of some of these values could be too great for its type."""
    often = 1 if weights is None else _magnitude(weights)
    return _magnitude(values.to_physical()) * len(values) * often >= fold.limit


def _magnitude(values: pl.Series) -> int:
    ends = (values.min(), values.max())
    return max((abs(int(end)) for end in ends if end is not None), default=0)  # type: ignore[arg-type]


def _weighted(value: pl.Expr, row: FoldInput) -> dict[str, pl.Expr]:
    """Return the sum of values and their number, each as often as its row was inserted."""
    if not row.changes:
        return {SUM: value.sum(), COUNT: value.count().cast(pl.Int64)}
    weights = row.weight.filter(row.value.is_not_null())
    return {SUM: (value * row.weight).sum(), COUNT: weights.sum()}


def _halves(value: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Return the lower and upper digits of a decimal; sums of either fit."""
    half = pl.lit(_HALF, pl.Int128)
    return value.to_physical() % half, value.to_physical() // half


def _checked(means: pl.Series, limit: int) -> pl.Series:
    if _magnitude(means) >= limit:
        raise InvalidError(
            "the mean of decimals does not fit a decimal with 38 digits, four more of them after the point; cast "
            "the column to a decimal with fewer digits after the point, or to double, first"
        )
    return means
