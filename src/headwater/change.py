"""Change: the form in which all results are passed on (a view's delta, a changelog entry, a captured row).

A table is the sum of its changes: applying them in the order of `position` yields the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

CHANGE = "_change"
"""Name of the column that marks each row as a change: 1 inserts the row, -1 retracts it."""


class Op(StrEnum):
    """The kind of a change; the letters are Debezium's."""

    INSERT = "c"
    UPDATE = "u"
    DELETE = "d"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row before and after a change. `position` increases by one with each change of a view."""

    op: Op
    key: tuple[Any, ...]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    position: int
