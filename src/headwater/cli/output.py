"""Print the results of commands: as a table, or as JSON with the field names of the HTTP API."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer


class OutputFormat(StrEnum):
    """Output format of a command."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[
    OutputFormat, typer.Option("--output", "-o", help="Output format: a table, or JSON for programs.")
]


def print_json(value: Any) -> None:
    """Print one JSON document."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None)
    print()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows as a table; columns of numbers are aligned right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        numeric = all(isinstance(row[number], int | float) for row in rows) and bool(rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    # Do not wrap piped output to the width of a terminal.
    Console(soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 10_000).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict) and set(value) == {"start", "end"}:
        return f"{_time(value['start'])} .. {_time(value['end'])}"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return f"{value:,.10g}"
    return _time(str(value))


def _time(text: str) -> str:
    """Remove zero microseconds from a timestamp."""
    return text.replace(".000000Z", "Z") if text.endswith("Z") else text
