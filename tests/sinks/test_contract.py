"""The contract suite itself: the sink of the documentation passes it, and broken sinks fail it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from headwater.testing import Destination, SinkContract

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sinks.md"


def program(name: str) -> str:
    (found,) = re.findall(rf'```python\n("""{name}.*?)```', PAGE.read_text(), re.DOTALL)
    return str(found)


def test_the_documented_sink_passes_the_contract(tmp_path: Path) -> None:
    for name in ("json_file.py", "test_json_file.py"):
        (tmp_path / name).write_text(program(name))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d\d passed", done.stdout)


class JsonFileContract(SinkContract):
    keyless = False
    types = ("string", "tinyint", "smallint", "int", "bigint")


def load(name: str, text: str) -> ModuleType:
    module = ModuleType(name)
    sys.modules[name] = module  # a dataclass looks up its module
    try:
        exec(text, module.__dict__)
    finally:
        del sys.modules[name]
    return module


def rows_in(path: str) -> list[dict[str, Any]]:
    if not Path(path).exists():
        return []
    return list(json.loads(Path(path).read_text()).get("rows", {}).values())


BREAKS = {
    "writes batches again": (
        "batch.number <= state",
        "None is state",
        "a_repeated_batch_is_skipped",
    ),
    "fences no writer": (
        '["epochs"][self.stream.query] != self',
        '["epochs"] is self',
        "a_later_writer_fences_the_earlier_one",
    ),
    "accepts a run that was replaced": ("batch.run != runs[-1]", "False", "a_run_that_was_replaced_is_over"),
    "keeps the rows of the previous run": (
        'state["rows"] = {}',
        'state.setdefault("rows", {})',
        "a_new_run_starts_afresh",
    ),
    "deletes no rows": ('["rows"].pop', ".get", "a_retracted_row_is_deleted"),
    "ignores types": ("columns) != columns", "columns) is None", "a_stream_of_another_type_is_rejected"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_sink_fails(name: str, tmp_path: Path) -> None:
    right, wrong, test = BREAKS[name]
    text = program("json_file.py")
    assert text.count(right) == 1
    sound, broken = load("json_file", text), load("json_file", text.replace(right, wrong))
    check = getattr(JsonFileContract(), f"test_{test}")

    def destinations(module: Any) -> Any:
        def make() -> Destination:
            sink = module.JsonFile(str(tmp_path / f"{uuid4()}.json"))
            return Destination(sink=sink, read=lambda stream: rows_in(sink.path))

        return make

    check(destinations(sound))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(destinations(broken))


def test_a_missing_fixture_is_reported() -> None:
    with pytest.raises(NotImplementedError, match="define the fixture `new_destination`"):
        SinkContract.new_destination.__wrapped__(SinkContract(), None)  # type: ignore[attr-defined]


def test_the_former_names_still_work() -> None:
    from headwater.testing import sinks

    assert sinks.Place is sinks.Destination is Destination
    assert sinks.SinkContract is SinkContract


def test_a_suite_with_the_former_fixture_still_works() -> None:
    class FormerContract(SinkContract):
        def new_place(self) -> None: ...

    request = SimpleNamespace(getfixturevalue=lambda name: f"the fixture {name}")
    found = SinkContract.new_destination.__wrapped__(FormerContract(), request)  # type: ignore[attr-defined]
    assert found == "the fixture new_place"
