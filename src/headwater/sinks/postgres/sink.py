"""Postgres: a table in PostgreSQL as a sink, exactly once.

    hw.Postgres("postgresql://shop@db/shop", table="revenue")

A batch is one transaction: the row of `headwater_progress` that belongs to the table is locked, the rows are
copied in (COPY), merged or deleted by key, and the batch's number is noted in that row. Whoever opens the table
raises its epoch in that row, which waits for a commit that is under way; so a writer from before finds another
epoch than its own, and who comes after a commit with an unknown end finds there whether it happened. Nothing else
guards the rows; see docs/decisions/0050.

    headwater_progress   target -> query, run, batch, epoch, past     in the schema of the table
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import ConflictError, RefusedError
from headwater.postgresql import connect, explained
from headwater.sink import Batch, Guarantee, Stream
from headwater.sinks.net_changes import fold
from headwater.sinks.postgres import table as tables
from headwater.sinks.postgres.copy import csv_blocks
from headwater.sinks.progress import BatchAction, SinkProgress, advance, fenced, judge

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

_MEMORY = {"work_mem": "64MB", "temp_buffers": "64MB"}
"""For a batch's stage and its merge, at least: in what a server gives by itself, a large one goes to files."""

_PUTS, _DELETES = "headwater_puts", "headwater_deletes"


@dataclass(frozen=True, slots=True)
class Postgres:
    """A table in PostgreSQL; made if it is not there. `dsn` is an address as libpq takes it.

    `table` may name a schema (`"sales.revenue"`). The table belongs to the query: a new run of it, after its
    checkpoint was thrown away, replaces all rows. Needs `pip install 'headwater[postgres]'`.
    """

    dsn: str = field(repr=False)
    """May hold a password, so it is in no message."""
    table: str = field(kw_only=True)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def open(self, stream: Stream) -> "PostgresWriter":
        """Connect, make or check the table, and fence every writer opened before."""
        target = tables.parse_name(self.table)
        tables.check_stream(stream, self.table)
        connection = connect(self.dsn, for_whom=repr(stream.query))
        try:
            with explained(f"open table {self.table!r} for {stream.query!r}"), connection.transaction():
                return PostgresWriter(connection, stream, self.table, _take_over(connection, stream, target))
        except BaseException:
            connection.close()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """What a writer has found: the table, the statements for it, and its own epoch."""

    shape: tables.TableShape
    epoch: int


def _take_over(connection: Any, stream: Stream, target: tables.TableName) -> _Opened:
    """Make or check the tables, and raise the epoch."""
    # Two that create the same table at the same time would fail on names in the catalog.
    connection.execute("select pg_advisory_xact_lock(hashtext('headwater_progress'))")
    target = tables.resolve(connection, target)
    tables.ensure_progress(connection, target)
    shape, is_new = tables.ensure_table(connection, stream, target)
    row = connection.execute(tables.raise_epoch(target), {"target": target.name, "query": stream.query}).fetchone()
    query, epoch, run = row
    if query != stream.query:
        raise ConflictError(
            f"cannot write {stream.query!r} to table {target}: it belongs to {query!r}, whose rows these are",
            hint=f"name another table; or, if {query!r} is no more, empty the table and delete its row from "
            f"{target.progress}",
        )
    if run is None and not is_new:
        tables.check_empty(connection, stream, target)
    if stream.key:
        for setting, size in _MEMORY.items():
            connection.execute(
                "select set_config(%(name)s, %(size)s, false) "
                "where pg_size_bytes(current_setting(%(name)s)) < pg_size_bytes(%(size)s)",
                {"name": setting, "size": size},
            )
        connection.execute(tables.make_stage(_PUTS, target, shape.columns))
        connection.execute(tables.make_stage(_DELETES, target, stream.key))
    return _Opened(shape=shape, epoch=epoch)


class PostgresWriter:
    """Writes to one table, over one connection; not thread-safe."""

    def __init__(
        self,
        connection: "psycopg.Connection[tuple[Any, ...]]",
        stream: Stream,
        table: str,
        opened: _Opened,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._place = f"table {table!r}"
        self._shape = opened.shape
        self._epoch = opened.epoch

    def write(self, batch: Batch) -> bool:
        """Write the batch in one transaction; False if it is there already."""
        with explained(self._attempt(batch)), self._connection.transaction():
            return self._apply(batch)

    def rehearse(self, batch: Batch) -> None:
        """Write the batch in a transaction that is rolled back."""
        with explained(self._attempt(batch)), self._connection.transaction(force_rollback=True):
            self._apply(batch)
            self._connection.execute("set constraints all immediate")  # The others would come with the commit.

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _attempt(self, batch: Batch) -> str:
        return f"write batch {batch.number} of {self._stream.query!r} to {self._place}"

    def _apply(self, batch: Batch) -> bool:
        rows = batch.rows.cast(self._stream.schema)
        progress = self._lock()
        step = judge(progress, batch, self._stream, self._place)
        if step is BatchAction.SKIP:
            return False
        if step is BatchAction.START_AFRESH:
            # Not truncate: that would lock out everybody who reads.
            self._connection.execute(self._shape.delete_all)
        self._put(replace(batch, rows=rows))
        self._note(advance(progress, batch))
        return True

    def _lock(self) -> SinkProgress | None:
        """Hold the table's row of progress until the end of the transaction; ConflictError if it is not ours."""
        row = self._connection.execute(self._shape.lock_progress, (self._shape.target.name,)).fetchone()
        if row is None or row[0] != self._epoch:
            raise fenced(self._stream, self._place)
        _, run, number, past = row
        return None if run is None else SinkProgress(run=run, number=number, past=tuple(past))

    def _note(self, progress: SinkProgress) -> None:
        values = (progress.run, progress.number, list(progress.past), self._shape.target.name)
        self._connection.execute(self._shape.note_progress, values)

    def _put(self, batch: Batch) -> None:
        attempt = self._attempt(batch)
        if not self._stream.key:
            self._copy(self._shape.copy_into, batch.rows, attempt)
            return
        folded = fold(batch, self._stream.key)
        nulls = tables.null_keys(folded.puts, self._stream.key)
        if nulls is not None and not self._shape.nulls_are_equal:
            raise RefusedError(
                f"cannot write row {nulls} to {self._place}: its key is null, and the table's unique key takes "
                "nulls for different",
                hint=f"make the index with `nulls not distinct`, or leave such rows out of {self._stream.query!r}",
            )
        if folded.deletes.num_rows:
            self._copy(tables.copy_stage(_DELETES, self._stream.key), folded.deletes, attempt)
            has_null = tables.null_keys(folded.deletes, self._stream.key) is not None
            self._connection.execute(self._shape.delete_staged(_DELETES, nulls=has_null))
        if folded.puts.num_rows:
            puts = tables.in_order(folded.puts, self._stream.key)
            self._copy(tables.copy_stage(_PUTS, self._shape.columns), puts, attempt)
            self._connection.execute(self._shape.upsert_staged(_PUTS, nulls=nulls is not None))

    def _copy(self, statement: "Composed", rows: pa.Table, attempt: str) -> None:
        # Explained here, where it is known which row is in the line that the server names.
        with explained(attempt, rows), self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for block in csv_blocks(rows):
                copy.write(block)
