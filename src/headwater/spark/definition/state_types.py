"""Reads the schemas of states, which definitions have as Polars writes them, and names the types as Spark does.

{'product': String, 'total': Int64}    product string, total bigint
"""

import re
from collections.abc import Iterator

_NAMES = {
    "String": "string",
    "Int8": "tinyint",
    "Int16": "smallint",
    "Int32": "int",
    "Int64": "bigint",
    "Float32": "float",
    "Float64": "double",
    "Boolean": "boolean",
    "Binary": "binary",
    "Date": "date",
}
_ENTRY = re.compile(r"\s*(['\"])(?P<name>.*?)\1: (?P<type>.*)", re.DOTALL)


def columns_of_state(schema: str) -> dict[str, str]:
    """Return the columns of a state with their types.

    >>> columns_of_state("{'at': Datetime(time_unit='us', time_zone='UTC'), 'n': List(Int64)}")
    {'at': 'timestamp', 'n': 'array<bigint>'}
    """
    return {name: _type(kind) for name, kind in _flat(schema)}


def _flat(schema: str) -> Iterator[tuple[str, str]]:
    """Yield the columns of a state; of a whole row that it keeps, as a struct, yield the row's columns."""
    for name, kind in _entries(schema.strip()[1:-1]):
        if name.startswith("_") and kind.startswith("Struct("):
            yield from _entries(kind[len("Struct(") : -1].strip()[1:-1])
        else:
            yield name, kind


def _entries(text: str) -> Iterator[tuple[str, str]]:
    for part in _split(text):
        found = _ENTRY.fullmatch(part)
        if found is not None:
            yield found["name"], found["type"]


def _type(kind: str) -> str:
    name, _, arguments = kind.partition("(")
    arguments = arguments[:-1]
    if name == "Datetime":
        return "timestamp" if "time_zone=None" not in arguments else "timestamp_ntz"
    if name == "Decimal":
        return f"decimal({','.join(re.findall(r'[0-9]+', arguments))})"
    if name in ("List", "Array"):
        return f"array<{_type(_split(arguments)[0])}>"
    if name == "Struct":
        return f"struct<{','.join(f'{n}:{_type(k)}' for n, k in _entries(arguments.strip()[1:-1]))}>"
    return _NAMES.get(name, kind)


def _split(text: str) -> list[str]:
    """Split at the commas that are not inside of parentheses, braces or quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "({[":
            depth += 1
        elif character in ")}]":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()] if text[start:].strip() else parts
