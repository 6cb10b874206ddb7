"""Change: the one shape in which results move (a view's delta, a changelog entry, a captured row).

A table is the sum of its changes: apply them in the order of `position` and the table appears.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

CHANGE = "_change"
"""Name of the column that marks each row as a change: 1 inserts the row, -1 retracts it."""


class Op(StrEnum):
    """What happened to the row; the letters are Debezium's."""

    INSERT = "c"
    UPDATE = "u"
    DELETE = "d"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row before and after; `position` grows by one with each change of a view and never repeats."""

    op: Op
    key: tuple[Any, ...]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    position: int
