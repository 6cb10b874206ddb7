"""The contract suite itself: the page's sink keeps it, and sinks that break it are found out."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest

from headwater.testing.sink_contract import Place, SinkContract

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sinks.md"


def program(name: str) -> str:
    (found,) = re.findall(rf'```python\n("""{name}.*?)```', PAGE.read_text(), re.DOTALL)
    return str(found)


def test_the_sink_of_the_page_keeps_the_contract(tmp_path: Path) -> None:
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
    sys.modules[name] = module  # a dataclass asks for its module
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
    "takes every batch twice": ("batch.number <= state", "None is state", "a_batch_that_comes_again_is_skipped"),
    "fences nobody": (
        '["epochs"][self.stream.query] != self',
        '["epochs"] is self',
        "who_opens_later_fences_who_opened_before",
    ),
    "revives old runs": ("batch.run != runs[-1]", "False", "a_run_that_was_replaced_is_over"),
    "adds runs up": ('state["rows"] = {}', 'state.setdefault("rows", {})', "a_new_run_starts_afresh"),
    "deletes nothing": ('["rows"].pop', ".get", "a_row_that_is_taken_back_is_gone"),
    "looks at no type": ("columns) != columns", "columns) is None", "a_stream_of_another_type_is_refused"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_sink_is_found_out(name: str, tmp_path: Path) -> None:
    right, wrong, test = BREAKS[name]
    text = program("json_file.py")
    assert text.count(right) == 1
    sound, broken = load("json_file", text), load("json_file", text.replace(right, wrong))
    check = getattr(JsonFileContract(), f"test_{test}")

    def places(module: Any) -> Any:
        def make() -> Place:
            sink = module.JsonFile(str(tmp_path / f"{uuid4()}.json"))
            return Place(sink=sink, read=lambda stream: rows_in(sink.path))

        return make

    check(places(sound))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(places(broken))


def test_who_gives_no_place_is_told() -> None:
    with pytest.raises(NotImplementedError, match="give the fixture `new_place`"):
        SinkContract.new_place.__wrapped__(SinkContract())  # type: ignore[attr-defined]
