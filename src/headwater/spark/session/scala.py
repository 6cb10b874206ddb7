"""Reads Scala's collections, which Spark's plans consist of."""

from typing import Any


def items(found: Any) -> list[Any]:
    """Return the items of a sequence of Scala's."""
    return [found.apply(number) for number in range(found.size())]
