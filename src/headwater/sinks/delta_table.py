"""One query's Delta table: how it is created, checked, and versioned by the application transactions in it."""

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import ConflictError, InvalidError, UnavailableError
from headwater.sink import Stream
from headwater.sinks.stream_checks import check_changes_have_key, check_key_in_schema, check_same_columns
from headwater.sql_names import quote

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_OWNER = "headwater.query"
_OPEN_TRIES_MAX = 100
_TRANSIENT = re.compile(r"error sending request|timed out|connect|no space left|os error 28", re.IGNORECASE)
_BAD_NAME = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Delta forbids in column names, because readers of Parquet do."""


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """The table at `path`, for one stream. `attempt` is the beginning of error messages."""

    path: str
    storage_options: Mapping[str, str]
    stream: Stream
    attempt: str

    def check_stream(self) -> None:
        """Raise InvalidError for a stream that no Delta table can hold."""
        from deltalake import Field

        check_changes_have_key(self.stream, self.attempt)
        for column in self.stream.schema:
            if _BAD_NAME.search(column.name):
                raise InvalidError(
                    f"{self.attempt}: the name of column {column.name!r} has a character that Delta does not allow"
                )
            try:
                Field.from_arrow(column)
            except Exception as error:  # the exception depends on the type
                raise InvalidError(
                    f"{self.attempt}: Delta has no type for column {column.name!r}, {column.type}"
                ) from error
        check_key_in_schema(self.stream, self.attempt)
        for name in self.stream.key:
            kind = self.stream.schema.field(name).type
            if any(pa.types.is_nested(leaf) or pa.types.is_floating(leaf) for _, leaf in _leaves("", kind)):
                raise InvalidError(f"{self.attempt}: column {name!r} cannot be a key, its type is {kind}")

    def open(self) -> "tuple[DeltaTable, int]":
        """Create or check the table, and fence earlier writers by committing the next epoch, which is returned."""
        for _ in range(_OPEN_TRIES_MAX):
            table = self._load_or_create()
            if table is None:
                continue
            self._check_fit(table)
            epoch = self.version(table, "epoch") + 1
            try:
                self.commit_versions(table, {"epoch": epoch})
            except commit_failed_error():
                continue  # Two writers open it at the same time; the second one fences the first.
            return self.load(), epoch
        raise ConflictError(
            f"{self.attempt}: other writers opened the table before each of {_OPEN_TRIES_MAX} attempts",
            hint="run only one pipeline that writes to this table",
        )

    def load(self) -> "DeltaTable":
        from deltalake import DeltaTable

        return DeltaTable(self.path, storage_options=self._options)

    def version(self, table: "DeltaTable", name: str, *, default: int = 0) -> int:
        """Return the version of one of the query's application transactions."""
        found = table.transaction_version(f"{self.stream.query}#{name}")
        return default if found is None else int(found)

    def properties(self, versions: Mapping[str, int]) -> "CommitProperties":
        """Return the commit properties that set versions of the query's application transactions."""
        from deltalake import CommitProperties, Transaction

        transactions = [Transaction(f"{self.stream.query}#{name}", number) for name, number in versions.items()]
        return CommitProperties(app_transactions=transactions)

    def commit_versions(self, table: "DeltaTable", versions: Mapping[str, int]) -> None:
        """Commit versions without rows."""
        table.create_write_transaction([], "append", table.schema(), commit_properties=self.properties(versions))

    @property
    def _options(self) -> dict[str, str] | None:
        return dict(self.storage_options) or None

    def _load_or_create(self) -> "DeltaTable | None":
        """Return the table; None if it was just created, by this writer or another one, and has to be loaded."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return self.load()
        except TableNotFoundError:
            pass
        if not self.storage_options and "://" not in self.path:
            Path(self.path).mkdir(parents=True, exist_ok=True)
        try:
            DeltaTable.create(
                self.path,
                self.stream.schema,
                configuration={_OWNER: self.stream.query},
                storage_options=self._options,
                raise_if_key_not_exists=False,
            )
        except DeltaError:
            if not DeltaTable.is_deltatable(self.path, self._options):
                raise
        return None

    def _check_fit(self, table: "DeltaTable") -> None:
        hint = "name another table, or delete this one"
        owner = table.metadata().configuration.get(_OWNER)
        if owner is None:
            raise ConflictError(f"{self.attempt}: the table was not created by Headwater", hint=hint)
        if owner != self.stream.query:
            raise ConflictError(f"{self.attempt}: the table belongs to {owner!r}", hint=hint)
        known = {f.name: f.type for f in pa.schema(table.schema().to_arrow())}
        given = {f.name: f.type for f in pa.schema(_as_delta(self.stream.schema))}
        check_same_columns(known, given, self.attempt, hint)


def same_key(rows: pa.Table, key: tuple[str, ...]) -> str:
    """Return the merge condition that a target row has the key of a source row; null equals null."""
    parts = []
    for name in key:
        column = rows.column(name)
        for path, _ in _leaves(quote(name), column.type):
            # Plain equality is faster, and right when no key has a null.
            nullable = column.null_count > 0 or pa.types.is_struct(column.type)
            parts.append(f"(target.{path} {'IS NOT DISTINCT FROM' if nullable else '='} source.{path})")
    return " AND ".join(parts)


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the plain values of a type with their SQL paths: the fields of a struct, recursively."""
    if not pa.types.is_struct(kind):
        yield path, kind
        return
    for part in kind:
        text = part.name.replace("'", "''")
        yield from _leaves(f"{path}['{text}']", part.type)


def _as_delta(schema: pa.Schema) -> Any:
    """Return the schema as a table created with it reports it."""
    from deltalake import Schema

    return Schema.from_arrow(schema).to_arrow()


# -- errors ---------------------------------------------------------------------------------------------------


def commit_failed_error() -> type[Exception]:
    """Return Delta's error for a commit that conflicts with another one."""
    from deltalake.exceptions import CommitFailedError

    return CommitFailedError


@contextmanager
def delta_errors(attempt: str) -> Iterator[None]:
    """Raise Delta's errors as ours: an unreachable store or a full disk is transient, everything else is not."""
    from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError

    try:
        yield
    except (DeltaProtocolError, SchemaMismatchError) as error:
        raise InvalidError(f"{attempt}: {error}") from error
    except (DeltaError, OSError) as error:
        if _TRANSIENT.search(str(error)) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise UnavailableError(f"{attempt}: {error}") from error
        if isinstance(error, OSError):
            raise InvalidError(f"{attempt}: {error}") from error
        raise
