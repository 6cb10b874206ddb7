"""Load the Python file of an app; report its errors with file and line, without frames of our own code."""

import importlib.util
import os
import sys
import traceback
from pathlib import Path

from headwater.app import App
from headwater.errors import HeadwaterError, InvalidError


def load_app(path: Path, name: str | None = None) -> App:
    """Import the file and return its app; `name` selects one if the file has several."""
    if not path.is_file():
        raise InvalidError(
            f"cannot run {str(path)!r}: the file does not exist", hint="pass a Python file with an hw.App"
        )
    module = _import(path.resolve())
    apps = {value.name: value for value in vars(module).values() if isinstance(value, App)}
    if name is not None and name in apps:
        return apps[name]
    if name is not None or len(apps) != 1:
        found = ", ".join(sorted(apps)) or "none"
        raise InvalidError(
            f"cannot run {str(path)!r}: expected one app{f' named {name!r}' if name else ''}, found: {found}",
            hint='create an app with `app = hw.App("shop")`; choose among several with --app',
        )
    (app,) = apps.values()
    if not app.queries:
        raise InvalidError(
            f"cannot run app {app.name!r}: it has no views and no sinks",
            hint="declare one with @app.view(topic, key=...)",
        )
    return app


def _import(path: Path) -> object:
    # The file can import modules in its folder, here and in Spark's workers.
    folder = str(path.parent)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidError(f"cannot run {str(path)!r}: it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InvalidError(f"cannot import {path.name}, line {error.lineno}: {error.msg}") from error
    except HeadwaterError as error:
        raise InvalidError(f"cannot import {path.name}, {_line(error, path)}: {error}", hint=error.hint) from error
    except Exception as error:
        raise InvalidError(
            f"cannot import {path.name}, {_line(error, path)}: {type(error).__name__}: {error}",
            hint="HEADWATER_TRACEBACK=1 shows the traceback",
        ) from error
    return module


def _line(error: BaseException, path: Path) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"line {lines[-1]}" if lines else "while loading it"
