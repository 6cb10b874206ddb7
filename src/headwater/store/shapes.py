"""ViewShape and Access: the columns of a view, and the access to it beyond its key. Values only."""

from dataclasses import dataclass

from headwater.errors import InvalidError
from headwater.store.values.column_types import Column, struct_fields

CHANGES_KEPT = 10_000
"""Default history: enough for a browser tab to reconnect after minutes; later subscribers read the rows again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewShape:
    """The name of a view, its key columns in order, and all its columns."""

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    def holds(self, other: "ViewShape") -> bool:
        """Return whether rows of another shape can be stored in this one: the order of columns may differ."""
        return (self.key, set(self.columns)) == (other.key, set(other.columns))

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        names = ", ".join(c.name for c in self.columns)
        raise InvalidError(f"view {self.name!r} has no column {name!r}; it has: {names}")

    def resolve(self, reference: str) -> tuple[Column, tuple[str, ...], str]:
        """Resolve a column or a field (`window.start`): return the column, the path to the field and its type."""
        if "." not in reference or any(column.name == reference for column in self.columns):
            column = self.column(reference)
            return column, (), column.type
        name, *path = reference.split(".")
        column = self.column(name)
        kind = column.type
        for field in path:
            fields = struct_fields(kind)
            if field not in fields:
                have = f"it has: {', '.join(fields)}" if fields else "which is not a struct"
                raise InvalidError(f"view {self.name!r} has no {reference!r}: {name!r} is {column.type}, {have}")
            kind = fields[field]
        return column, tuple(path), kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Access to a view beyond its key: columns to filter and sort by, text columns to search, and the number of
    changes to keep for subscribers that reconnect and for rows as of an earlier position.
    """

    indexes: tuple[tuple[str, ...], ...] = ()
    search: tuple[str, ...] = ()
    history: int = CHANGES_KEPT


def check_access(shape: ViewShape, access: Access) -> None:
    """Raise InvalidError if an index or a search names a column that the view does not have."""
    attempt = f"cannot store view {shape.name!r}"
    for columns in access.indexes:
        for reference in columns:
            _resolve(f"{attempt}: an index", shape, reference)
    for name in access.search:
        kind = _resolve(f"{attempt}: search", shape, name)[2]
        if kind != "string":
            raise InvalidError(f"{attempt}: search names {name!r}, which is {kind}; only text can be searched")
    if access.history < 1:
        raise InvalidError(f"{attempt}: history is {access.history}; it must be at least 1")


def _resolve(context: str, shape: ViewShape, reference: str) -> tuple[Column, tuple[str, ...], str]:
    try:
        return shape.resolve(reference)
    except InvalidError as error:
        raise InvalidError(f"{context} names {reference!r}; {error}") from None
