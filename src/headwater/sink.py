"""The contract of sinks: how a query writes its results to a destination outside the app.

A sink is a plain value that a user declares. Opening it for a query returns a writer:

    writer = sink.open(stream)
    writer.write(batch)         # False: the batch is already written
    writer.close()

**Batches.** Results arrive in numbered batches. After a crash, a batch is written again, with the same number and
the same rows. A sink that stores the number together with the rows, in one atomic step, can recognise and skip a
batch that it already has. That is how a sink is exactly once; a sink that cannot store the number declares
`Guarantee.AT_LEAST_ONCE`.

**Fencing.** Two pipelines of the same name can be alive at the same time, for example after a network partition.
So `open` fences every writer of the query that was opened before: their `write` raises a `ConflictError`.

**Runs.** A run is the lifetime of one checkpoint. A new run starts from the first record and delivers all results
again. Its first batch replaces the rows of the previous run, in the same atomic step. A sink that cannot replace
rows (a log keeps every record) raises a `ConflictError` that names the alternatives. `Stream.continues` names a
run whose rows are kept instead.

A replaced run must not write again: if a batch from a copy of its old checkpoint were taken for a new run, it
would replace all rows. So a sink remembers the runs that were replaced, and refuses their batches with a
`ConflictError`.

**Errors.** The error that a writer raises decides what happens to the query:

    UnavailableError    the destination cannot be reached or has no space: the query retries until it succeeds
    RefusedError        the destination does not accept a row: after a few attempts, the records that produced such
                        rows are found and sent to the dead letters. The error names the rows, or else the writer
                        implements `rehearse`.
    any other error     the query fails with its message

`headwater.testing.SinkContract` tests this contract; every sink of Headwater passes it, and so can yours.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

REFUSALS_MAX = 100
"""If more rows of a batch are refused, or fail in a function, the fault is not in single rows: the query fails."""


class Guarantee(StrEnum):
    """The number of times that a batch is written to the destination, including after crashes."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The properties of a query that a sink needs to open.

    With a `key`, a row replaces the earlier row of the same key; without one, rows are appended.
    """

    query: str
    """Identifies the query among all that write to the same destination, as `app.function`."""
    schema: "pa.Schema"
    """The columns of the rows."""
    key: tuple[str, ...] = ()
    changes: bool = False
    """True if the query retracts rows; batches then have `signs`."""
    servers: str = ""
    """The address of the app's log, for sinks that write there."""
    continues: str | None = None
    """An earlier run whose rows are kept: if it was the last one to write, the new run does not replace them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of one micro-batch.

    `signs` has 1 for each row that is inserted and -1 for each row that is retracted; it is None if the query
    never retracts rows. The rows of a key are in the order in which they changed.
    """

    run: str
    number: int
    rows: "pa.Table"
    signs: "pa.Array | None" = None


class Writer(Protocol):
    """An open sink, used by one query and one thread."""

    def write(self, batch: Batch) -> bool:
        """Write the batch and its number in one atomic step; return False if the batch is already written.

        Raises ConflictError if another writer of the query was opened since, or if the batch's run was replaced.
        """

    def close(self) -> None:
        """Release connections; batches that were written stay."""


@runtime_checkable
class Rehearsing(Protocol):
    """A writer that can try a batch without writing it."""

    def rehearse(self, batch: Batch) -> None:
        """Write the batch and roll back before it is visible; raises the errors that `write` would raise."""


class Sink(Protocol):
    """A destination for results, as a user declares it: a plain value that opens nothing by itself."""

    @property
    def guarantee(self) -> Guarantee: ...

    def open(self, stream: Stream) -> Writer:
        """Prepare the destination, check that the stream fits, and fence earlier writers of the query.

        Raises InvalidError if the destination cannot hold the stream, and ConflictError if it belongs to another
        query.
        """
