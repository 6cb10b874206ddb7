"""Delta: a Delta Lake table, exactly once by Delta's own application transactions, through `deltalake`.

    hw.Delta("out/totals")                       # needs: pip install 'headwater[delta]'
    hw.Delta("s3://lake/totals", storage_options={...})

Each batch is one commit: rows appended or merged by key, and beside them, as `txn` actions of the Delta protocol,
the numbers that a writer finds again:

    <query>#epoch            who writes: each opening takes the next, and every commit repeats it
    <query>#runs             how many runs there were
    <query>#run:<run>        which of them this one is
    <query>#batch:<run>      its last batch

Two commits with one application id conflict in Delta: the commit of a writer that was opened before another, which
sees the table as it was, is refused, and the writer is told.
"""

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.errors import ConflictError, InvalidError, UnavailableError
from headwater.sink import Batch, Guarantee, Stream, Writer
from headwater.sinks.net_changes import NetChanges, check_changes_have_key, fold

_GONE = "_headwater_gone"
_OWNER = "headwater.query"
_COMPACT_EVERY = 50
_COMPACT_FILES = 32
_OPEN_TRIES_MAX = 100
_AWAY = re.compile(r"error sending request|timed out|connect|no space left|os error 28", re.IGNORECASE)
_BAD_NAME = re.compile(r"[ ,;{}()\n\t=]")
"""What Delta does not allow in the name of a column, since Parquet's readers do not."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A Delta table, made if it is not there; it belongs to one query."""

    path: str | Path
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def open(self, stream: Stream) -> Writer:
        """Make the table ready, and fence every writer opened before."""
        attempt = f"cannot write {stream.query!r} to Delta table {str(self.path)!r}"
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise InvalidError(
                f"{attempt}: package 'deltalake' is missing", hint="pip install 'headwater[delta]'"
            ) from error
        _check_stream(stream, attempt)
        with _delta_errors(attempt):
            return _DeltaWriter(self, stream, attempt)


def _check_stream(stream: Stream, attempt: str) -> None:
    from deltalake import Field

    check_changes_have_key(stream, attempt)
    for column in stream.schema:
        if _BAD_NAME.search(column.name):
            raise InvalidError(
                f"{attempt}: the name of column {column.name!r} has a sign that Delta does not allow"
            )
        try:
            Field.from_arrow(column)
        except Exception as error:  # what it raises depends on the type
            raise InvalidError(
                f"{attempt}: Delta has no type for column {column.name!r}, {column.type}"
            ) from error
    for name in stream.key:
        if name not in stream.schema.names:
            raise InvalidError(f"{attempt}: there is no column {name!r}")
        kind = stream.schema.field(name).type
        if any(pa.types.is_nested(leaf) or pa.types.is_floating(leaf) for _, leaf in _leaves("", kind)):
            raise InvalidError(f"{attempt}: column {name!r} cannot be a key, its type is {kind}")


