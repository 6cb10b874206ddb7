"""The context of an operator while a query's function is called: its spool, its name, its description.

A view's function is written by the user and passes no context on, so it is kept in a context variable. Outside a
pipeline (in a notebook, say) there is none, and late rows are only counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from headwater.spark.kernels.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from headwater.process.kernel import OperatorKernel
    from headwater.spark.kernels.times import Times


class OperatorDrafts(Protocol):
    """Takes the operators of a query that is only drawn, not run by Spark; see `lanes.blueprint`."""

    def add(
        self,
        rows: "DataFrame",
        kernel: "OperatorKernel",
        *,
        by: "Sequence[str]",
        times: "Times",
        times_in: "Mapping[str, str]",
        kind: str,
        hold: int,
    ) -> "DataFrame":
        """Add an operator, and return a DataFrame that stands for its output."""

    def leaves(self, rows: "DataFrame") -> frozenset[int]:
        """Return the topics and operators that rows come from."""


@dataclass(slots=True)
class QueryContext:
    """The query that operators are called for. It counts them, so that a repeated call gives the same names."""

    spool: Spool | None
    runs_kernels: bool = False
    """True if an operator of the query runs a kernel; then no other can be an aggregate of Spark's."""
    drafts: OperatorDrafts | None = None
    """Takes the operators, if the query is to run in a lane."""
    operators: int = 0
    clocks: int = 0
    """Number of operators that use the processing time of Spark's batches."""
    descriptions: list[dict[str, Any]] = field(default_factory=list)
    """Descriptions of the operators, in the order in which they were called; see `attach`."""

    def name_operator(self, kind: str) -> str:
        self.operators += 1
        return f"{kind}-{self.operators - 1}"


_current: ContextVar[QueryContext | None] = ContextVar("query_context", default=None)


@contextmanager
def query_context(
    spool: Spool | None, *, runs_kernels: bool = False, drafts: OperatorDrafts | None = None
) -> Iterator[QueryContext]:
    """Make operators that are called in this block write their reports to the spool, or go to `drafts`."""
    context = QueryContext(spool, runs_kernels, drafts)
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def current_query() -> QueryContext:
    return _current.get() or QueryContext(None)
