"""The contract suite itself: the page's sink keeps it, and sinks that break it are found out."""

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headwater.testing.sinks import Place, SinkContract

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sinks.md"


@pytest.fixture(scope="module")
def json_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page's program, as a module."""
    (program,) = re.findall(r'```python\n("""json_file.py.*?)```', PAGE.read_text(), re.DOTALL)
    folder = tmp_path_factory.mktemp("page")
    (folder / "json_file.py").write_text(program)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("json_file")
    sys.path.remove(str(folder))
    del sys.modules["json_file"]


def rows_in(path: str) -> list[dict[str, Any]]:
    if not Path(path).exists():
        return []
    return list(json.loads(Path(path).read_text()).get("rows", {}).values())


class TestSinkOfThePage(SinkContract):
    keyless = False
    types = ("string", "tinyint", "smallint", "int", "bigint")

    @pytest.fixture
    def new_place(self, json_file: Any, tmp_path: Path) -> Callable[[], Place]:
        def make() -> Place:
            sink = json_file.JsonFile(str(tmp_path / f"{uuid4()}.json"))
            return Place(sink=sink, read=lambda stream: rows_in(sink.path))

        return make


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
def test_a_broken_sink_is_found_out(name: str, json_file: Any, tmp_path: Path) -> None:
    right, wrong, test = BREAKS[name]
    program = Path(json_file.__file__).read_text()
    assert program.count(right) == 1
    names: dict[str, Any] = {"__name__": "broken"}
    sys.modules["broken"] = type(sys)("broken")  # a dataclass asks for its module
    exec(program.replace(right, wrong), names)

    def make() -> Place:
        sink = names["JsonFile"](str(tmp_path / f"{uuid4()}.json"))
        return Place(sink=sink, read=lambda stream: rows_in(sink.path))

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(TestSinkOfThePage(), f"test_{test}")(make)
    del sys.modules["broken"]


def test_who_gives_no_place_is_told() -> None:
    with pytest.raises(NotImplementedError, match="give the fixture `new_place`"):
        SinkContract.new_place.__wrapped__(SinkContract())  # type: ignore[attr-defined]