class _DeltaWriter:
    def __init__(self, sink: Delta, stream: Stream, attempt: str) -> None:
        self._sink = sink
        self._stream = stream
        self._attempt = attempt
        self._table, self._epoch = self._take_over()
        self._commits = 0

    def write(self, batch: Batch) -> bool:
        with _delta_errors(self._attempt):
            try:
                return self._write(batch)
            except _commit_failed() as error:
                self._check_epoch(self._load())
                raise UnavailableError(f"{self._attempt}: {error}") from error

    def close(self) -> None:
        pass

    # -- opening ----------------------------------------------------------------------------------------------

    def _take_over(self) -> tuple[Any, int]:
        """Fence who was here before, by a commit of the next epoch."""
        for _ in range(_OPEN_TRIES_MAX):
            table = self._load_or_create()
            if table is None:
                continue
            self._check_fit(table)
            epoch = self._version(table, "epoch") + 1
            try:
                self._commit_facts(table, self._properties({"epoch": epoch}))
            except _commit_failed():
                continue  # Two open it at the same time; who comes second fences the other.
            return self._load(), epoch
        raise ConflictError(f"{self._attempt}: others open it over and over")

    def _load(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(self._sink.path), storage_options=dict(self._sink.storage_options) or None)

    def _load_or_create(self) -> Any | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return self._load()
        except TableNotFoundError:
            pass
        if not self._sink.storage_options and "://" not in str(self._sink.path):
            Path(self._sink.path).mkdir(parents=True, exist_ok=True)
        try:
            DeltaTable.create(
                str(self._sink.path),
                self._stream.schema,
                configuration={_OWNER: self._stream.query},
                storage_options=dict(self._sink.storage_options) or None,
                raise_if_key_not_exists=False,
            )
        except DeltaError:
            if not DeltaTable.is_deltatable(str(self._sink.path), dict(self._sink.storage_options) or None):
                raise
        return None  # Ours or that of another who opens it too: what is there now is to be looked at.

    def _check_fit(self, table: Any) -> None:
        hint = "name another table, or delete this one"
        owner = table.metadata().configuration.get(_OWNER)
        if owner != self._stream.query:
            raise ConflictError(f"{self._attempt}: it belongs to {owner or 'somebody else'!r}", hint=hint)
        known = {f.name: f.type for f in pa.schema(table.schema().to_arrow())}
        given = {f.name: f.type for f in pa.schema(_as_delta(self._stream.schema))}
        for name in [*known, *given]:
            if known.get(name) != given.get(name):
                found, offered = (str(columns.get(name, "missing")) for columns in (known, given))
                raise InvalidError(
                    f"{self._attempt}: column {name!r} there is {found}, the rows' is {offered}", hint=hint
                )

    # -- writing ----------------------------------------------------------------------------------------------

    def _write(self, batch: Batch) -> bool:
        from deltalake import write_deltalake

        self._check_epoch(self._table)
        runs = self._version(self._table, "runs")
        mine = self._version(self._table, f"run:{batch.run}")
        if mine and mine == runs and batch.number <= self._version(self._table, f"batch:{batch.run}", none=-1):
            return False
        if mine and mine != runs:
            raise ConflictError(
                f"{self._attempt}: run {batch.run!r} was replaced by a newer one",
                hint="an old checkpoint was brought back; delete it, and a new run starts afresh",
            )
        goes_on = mine or runs == 0 or self._version(self._table, f"run:{self._stream.continues}", none=-1) == runs
        number = mine or runs + 1
        facts = {"runs": number, f"run:{batch.run}": number, f"batch:{batch.run}": batch.number}
        properties = self._properties({"epoch": self._epoch, **facts})
        rows = batch.rows.cast(self._stream.schema)
        if self._stream.key:
            folded = fold(replace(batch, rows=rows), self._stream.key)
            rows = folded.puts
        if not goes_on:
            write_deltalake(self._table, rows, mode="overwrite", commit_properties=properties)
        elif self._stream.key and self._table.file_uris():
            self._merge(folded, properties)
        else:
            write_deltalake(self._table, rows, mode="append", commit_properties=properties)
        self._table.update_incremental()
        if self._version(self._table, f"batch:{batch.run}", none=-1) != batch.number:
            self._commit_facts(self._table, properties)  # A merge that changed nothing made no commit.
            self._table.update_incremental()
        self._compact()
        return True

    def _merge(self, folded: NetChanges, properties: Any) -> None:
        puts, gone = folded.puts, folded.deletes
        missing = [f for f in puts.schema if f.name not in gone.column_names]
        for column in missing:
            gone = gone.append_column(column, pa.nulls(gone.num_rows, column.type))
        rows = pa.concat_tables([puts, gone.select(puts.column_names)])
        flags = pa.array([False] * puts.num_rows + [True] * gone.num_rows, pa.bool_())
        columns = {_quoted(name): f"source.{_quoted(name)}" for name in puts.column_names}
        (
            self._table.merge(
                rows.append_column(_GONE, flags),
                _same_key(rows, self._stream.key),
                source_alias="source",
                target_alias="target",
                commit_properties=properties,
            )
            .when_matched_delete(f"source.{_GONE}")
            .when_matched_update(columns)
            .when_not_matched_insert(columns, f"not source.{_GONE}")
            .execute()
        )

    def _compact(self) -> None:
        """Make few files of many, in a commit of its own."""
        self._commits += 1
        if self._commits % _COMPACT_EVERY == 0 and len(self._table.file_uris()) > _COMPACT_FILES:
            self._table.optimize.compact(commit_properties=self._properties({"epoch": self._epoch}))
            self._table.update_incremental()

    def _commit_facts(self, table: Any, properties: Any) -> None:
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)

    def _check_epoch(self, table: Any) -> None:
        if self._version(table, "epoch") != self._epoch:
            raise ConflictError(
                f"{self._attempt}: another writer was opened since",
                hint="one of two running pipelines has to stop, or write to another table",
            )

    def _version(self, table: Any, what: str, *, none: int = 0) -> int:
        found = table.transaction_version(f"{self._stream.query}#{what}")
        return none if found is None else int(found)

    def _properties(self, facts: Mapping[str, int]) -> Any:
        from deltalake import CommitProperties, Transaction

        transactions = [Transaction(f"{self._stream.query}#{name}", version) for name, version in facts.items()]
        return CommitProperties(app_transactions=transactions)


def _same_key(rows: pa.Table, key: tuple[str, ...]) -> str:
    """When a row there has the key of one that comes; null is a key like others."""
    parts = []
    for name in key:
        column = rows.column(name)
        for path, _ in _leaves(_quoted(name), column.type):
            # Equality is the quicker one, where no null is looked for.
            nullable = column.null_count > 0 or pa.types.is_struct(column.type)
            parts.append(f"(target.{path} {'IS NOT DISTINCT FROM' if nullable else '='} source.{path})")
    return " AND ".join(parts)


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """The plain values of a type, and how SQL reaches them: a struct's fields for the struct."""
    if not pa.types.is_struct(kind):
        yield path, kind
        return
    for part in kind:
        text = part.name.replace("'", "''")
        yield from _leaves(f"{path}['{text}']", part.type)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _as_delta(schema: pa.Schema) -> Any:
    """The schema as it comes back from a table that was made with it."""
    from deltalake import Schema

    return Schema.from_arrow(schema).to_arrow()


def _commit_failed() -> type[Exception]:
    from deltalake.exceptions import CommitFailedError

    return CommitFailedError


@contextmanager
def _delta_errors(attempt: str) -> Iterator[None]:
    """Tell apart what passes (a place that cannot be reached, a full disk) from what does not."""
    from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError

    try:
        yield
    except (DeltaProtocolError, SchemaMismatchError) as error:
        raise InvalidError(f"{attempt}: {error}") from error
    except (DeltaError, OSError) as error:
        if _AWAY.search(str(error)) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise UnavailableError(f"{attempt}: {error}") from error
        if isinstance(error, OSError):
            raise InvalidError(f"{attempt}: {error}") from error
        raise
