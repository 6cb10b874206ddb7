"""Load an app from a file or a module; report its errors with file and line, without frames of our own code."""

import importlib
import importlib.util
import os
import re
import sys
import traceback
from pathlib import Path

from headwater.app import App
from headwater.errors import HeadwaterError, InvalidError

_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def load_app(source: str | Path, name: str | None = None) -> App:
    """Import a file, or a module given as `package.module:app`, and return its app.

    `name` selects the app if there are several.
    """
    path = Path(source)
    if not path.is_file() and _MODULE.fullmatch(str(source)):
        return _check_queries(_of_module(*str(source).split(":")))
    if not path.is_file():
        raise InvalidError(
            f"cannot run {str(path)!r}: the file does not exist",
            hint="pass a Python file with an hw.App, or package.module:app",
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
    return _check_queries(app)


def _check_queries(app: App) -> App:
    if not app.queries:
        raise InvalidError(
            f"cannot run app {app.name!r}: it has no views and no sinks",
            hint="declare one with @app.view(topic, key=...)",
        )
    return app


def _of_module(name: str, attribute: str) -> App:
    """Import a module from the current folder or an installed package, and return the app of this name in it."""
    _search_in(os.getcwd())
    attempt = f"cannot run '{name}:{attribute}'"
    try:
        module = importlib.import_module(name)
    except HeadwaterError as error:
        raise InvalidError(f"{attempt}: {error}", hint=error.hint) from error
    except Exception as error:
        raise InvalidError(
            f"{attempt}: cannot import {name}: {type(error).__name__}: {error}",
            hint="run it in the folder that contains the package; HEADWATER_TRACEBACK=1 shows the traceback",
        ) from error
    found = getattr(module, attribute, None)
    if isinstance(found, App):
        return found
    apps = [each for each, value in vars(module).items() if isinstance(value, App)]
    raise InvalidError(f"{attempt}: {name} has no app {attribute!r}; its apps are: {', '.join(apps) or 'none'}")


def _search_in(folder: str) -> None:
    """Let the app import modules in a folder, here and in Spark's workers."""
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


def _import(path: Path) -> object:
    _search_in(str(path.parent))
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
