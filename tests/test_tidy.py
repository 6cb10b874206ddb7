"""Meters of the tree: what grows too long, too deep or too wide, or has two names.

They warn about the extremes. None of them can be met by moving a method out of its class.
"""

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "headwater"
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 8
FOLDER_MODULES_MAX = 16
IMPORT_CHAIN_MAX = 12
FORBIDDEN_NAMES = re.compile(r"(utils?|helpers?|common|misc|manager|base)(\.py)?$", re.IGNORECASE)

EXCEPTIONS = {
    "views.py:commit_rows": "a batch, and everything that is committed with it",
    "view.py:query": "options of a command",
    "view.py:search": "options of a command",
    "embedded.py:__init__": "settings, passed through by keyword",
    "broker.py:broker": "options of a command",
    "run.py:run": "options of a command",
    "app.py:run": "the options of `headwater run`",
    "app.py:start": "the options of `headwater run`",
    "group.py:reset_offsets": "options of a command",
}


def test_files_are_short() -> None:
    long = {
        str(p.relative_to(ROOT)): n for p in SOURCES if (n := len(p.read_text().splitlines())) > FILE_LINES_MAX
    }
    assert long == {}


def test_functions_fit_a_screen_and_take_few_parameters() -> None:
    found = []
    for path in SOURCES:
        for function in _functions(ast.parse(path.read_text())):
            lines = (function.end_lineno or 0) - function.lineno + 1
            arguments = function.args
            parameters = len(arguments.args) + len(arguments.kwonlyargs) + len(arguments.posonlyargs)
            name = f"{path.name}:{function.name}"
            if (lines > FUNCTION_LINES_MAX or parameters > PARAMETERS_MAX) and name not in EXCEPTIONS:
                found.append((name, lines, parameters))
    assert found == []


def test_folders_are_small() -> None:
    modules = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        if path.name != "__init__.py":
            modules[str(path.parent.relative_to(ROOT))].append(path.name)
    large = {folder: len(names) for folder, names in modules.items() if len(names) > FOLDER_MODULES_MAX}
    assert large == {}


def test_import_chains_are_short() -> None:
    """The number of modules that import one another in a row, when the first of them is imported.

    Within a stage, imports for types alone count as well, so that they cannot be used to bypass the limit.
    """
    chain = _longest_chain()
    assert len(chain) <= IMPORT_CHAIN_MAX, "\n".join(chain)


def test_a_class_name_means_one_class() -> None:
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [p for p in SOURCES if not ast.get_docstring(ast.parse(p.read_text()))]
    assert [p.name for p in silent] == ["shop.py"]  # the README's program, as a user would write it


def test_docstrings_say_what_a_thing_does_or_is() -> None:
    """They begin with a verb or a noun, not with a question word."""
    questions = re.compile(r"(What|Whether|How|Where|Who|Whose|Why)\b")
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if questions.match(text):
                    found.append(f"{path.relative_to(ROOT)}: {text.splitlines()[0]}")
    assert found == []


def test_the_map_of_a_folder_names_its_modules() -> None:
    """The docstring of an `__init__` is the folder's map: every module in it is there."""
    missing = []
    for folder in {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE}:
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        names = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
        missing += [
            f"{folder.relative_to(PACKAGE)}/{name}" for name in names if not re.search(rf"\b{name}\b", text)
        ]
    assert sorted(missing) == []


def test_no_name_says_nothing() -> None:
    assert [p.name for p in (ROOT / "src").rglob("*") if FORBIDDEN_NAMES.search(p.name)] == []


def test_no_host_of_a_registry_and_no_path_of_a_machine_is_committed() -> None:
    hosts = r"(pypi|npmjs|pythonhosted|golang|crates|maven)\.(org|io|com)|deb\.debian"
    paths = r"(^|[^A-Za-z0-9_./-])/(work|farm|root)/"
    for pattern in (hosts, paths):
        command = ["git", "grep", "-nIE", pattern, "--", ".", ":!LICENSE*", ":!tests/test_tidy.py"]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert result.stdout == ""


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _longest_chain() -> list[str]:
    modules = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    imports = {name: _imports(path, modules) - {name} for name, path in modules.items()}
    longest: dict[str, list[str]] = {}

    def follow(name: str) -> list[str]:
        if name not in longest:
            longest[name] = []  # a cycle counts once
            longest[name] = [name, *max((follow(other) for other in imports[name]), key=len, default=[])]
        return longest[name]

    return max((follow(name) for name in modules), key=len)


def _imports(path: Path, modules: dict[str, Path]) -> set[str]:
    """Return the modules that a module imports at its top level, and for types, from its own stage."""
    body = ast.parse(path.read_text()).body
    stage = ".".join(path.relative_to(PACKAGE.parent).parts[:2])
    found = _imported(body, modules)
    for block in body:
        if isinstance(block, ast.If):
            found |= {name for name in _imported(block.body, modules) if name.startswith(f"{stage}.")}
    return found


def _imported(body: list[ast.stmt], modules: dict[str, Path]) -> set[str]:
    found = set()
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in modules else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules.keys()
