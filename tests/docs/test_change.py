"""The commands and messages of docs/how-to/change.md; `tests/spark/pipeline/test_changes.py` does the changes."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.clock import SystemClock
from headwater.errors import ConflictError
from headwater.spark.definition.definition import Definition
from headwater.spark.definition.differences import check_definition
from headwater.store.pipelines.facts import FactStore
from headwater.store.pipelines.generations import Generations
from headwater.store.shapes import ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore

PAGE = (Path(__file__).parents[2] / "docs/how-to/change.md").read_text()
SHOWN = re.sub(r"\s+", " ", PAGE)


def test_the_rebuild_commands_of_the_page(tmp_path: Path) -> None:
    data = tmp_path / ".headwater"
    data.mkdir()
    store = ViewStore(data / "views.db")
    shape = ViewShape(name="revenue", key=("product",), columns=(Column("product", "string"),))
    store.declare(shape)
    FactStore(data / "facts.db").add("archive", {"state": "stopped"}, at_ms=SystemClock().now_ms())
    commands = list(dict.fromkeys(re.findall(r"^    headwater (rebuild .*)$", PAGE, re.MULTILINE)))
    assert commands == ["rebuild revenue", "rebuild revenue --from start", "rebuild archive --from now"]
    for command in commands:
        store.declare(shape)
        result = subprocess.run(
            [sys.executable, "-m", "headwater", *command.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr
    assert Generations(store).current("revenue").number > 0


def test_the_refusal_of_the_page() -> None:
    app: Any = hw.App("shop")
    app.view(app.topic("orders"), key="product", name="revenue")(lambda orders: orders)
    was = Definition(
        topics=[],
        key=["product"],
        columns={},
        operators=[{"name": "windowed", "where": "Tumbling('1 minute')"}],
        native=[],
        partitions=1,
        version=2,
    )
    now = replace(was, operators=[{"name": "windowed", "where": "Tumbling('5 minutes')"}])
    with pytest.raises(ConflictError) as refused:
        check_definition(app.queries[0], was, now)
    assert str(refused.value) in SHOWN


def test_the_report_of_the_page() -> None:
    app: Any = hw.App("shop")
    app.view(app.topic("orders"), key="product", name="revenue")(lambda orders: orders)
    was = Definition(
        topics=[], key=[], columns={}, operators=[], native=[], partitions=1, version=2,
        steps={"windowed": {"where": ["(amount > 0)"]}},
    )  # fmt: skip
    (found,) = check_definition(app.queries[0], was, replace(was, steps={"windowed": {"where": ["(amount > 5)"]}}))
    assert f"view revenue continues with a change that {found.effect}: {found}" in SHOWN
