"""Sink: the contract between a query and the place outside where its results go. Exactly once, or it says so.

Results come in numbered batches. After a crash a batch comes again, with the same number and the same rows; so a
sink that keeps the number with the rows, in one atomic step, can tell what it has. Two pipelines of one name can
be alive at a time, one of them a zombie; so who opens a sink fences all who opened it before.

    writer = sink.open(stream)
    writer.write(batch)         # False: it was there already
    writer.close()

A run is the life of one checkpoint. A new run starts from the first record again and gives everything once more; a
sink that can takes the new run's first batch as a fresh start and drops what was there, in the same step. One that
cannot (a log forgets nothing) refuses with a `ConflictError` that names the ways out. A run that was replaced is
over: were its next batch, from a copy of the old checkpoint, taken as a fresh start too, all before it would be
lost; so a sink remembers the runs it had, and refuses these with a `ConflictError`.

`headwater.testing.SinkContract` has the contract as tests, for every sink.

An `UnavailableError` says that the place is away: the query waits for it, however long. A `RefusedError` says that
the place does not take a row of the batch; a writer that raises it can also `rehearse`, or names the rows in it.
So, after a few tries, the records behind such rows are found, and go to the dead letters. Every other error is the
query's: given up with its message.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

REFUSALS_MAX = 100
"""Of a batch: where a place refuses more rows, or a function fails on more, it is not the rows that are wrong."""


class Guarantee(StrEnum):
    """What a sink promises about a batch that was written, whatever was killed on the way."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What a query delivers.

    `query` names it among all that write to the same place (`app.function`). With a `key` a row replaces the one
    of the same key; without, rows are appended. `changes` says that rows can be taken back. `servers` is the
    address of the app's log, for a sink that writes there. `continues` names a run before this one whose rows
    stay: where that one was the last to write, the new run is no fresh start.
    """

    query: str
    schema: "pa.Schema"
    key: tuple[str, ...] = ()
    changes: bool = False
    servers: str = ""
    continues: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch's rows; `signs` has 1 for a row that is put and -1 for one that is taken back.

    Rows of a key are in the order in which they happened. `signs` is None where nothing is ever taken back.
    """

    run: str
    number: int
    rows: "pa.Table"
    signs: "pa.Array | None" = None


class Writer(Protocol):
    """An opened sink, for one query and one thread."""

    def write(self, batch: Batch) -> bool:
        """Put the batch where it belongs, with its number; False if it is there already.

        ConflictError if another writer of the same query was opened since.
        """

    def close(self) -> None:
        """Let go of connections; what was written stays."""


@runtime_checkable
class Rehearsing(Protocol):
    """A writer that can try rows out."""

    def rehearse(self, batch: Batch) -> None:
        """Write the batch and take it back before anybody sees it; raises what `write` would."""


class Sink(Protocol):
    """A place for results, as a user declares it: a plain value that opens nothing by itself."""

    @property
    def guarantee(self) -> Guarantee: ...

    def open(self, stream: Stream) -> Writer:
        """Make the place ready, check that the stream fits, and fence every writer of the query opened before."""
