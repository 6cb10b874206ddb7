"""Checks that a stream fits its destination, with the same messages in every sink.

`attempt` is the beginning of each message: "cannot write 'shop.totals' to table 'totals'".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.errors import ConflictError, InvalidError
from headwater.sink import Stream


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type that a new column gets, and the types that an existing column may have."""

    name: str
    accepted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExistingColumn:
    """A column of a table that a user created; `required` if it is not null and has no default."""

    name: str
    type: str
    required: bool


def check_changes_have_key(stream: Stream, attempt: str) -> None:
    """Raise InvalidError if the stream retracts rows and has no key."""
    if stream.changes and not stream.key:
        raise InvalidError(
            f"{attempt}: it retracts rows, so the sink needs a key to know which row to delete",
            hint="give @app.sink a key: the columns that identify a row",
        )


def check_key_in_schema(stream: Stream, attempt: str) -> None:
    """Raise InvalidError if a key column is not among the columns."""
    for name in stream.key:
        if name not in stream.schema.names:
            raise InvalidError(f"{attempt}: the key names column {name!r}, and the rows have no column {name!r}")


def check_types(
    stream: Stream, attempt: str, column_type: Callable[[pa.DataType], ColumnType | None], database: str
) -> None:
    """Raise InvalidError if the sink has no column type for one of the columns."""
    for column in stream.schema:
        if column_type(column.type) is None:
            raise InvalidError(
                f"{attempt}: column {column.name!r} is {column.type}, which cannot be stored in {database}",
                hint=f"cast it in {stream.query!r}, for example to a string",
            )


def check_columns(
    stream: Stream,
    attempt: str,
    column_type: Callable[[pa.DataType], ColumnType | None],
    existing: Sequence[ExistingColumn],
) -> None:
    """Raise InvalidError if an existing table cannot hold the stream's rows; `check_types` has passed."""
    types = {column.name: column.type for column in existing}
    problems = []
    for column in stream.schema:
        wanted = column_type(column.type)
        assert wanted is not None
        if column.name not in types:
            problems.append(f"it has no column {column.name!r} ({wanted.name})")
        elif types[column.name] not in wanted.accepted:
            problems.append(f"its column {column.name!r} is {types[column.name]}, the rows have {wanted.name}")
    problems += [
        f"its column {column.name!r} must not be null and the rows have no such column"
        for column in existing
        if column.required and column.name not in stream.schema.names
    ]
    if problems:
        raise InvalidError(
            f"{attempt}: {'; '.join(problems)}",
            hint="alter the table, name another one, or drop it so that the sink creates it",
        )


def no_unique_index(stream: Stream, attempt: str, found: Sequence[Sequence[str]]) -> InvalidError:
    """Return the error for an existing table without a unique index on the key columns."""
    indexes = ", ".join(f"({', '.join(names)})" for names in found if names) or "none"
    return InvalidError(
        f"{attempt}: the key is ({', '.join(stream.key)}), and the table has no unique index on these columns; "
        f"its unique indexes: {indexes}",
        hint="create such an index, or name another table",
    )


def check_table_owner(owner: str, stream: Stream, attempt: str, progress_table: str) -> None:
    """Raise ConflictError if the table belongs to another query."""
    if owner != stream.query:
        raise ConflictError(
            f"{attempt}: the table belongs to {owner!r}",
            hint=f"name another table; or, if {owner!r} no longer exists, empty the table and delete its row from "
            f"{progress_table}",
        )


def foreign_rows(attempt: str, progress_table: str) -> InvalidError:
    """Return the error for a table with rows that no batch of the query wrote; a new run would delete them."""
    return InvalidError(
        f"{attempt}: it has rows, and {progress_table} has no record of a batch that wrote them",
        hint="empty the table, name another one, or restore the progress along with its rows",
    )


def check_same_columns(
    known: Mapping[str, pa.DataType], given: Mapping[str, pa.DataType], attempt: str, hint: str
) -> None:
    """Raise InvalidError if the columns at the destination are not exactly those of the rows."""
    for name in [*known, *given]:
        if known.get(name) != given.get(name):
            found, offered = (str(columns.get(name, "missing")) for columns in (known, given))
            raise InvalidError(f"{attempt}: its column {name!r} is {found}, the rows have {offered}", hint=hint)
