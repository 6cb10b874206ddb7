"""Postgres: a table in PostgreSQL as a sink, exactly once.

    hw.Postgres("postgresql://shop@db/shop", table="revenue")

A batch is one transaction: it locks the table's row in `headwater_progress`, copies the rows in (COPY), merges or
deletes by key, and records the batch number in that row. Opening the table raises the epoch in the same row, which
waits for a commit in progress. So an earlier writer finds an epoch that is not its own and fails, and the next
writer after a commit with an unknown outcome finds in the row whether it happened. Nothing else guards the rows;
see docs/decisions/0050.

    headwater_progress   target -> query, run, batch, epoch, past     in the schema of the table
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import RefusedError
from headwater.postgresql import connect, explained
from headwater.sink import Batch, Guarantee, Stream
from headwater.sinks.net_changes import net_changes
from headwater.sinks.postgres import table as tables
from headwater.sinks.postgres.copy import csv_blocks
from headwater.sinks.progress import SinkProgress, fenced, next_step
from headwater.sinks.stream_checks import check_table_owner, foreign_rows

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

_MEMORY = {"work_mem": "64MB", "temp_buffers": "64MB"}
"""Minimum for staging and merging a batch: with a server's defaults, a large batch spills to files."""

_PUTS, _DELETES = "headwater_puts", "headwater_deletes"


@dataclass(frozen=True, slots=True)
class Postgres:
    """A table in PostgreSQL, created if missing. `dsn` is a libpq connection string.

    `table` may name a schema (`"sales.revenue"`). The table belongs to the query: a new run, after the query's
    checkpoint was deleted, replaces all rows. Needs `pip install 'headwater[postgres]'`.
    """

    dsn: str = field(repr=False)
    """May hold a password, so no message shows it."""
    table: str = field(kw_only=True)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def open(self, stream: Stream) -> "PostgresWriter":
        """Connect, create or check the table, and fence every writer opened before."""
        target = tables.parse_name(self.table)
        tables.check_stream(stream, self.table)
        connection = connect(self.dsn, for_whom=repr(stream.query))
        try:
            with explained(f"open table {self.table!r} for {stream.query!r}"), connection.transaction():
                return PostgresWriter(connection, stream, self.table, _open_table(connection, stream, target))
        except BaseException:
            connection.close()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenTable:
    """The table, its statements, and the epoch of the writer that opened it."""

    shape: tables.TableShape
    epoch: int


def _open_table(connection: Any, stream: Stream, target: tables.TableName) -> _OpenTable:
    """Create or check the tables, and raise the epoch."""
    # Without a lock, two writers that create the same table at once would fail on a name in the catalog.
    connection.execute("select pg_advisory_xact_lock(hashtext('headwater_progress'))")
    target = tables.resolve(connection, target)
    tables.ensure_progress(connection, target)
    shape, is_new = tables.ensure_table(connection, stream, target)
    names = {"target": target.name, "query": stream.query}
    owner, epoch, run = connection.execute(tables.raise_epoch(target), names).fetchone()
    attempt = f"cannot write {stream.query!r} to table {target}"
    check_table_owner(owner, stream, attempt, str(target.progress))
    if run is None and not is_new and tables.has_rows(connection, target):
        raise foreign_rows(attempt, str(target.progress))
    if stream.key:
        for setting, size in _MEMORY.items():
            connection.execute(
                "select set_config(%(name)s, %(size)s, false) "
                "where pg_size_bytes(current_setting(%(name)s)) < pg_size_bytes(%(size)s)",
                {"name": setting, "size": size},
            )
        connection.execute(tables.make_stage(_PUTS, target, shape.columns))
        connection.execute(tables.make_stage(_DELETES, target, stream.key))
    return _OpenTable(shape=shape, epoch=epoch)


class PostgresWriter:
    """Writes to one table over one connection; not thread-safe."""

    def __init__(
        self,
        connection: "psycopg.Connection[tuple[Any, ...]]",
        stream: Stream,
        table: str,
        opened: _OpenTable,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._destination = f"table {table!r}"
        self._shape = opened.shape
        self._epoch = opened.epoch

    def write(self, batch: Batch) -> bool:
        """Write the batch in one transaction; False if it is already written."""
        with explained(self._attempt(batch)), self._connection.transaction():
            return self._apply(batch)

    def rehearse(self, batch: Batch) -> None:
        """Write the batch in a transaction that is rolled back."""
        with explained(self._attempt(batch)), self._connection.transaction(force_rollback=True):
            self._apply(batch)
            self._connection.execute("set constraints all immediate")  # Deferred constraints would fail at commit.

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _attempt(self, batch: Batch) -> str:
        return f"write batch {batch.number} of {self._stream.query!r} to {self._destination}"

    def _apply(self, batch: Batch) -> bool:
        rows = batch.rows.cast(self._stream.schema)
        step = next_step(self._lock_progress(), batch, self._stream, self._destination)
        if step is None:
            return False
        if step.replaces:
            # Not truncate, which would block all readers.
            self._connection.execute(self._shape.delete_all)
        self._write_rows(replace(batch, rows=rows))
        self._write_progress(step.progress)
        return True

    def _lock_progress(self) -> SinkProgress | None:
        """Lock the table's progress row until the transaction ends; ConflictError if the writer is fenced."""
        row = self._connection.execute(self._shape.lock_progress, (self._shape.target.name,)).fetchone()
        if row is None or row[0] != self._epoch:
            raise fenced(self._stream, self._destination)
        _, run, number, past = row
        return None if run is None else SinkProgress(run=run, number=number, past=tuple(past))

    def _write_progress(self, progress: SinkProgress) -> None:
        values = (progress.run, progress.number, list(progress.past), self._shape.target.name)
        self._connection.execute(self._shape.note_progress, values)

    def _write_rows(self, batch: Batch) -> None:
        attempt = self._attempt(batch)
        if not self._stream.key:
            self._copy(self._shape.copy_into, batch.rows, attempt)
            return
        net = net_changes(batch, self._stream.key)
        nulls = tables.find_null_key(net.puts, self._stream.key)
        if nulls is not None and not self._shape.nulls_are_equal:
            raise RefusedError(
                f"cannot write row {nulls} to {self._destination}: its key is null, and the table's unique index "
                "treats nulls as different",
                hint="create the index with `nulls not distinct`, or filter such rows out in "
                f"{self._stream.query!r}",
            )
        if net.deletes.num_rows:
            self._copy(tables.copy_stage(_DELETES, self._stream.key), net.deletes, attempt)
            has_null = tables.find_null_key(net.deletes, self._stream.key) is not None
            self._connection.execute(self._shape.delete_staged(_DELETES, nulls=has_null))
        if net.puts.num_rows:
            puts = tables.sort_by_key(net.puts, self._stream.key)
            self._copy(tables.copy_stage(_PUTS, self._shape.columns), puts, attempt)
            self._connection.execute(self._shape.upsert_staged(_PUTS, nulls=nulls is not None))

    def _copy(self, statement: "Composed", rows: pa.Table, attempt: str) -> None:
        # Errors are converted here, where the rows are known, to find the row of the line that the server names.
        with explained(attempt, rows), self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for block in csv_blocks(rows):
                copy.write(block)
