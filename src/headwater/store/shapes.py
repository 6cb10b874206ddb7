"""ViewShape and Access: what a view looks like, and how it can be asked. Values only."""

from dataclasses import dataclass

from headwater.errors import InvalidError
from headwater.store.columns import Column, struct_fields

CHANGES_KEPT = 10_000
"""Enough for a browser tab to come back after minutes and miss nothing; older followers start from the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewShape:
    """What a view looks like: its name, its key columns in order, and all its columns."""

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        names = ", ".join(c.name for c in self.columns)
        raise InvalidError(f"view {self.name!r} has no column {name!r}; it has: {names}")

    def resolve(self, reference: str) -> tuple[Column, tuple[str, ...], str]:
        """A column by its name, or a field of one (`window.start`): the column, the way to the field, its type."""
        if "." not in reference or any(column.name == reference for column in self.columns):
            column = self.column(reference)
            return column, (), column.type
        name, *path = reference.split(".")
        column = self.column(name)
        kind = column.type
        for field in path:
            fields = struct_fields(kind)
            if field not in fields:
                have = f"it has: {', '.join(fields)}" if fields else "it is no struct"
                raise InvalidError(f"view {self.name!r} has no {reference!r}: {name!r} is {column.type}, {have}")
            kind = fields[field]
        return column, tuple(path), kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a view can be asked beyond its key: columns to find and sort by, columns with text to search, and how
    many changes are kept, for subscribers that come back and for rows as of an earlier position.
    """

    indexes: tuple[tuple[str, ...], ...] = ()
    search: tuple[str, ...] = ()
    history: int = CHANGES_KEPT


def check_access(shape: ViewShape, access: Access) -> None:
    """Raise an InvalidError for what the view has no columns for."""
    attempt = f"cannot keep view {shape.name!r}"
    for columns in access.indexes:
        for reference in columns:
            _named(f"{attempt}: an index", shape, reference)
    for name in access.search:
        kind = _named(f"{attempt}: search", shape, name)[2]
        if kind != "string":
            raise InvalidError(f"{attempt}: search names {name!r}, which is {kind}; only text can be searched")
    if access.history < 1:
        raise InvalidError(f"{attempt}: history is {access.history}; at least 1 change is kept")


def _named(what: str, shape: ViewShape, reference: str) -> tuple[Column, tuple[str, ...], str]:
    try:
        return shape.resolve(reference)
    except InvalidError as error:
        raise InvalidError(f"{what} names {reference!r}; {error}") from None
