"""Delta: a Delta Lake table, exactly once through Delta's application transactions, with `deltalake`.

    hw.Delta("out/totals")                       # needs: pip install 'headwater[delta]'
    hw.Delta("s3://lake/totals", storage_options={...})

Each batch is one commit: rows appended or merged by key and, as `txn` actions of the Delta protocol, the versions
that a later writer reads:

    <query>#epoch            the writer: each `open` commits the next epoch, and every commit repeats it
    <query>#runs             the number of runs so far
    <query>#run:<run>        the number of this run
    <query>#batch:<run>      the last batch of this run

Two commits with the same application id conflict in Delta. So the commit of a writer that was opened before
another one, and sees an older version of the table, is refused, and `write` raises an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.errors import InvalidError, UnavailableError
from headwater.sink import Batch, Guarantee, Stream, Writer
from headwater.sinks.delta_table import DeltaTarget, commit_failed_error, delta_errors, same_key
from headwater.sinks.net_changes import NetChanges, net_changes
from headwater.sinks.progress import SinkProgress, fenced, next_step
from headwater.sql_names import quote

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_DELETED = "_headwater_gone"
_COMPACT_EVERY = 50
_COMPACT_FILES = 32


@dataclass(frozen=True, slots=True)
class Delta:
    """A Delta table, created if missing; it belongs to one query."""

    path: str | Path
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def open(self, stream: Stream) -> Writer:
        """Create or check the table, and fence every writer opened before."""
        destination = f"Delta table {str(self.path)!r}"
        attempt = f"cannot write {stream.query!r} to {destination}"
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise InvalidError(
                f"{attempt}: package 'deltalake' is missing", hint="pip install 'headwater[delta]'"
            ) from error
        target = DeltaTarget(str(self.path), self.storage_options, stream, attempt)
        target.check_stream()
        with delta_errors(attempt):
            return _DeltaWriter(target, destination)


class _DeltaWriter:
    def __init__(self, target: DeltaTarget, destination: str) -> None:
        self._target = target
        self._stream = target.stream
        self._destination = destination
        self._table, self._epoch = target.open()
        self._commits = 0

    def write(self, batch: Batch) -> bool:
        with delta_errors(self._target.attempt):
            try:
                return self._write(batch)
            except commit_failed_error() as error:
                self._check_epoch(self._target.load())
                raise UnavailableError(f"{self._target.attempt}: {error}") from error

    def close(self) -> None:
        pass

    def _write(self, batch: Batch) -> bool:
        from deltalake import write_deltalake

        self._check_epoch(self._table)
        step = next_step(self._read_progress(batch), batch, self._stream, self._destination)
        if step is None:
            return False
        versions = self._versions_after(batch)
        properties = self._target.properties(versions)
        batch = replace(batch, rows=batch.rows.cast(self._stream.schema))
        net = net_changes(batch, self._stream.key) if self._stream.key else None
        rows = batch.rows if net is None else net.puts
        if step.replaces:
            write_deltalake(self._table, rows, mode="overwrite", commit_properties=properties)
        elif net is not None and self._table.file_uris():
            self._merge(net, properties)
        else:
            write_deltalake(self._table, rows, mode="append", commit_properties=properties)
        self._table.update_incremental()
        if self._target.version(self._table, f"batch:{batch.run}", default=-1) != batch.number:
            self._target.commit_versions(self._table, versions)  # A merge without effect makes no commit.
            self._table.update_incremental()
        self._compact()
        return True

    def _read_progress(self, batch: Batch) -> SinkProgress | None:
        """Return the progress as far as it concerns the batch's run: Delta looks ids up and cannot list them."""
        runs = self._target.version(self._table, "runs")
        if not runs:
            return None
        run = self._target.version(self._table, f"run:{batch.run}")
        if run == runs:
            number = self._target.version(self._table, f"batch:{batch.run}", default=-1)
            return SinkProgress(run=batch.run, number=number)
        past = (batch.run,) if run else ()
        continues = self._stream.continues
        if continues is not None and self._target.version(self._table, f"run:{continues}") == runs:
            return SinkProgress(run=continues, number=-1, past=past)
        return SinkProgress(run=f"number {runs}", number=-1, past=past)

    def _versions_after(self, batch: Batch) -> dict[str, int]:
        runs = self._target.version(self._table, "runs")
        run = self._target.version(self._table, f"run:{batch.run}") or runs + 1
        return {"epoch": self._epoch, "runs": run, f"run:{batch.run}": run, f"batch:{batch.run}": batch.number}

    def _merge(self, net: NetChanges, properties: "CommitProperties") -> None:
        puts, deletes = net.puts, net.deletes
        for column in puts.schema:
            if column.name not in deletes.column_names:
                deletes = deletes.append_column(column, pa.nulls(deletes.num_rows, column.type))
        rows = pa.concat_tables([puts, deletes.select(puts.column_names)])
        deleted = pa.array([False] * puts.num_rows + [True] * deletes.num_rows, pa.bool_())
        columns = {quote(name): f"source.{quote(name)}" for name in puts.column_names}
        (
            self._table.merge(
                rows.append_column(_DELETED, deleted),
                same_key(rows, self._stream.key),
                source_alias="source",
                target_alias="target",
                commit_properties=properties,
            )
            .when_matched_delete(f"source.{_DELETED}")
            .when_matched_update(columns)
            .when_not_matched_insert(columns, f"not source.{_DELETED}")
            .execute()
        )

    def _compact(self) -> None:
        """Merge small files now and then, in a commit of its own."""
        self._commits += 1
        if self._commits % _COMPACT_EVERY == 0 and len(self._table.file_uris()) > _COMPACT_FILES:
            properties = self._target.properties({"epoch": self._epoch})
            self._table.optimize.compact(commit_properties=properties)
            self._table.update_incremental()

    def _check_epoch(self, table: "DeltaTable") -> None:
        if self._target.version(table, "epoch") != self._epoch:
            raise fenced(self._stream, self._destination)
