"""Values as Spark orders and compares them, and the comparison of two results."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

_DIGITS = 9


def plain(value: Any) -> Any:
    """Return a value in a form that can be compared and hashed: NaN equals itself, -0.0 equals 0.0."""
    if isinstance(value, Mapping):
        return tuple(plain(part) for part in value.values())
    if isinstance(value, list | tuple):
        return tuple(plain(part) for part in value)
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return 0.0 if value == 0 else value
    return value.normalize() + 0 if isinstance(value, Decimal) else value


def order_key(value: Any) -> Any:
    """Return the key by which Spark sorts a value: nulls first, NaN last."""
    if value is None:
        return (0,)
    if isinstance(value, Mapping):
        return (1, *(order_key(part) for part in value.values()))
    if isinstance(value, list | tuple):
        return (1, *(order_key(part) for part in value))
    if isinstance(value, float):
        return (2, 0.0) if math.isnan(value) else (1, value)
    return (1, value)


@dataclass(frozen=True, slots=True)
class Approximate:
    """An expected number that may be wrong by `allowed`."""

    value: Any
    allowed: float

    def accepts(self, found: Any) -> bool:
        if isinstance(self.value, float) and not math.isfinite(self.value):
            return plain(found) == plain(self.value)
        return found is not None and abs(float(found) - float(self.value)) <= self.allowed


@dataclass(frozen=True, slots=True)
class OneOf:
    """Several expected values, any of which is right."""

    values: tuple[Any, ...]

    def accepts(self, found: Any) -> bool:
        return plain(found) in {plain(value) for value in self.values}


@dataclass(frozen=True, slots=True)
class InAnyOrder:
    """An expected list whose order is not defined."""

    values: tuple[Any, ...]

    def accepts(self, found: Any) -> bool:
        return found is not None and Counter(map(plain, found)) == Counter(map(plain, self.values))


def same(found: Any, expected: Any) -> bool:
    """Return whether a value is the expected one; floats may differ in the last digits."""
    if hasattr(expected, "accepts"):
        return bool(expected.accepts(found))
    if isinstance(expected, float) and isinstance(found, float) and math.isfinite(expected):
        return math.isclose(found, expected, rel_tol=10**-_DIGITS, abs_tol=1e-12)
    return bool(plain(found) == plain(expected))


def differences(found: Iterable[Any], expected: Iterable[Any], key: int) -> list[str]:
    """Compare two results as multisets of rows, whose first `key` columns are exact; return what differs."""
    ours, theirs = _by_key(found, key), _by_key(expected, key)
    problems = []
    for name in sorted({*ours, *theirs}, key=repr):
        rest = list(theirs.get(name, ()))
        for row in ours.get(name, ()):
            match = next((n for n, other in enumerate(rest) if all(map(same, row, other))), None)
            if match is None:
                problems.append(f"found    {name} {row}")
            else:
                del rest[match]
        problems += [f"expected {name} {row}" for row in rest]
    return problems


def _by_key(rows: Iterable[Any], key: int) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(plain(value) for value in row[:key]), []).append(tuple(row[key:]))
    return groups
