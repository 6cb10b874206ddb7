"""Quoting of SQL identifiers, the same in SQLite, PostgreSQL and Delta's merge conditions."""

from collections.abc import Iterable


def quote(name: str) -> str:
    """Return an identifier in double quotes, with the quotes inside it doubled.

    >>> quote('green "tea" sales')
    '"green ""tea"" sales"'
    """
    return '"' + name.replace('"', '""') + '"'


def quote_list(names: Iterable[str]) -> str:
    """Return quoted identifiers, separated by commas.

    >>> quote_list(["k", "v"])
    '"k", "v"'
    """
    return ", ".join(map(quote, names))
