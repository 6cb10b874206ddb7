"""Prints of code: texts that change when a function computes something else, and only then.

A print leaves out names of local variables, line numbers, files, docstrings and comments. It includes the
constants and the functions that a function refers to. Prints of different versions of Python (or of Polars, for
aggregates) cannot be compared, so a print begins with the version.
"""

import functools
import hashlib
import platform
import sys
from collections.abc import Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import polars as pl
from pyspark import cloudpickle

from headwater.process.aggregates.aggregates import CustomAggregate, FoldInput

_DEPTH_MAX = 8
_PYTHON = f"Python {'.'.join(platform.python_version_tuple()[:2])}"
_COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
_SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


def print_of_code(function: Any) -> str:
    """Return the print of a function or of another callable."""
    text = repr(_parts(function, 0))
    return f"{_PYTHON}: {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def print_of_pickled(command: str) -> str:
    """Return the print of a Python function as Spark has it: pickled, as numbers separated by commas."""
    try:
        found = cloudpickle.loads(bytes(int(byte) & 255 for byte in command.split(",")))
    except Exception:  # Large functions are broadcast, and any class may fail to load.
        return ""
    return print_of_code(found[0] if isinstance(found, tuple) else found)


def prints_of_aggregate(aggregate: CustomAggregate) -> dict[str, str]:
    """Return what an aggregate keeps and what it computes from that, as expressions of Polars."""
    row = FoldInput(pl.col("value"), pl.col("time"), pl.col("weight"), changes=False)
    changed = FoldInput(pl.col("value"), pl.col("time"), pl.col("weight"), changes=True)
    kept = [aggregate.partial(row), aggregate.partial(changed), aggregate.merge(pl.col)]
    return {
        "state": _expressions([one for part in kept for one in _named(part)], aggregate),
        "result": _expressions([("result", aggregate.result(pl.col))], aggregate),
    }


def comparable(was: str, now: str) -> bool:
    """Return whether two prints were made by the same version."""
    return bool(was and now) and was.partition(":")[0] == now.partition(":")[0]


def _named(part: Mapping[str, pl.Expr]) -> list[tuple[str, pl.Expr]]:
    return list(part.items())


def _expressions(named: list[tuple[str, pl.Expr]], aggregate: CustomAggregate) -> str:
    text = "; ".join(f"{name} = {expression}" for name, expression in named)
    if "python" in text or "map" in text:  # The text of such an expression does not show its function.
        text += print_of_code(aggregate)
    return f"Polars {pl.__version__}, {_PYTHON}: {text}"


def _parts(value: Any, depth: int) -> Any:
    """Return nested lists of texts from which a print is made."""
    if isinstance(value, _SIMPLE):
        return repr(value)
    if depth > _DEPTH_MAX:
        return type(value).__name__
    below = functools.partial(_parts, depth=depth + 1)
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(below, value)]
    if isinstance(value, set | frozenset):
        return ["set", *sorted(repr(below(each)) for each in value)]
    if isinstance(value, Mapping):
        return ["dict", *([below(key), below(part)] for key, part in value.items())]
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, CodeType):
        return _code_parts(value, depth)
    if isinstance(value, MethodType):
        return [below(value.__func__), below(value.__self__)]
    if isinstance(value, functools.partial):
        return [below(value.func), below(value.args), below(value.keywords)]
    if isinstance(value, FunctionType):
        return _function_parts(value, depth)
    kind = value if isinstance(value, type) else type(value)
    if _is_library(getattr(kind, "__module__", "")):
        return [kind.__name__, getattr(value, "__name__", "")]
    body = [[name, below(part)] for name, part in sorted(vars(kind).items()) if isinstance(part, FunctionType)]
    own = [] if isinstance(value, type) else below(_attributes(value))
    return [kind.__name__, body, own]


def _attributes(value: Any) -> dict[str, Any]:
    names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _function_parts(function: FunctionType, depth: int) -> Any:
    if _is_library(function.__module__ or ""):
        return function.__qualname__
    below = functools.partial(_parts, depth=depth + 1)
    used = [[name, below(function.__globals__[name])] for name in _names(function.__code__)
            if name in function.__globals__ and function.__globals__[name] is not function]  # fmt: skip
    cells = [
        below(cell.cell_contents) for cell in function.__closure__ or () if cell.cell_contents is not function
    ]
    return [below(function.__code__), below(function.__defaults__), below(function.__kwdefaults__), used, cells]


def _code_parts(code: CodeType, depth: int) -> Any:
    constants = code.co_consts
    if code.co_name not in _COMPREHENSIONS and constants and isinstance(constants[0], str):
        constants = constants[1:]  # The docstring.
    texts = [_parts(constant, depth + 1) for constant in constants if constant is not None]
    return [code.co_code.hex(), code.co_names, texts, code.co_argcount, code.co_kwonlyargcount]


def _names(code: CodeType) -> list[str]:
    """Return the names that code and the functions in it refer to, in a fixed order."""
    nested = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part)]
    return sorted({*code.co_names, *nested})


def _is_library(module: str) -> bool:
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return True
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return "site-packages" in file or root == "headwater"
