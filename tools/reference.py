"""Generate from the code: docs/reference, and the type stub of the package's public names.

Commands come from their help, names from docstrings, routes from OpenAPI.
"""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import typer

import headwater
from headwater.cli import app as commands
from headwater.serve.openapi import document

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
STUB = ROOT / "src" / "headwater" / "__init__.pyi"
NOTE = "<!-- Made from the code by `./dev docs`; do not edit. -->\n"


def command_page() -> str:
    """Return the page of all commands with their options."""
    root = typer.main.get_command(commands)
    return f"{NOTE}\n# Commands\n\n{root.help}\n" + "".join(_commands(root, "headwater"))


def _commands(group: Any, path: str) -> list[str]:
    parts = []
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            parts += _commands(command, f"{path} {name}")
        else:
            parts.append(_command(command, f"{path} {name}"))
    return parts


def _command(command: Any, path: str) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join([path, *(p.name.upper() for p in arguments), "[OPTIONS]"])
    lines = [f"\n## {path}\n", inspect.cleandoc(command.help or ""), f"\n    {usage}\n"]
    if options:
        lines.append("| option | default | meaning |\n|---|---|---|")
        lines += [f"| {_names(p)} | {_default(p)} | {p.help or ''} |" for p in options]
    return "\n".join(lines) + "\n"


def _names(option: Any) -> str:
    return ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))


def _default(option: Any) -> str:
    return "" if option.default is None else f"`{getattr(option.default, 'value', option.default)}`"


def python_page() -> str:
    """Return the page of all public names, in the order in which a tutorial would introduce them."""
    parts = [f"{NOTE}\n# Python\n\n`import headwater as hw`\n"]
    for name in headwater.__all__:
        thing = getattr(headwater, name)
        text = inspect.cleandoc(thing.__doc__)
        parts.append(f"\n## hw.{name}\n\n```python\n{_signature(name, thing)}\n```\n\n{text}\n")
        if inspect.ismodule(thing):
            parts += [_member(name, member) for member in _defined(thing)]
        if inspect.isclass(thing):
            parts += [_method(name, member) for member in _public(thing)]
    return "".join(parts)


def _defined(module: Any) -> list[Any]:
    """Return the public classes that a module defines."""
    return [m for m in vars(module).values() if inspect.isclass(m) and m.__module__ == module.__name__]


def _member(owner: str, thing: Any) -> str:
    return f"\n### {owner}.{thing.__name__}\n\n{inspect.cleandoc(thing.__doc__)}\n"


def _public(thing: type) -> list[Any]:
    return [m for n, m in vars(thing).items() if inspect.isfunction(m) and not n.startswith("_")]


def _method(owner: str, method: Any) -> str:
    title = f"{owner}.{method.__name__}"
    return f"\n### {title}\n\n```python\n{_signature(title, method)}\n```\n\n{inspect.getdoc(method)}\n"


def _signature(name: str, thing: Any) -> str:
    if inspect.ismodule(thing):
        return f"import {thing.__name__}"
    if not callable(thing):
        return name
    text = re.sub(r"headwater\.[a-z_.]+\.", "", f"{name}{inspect.signature(thing)}".replace("typing.", ""))
    return (
        text.replace("~", "")
        .replace("collections.abc.", "")
        .replace("pathlib.", "")
        .replace("pyspark.sql.dataframe.", "")
    )


def http_page() -> str:
    """Return the page of all HTTP routes."""
    parts = [f"{NOTE}\n# HTTP API\n\nThe OpenAPI document is at `/api/v1/openapi.json`.\n"]
    for path, operations in document("app")["paths"].items():
        for verb, operation in operations.items():
            parts.append(f"\n## {verb.upper()} {path}\n\n{operation['summary']}\n")
            if operation.get("description"):
                parts.append(f"\n{operation['description']}\n")
            parameters = operation.get("parameters", [])
            if parameters:
                parts.append("\n| parameter | in | meaning |\n|---|---|---|\n")
                parts += [f"| `{p['name']}` | {p['in']} | {p.get('description', '')} |\n" for p in parameters]
    return "".join(parts)


def stub() -> str:
    """Return the type stub of `headwater`, in which type checkers and editors find its public names."""
    lines = ["# Generated from the table in __init__.py by `./dev docs`; do not edit.\n"]
    for module, names in headwater._PUBLIC.items():
        lines += [f"from {module} import {name} as {name}" for name in names]
    lines += [f"from headwater import {name} as {name}" for name in headwater._PUBLIC_MODULES]
    exported = "".join(f'    "{name}",\n' for name in headwater.__all__)
    return "\n".join([*lines, "\n__version__: str\n", f"__all__ = [\n{exported}]\n"])


PAGES = {"commands.md": command_page, "python.md": python_page, "http.md": http_page}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
        print(f"docs/reference/{name}", file=sys.stderr)
    STUB.write_text(stub())
    print(STUB.relative_to(ROOT), file=sys.stderr)


if __name__ == "__main__":
    main()
