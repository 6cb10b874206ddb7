"""What an operator finds around it while a query's function is called: where to leave what it tells.

A view's function is the user's and passes nothing on, so this travels beside it. Outside of a pipeline (in a
notebook, say) there is nothing around, and late rows are counted only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from headwater.spark.kernels.spool import Spool


@dataclass(slots=True)
class QueryContext:
    """Counts the operators, so that each has a name that is the same whenever the function is called."""

    spool: Spool | None
    operators: int = 0
    meanings: list[dict[str, Any]] = field(default_factory=list)
    """What the operators compute, in the order in which they were called."""

    def name_operator(self, kind: str) -> str:
        self.operators += 1
        return f"{kind}-{self.operators - 1}"


_current: ContextVar[QueryContext | None] = ContextVar("query_context", default=None)


@contextmanager
def query_context(spool: Spool | None) -> Iterator[QueryContext]:
    """Call operators inside this block, and they leave what they have to tell in the spool."""
    around = QueryContext(spool)
    token = _current.set(around)
    try:
        yield around
    finally:
        _current.reset(token)


def current_query() -> QueryContext:
    return _current.get() or QueryContext(None)
