"""Columns of views and their types, with Spark's names: `string`, `double`, `struct<...>`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view: its name and its Spark type."""

    name: str
    type: str


def struct_fields(kind: str) -> dict[str, str]:
    """Return the fields of a struct and their types; empty for any other type.

    >>> struct_fields("struct<start:timestamp,at:struct<x:int,y:int>>")
    {'start': 'timestamp', 'at': 'struct<x:int,y:int>'}
    """
    if not kind.startswith("struct<"):
        return {}
    parts, depth = [""], 0
    for character in kind.removeprefix("struct<")[:-1]:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return {name: field for name, _, field in (part.partition(":") for part in parts)}
