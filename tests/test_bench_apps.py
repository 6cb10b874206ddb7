"""The parts of `./dev bench views-per-app` and `start` that need no Java."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from headwater.cli.app_file import load_app

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture(autouse=True)
def bench_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name in {"_apps", "_loads", "_marked", "_process_tree", "_report", "start"} & (set(sys.modules) - before):
        del sys.modules[name]


@pytest.fixture
def views_per_app(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark's module, whose name has hyphens because the command has."""
    spec = importlib.util.spec_from_file_location("views_per_app", BENCH / "views-per-app.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "views_per_app", module)  # Dataclasses look it up.
    spec.loader.exec_module(module)
    return module


def test_processor_time_and_memory_include_children_that_run_and_that_have_ended() -> None:
    from _process_tree import processor_seconds, tree_memory_mb

    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    wait = "print(1, flush=True)\ninput()\n"
    program = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {burn!r}])
running = subprocess.Popen([sys.executable, "-c", {burn + wait!r}])
running.wait()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        assert processor_seconds(process.pid) >= 0.55
        assert tree_memory_mb(process.pid) > 5
        process.communicate(b"\n")


@pytest.mark.parametrize("count", [1, 6, 20])
def test_the_app_has_as_many_views_as_requested(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_VIEWS", str(count))
    monkeypatch.setenv("PYTHONPATH", "")  # Loading an app adds its folder.
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "bench_views.py"
    path.write_text((BENCH / "_views_app.py").read_text())
    names = [view.name for view in load_app(path).views]
    assert len(set(names)) == count
    # `last_three` also selects `sent` and `last_seen` `at`; a column may appear only once.
    assert not [name for name in names if name.endswith(("_sent", "_at"))]


def test_events_have_the_columns_of_the_topic() -> None:
    from _apps import order

    event = json.loads(order(123, '"sent": 1.5, "at": "2026-01-01T00:00:00Z"}'))
    assert list(event) == ["key", "city", "device", "amount", "quantity", "sent", "at"]


def test_a_round_is_one_advance_of_each_view(views_per_app: ModuleType) -> None:
    fast, slow = [0.0, 1.0, 2.0, 3.0], [0.5, 2.5]
    assert views_per_app.rounds_per_second({"fast": fast, "slow": slow}) == pytest.approx(0.75)


def test_ratios_and_missed_goals_of_several_views(views_per_app: ModuleType) -> None:
    this, other = views_per_app.THIS, views_per_app.OTHER
    figures = views_per_app.Figures
    results = {
        (other, 100, 1): figures(2.0, 1.0, 1.0, 1000.0, 10.0, 1.0),
        (this, 100, 1): figures(1.0, 0.5, 1.0, 1000.0, 10.0, 1.0),
        (this, 100, 6): figures(2.0, 1.0, 1.5, 1100.0, 13.0, 1.0),
    }
    lines = list(views_per_app.to_one_view(results))
    assert f"| {this} | 100 | processor seconds per round | 2.00, goal ≤ 1.5: **missed** |  |" in lines
    assert f"| {this} | 100 | memory, MB | 1.10, goal ≤ 1.2: ok |  |" in lines
    assert f"| {this} | 100 | seconds between results | 2.00 |  |" in lines
    assert "**1 of 3 goals are reached.**" in lines
    assert lines[-1] == (
        "Missed goals: processor seconds per round of 6 views at 100 events/s (2.00, goal 1.5); "
        "seconds to the first results of 6 views at 100 events/s (1.30, goal 1.2)."
    )
    assert "| 100 | 1 | 0.50 | 0.50 | 1.00 | 1.00 | 1.00 |" in list(views_per_app.to_other_commit(results))


def test_a_cell_without_figures_has_its_reason_as_a_row(views_per_app: ModuleType) -> None:
    line = views_per_app.row((views_per_app.THIS, 10_000, 20), "a first result of 20 views: the app ended")
    assert line == "| this commit | 10,000 | 20 | a first result of 20 views: the app ended |  |  |  |  |  |"


def test_the_parts_of_a_start(tmp_path: Path) -> None:
    import start
    from _apps import OTHER, THIS, AppRun

    (tmp_path / "marks.txt").write_text("java started\t104.0\njava ready\t107.0\n")
    lines = [
        (103.0, "starting Spark at local[2]"),
        (109.0, "Spark is ready; its log is"),
        (112.0, "running bench: a"),
    ]
    run = AppRun(1, 2, 100.0, tmp_path / "marks.txt", lines, {"a": [115.0, 116.0], "b": [118.0]})
    seconds = start.measure(run)
    del seconds["load average"]
    assert seconds == {
        "imports": 3.0, "JVM": 3.0, "session": 2.0, "planning": 3.0, "first batch": 6.0, "total": 18.0,
    }  # fmt: skip
    results = {(OTHER, 1): {"JVM": 4.0, "total": 20.0}, (THIS, 1): {"JVM": 2.0, "total": 14.0}}
    assert list(start.ratios(results))[2:] == [
        "| this commit vs. the other commit, views: 1 |  | 0.50 |  |  |  | 0.70 |",
        "",
        "Goal for an app with views: 1, at most 0.6 of the other commit: 0.70, **missed**.",
    ]


def test_java_is_seen_to_start_and_to_be_ready(tmp_path: Path) -> None:
    program = f"""
import sys
sys.argv = ["_marked.py", {str(tmp_path / "marks")!r}]
sys.path.append({str(BENCH)!r})
import _marked, subprocess
sys.addaudithook(_marked.audit)
subprocess.run(["true"])
subprocess.run(["true"], env={{"PATH": "/usr/bin:/bin", "_PYSPARK_DRIVER_CONN_INFO_PATH": "/dev/null"}})
open("/dev/zero").close()
open("/dev/null").close()
open("/dev/null").close()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    names = [line.partition("\t")[0] for line in (tmp_path / "marks").read_text().splitlines()]
    assert names == ["java started", "java ready"]


def test_another_side_must_be_a_checkout(tmp_path: Path) -> None:
    from _apps import OTHER, THIS, sides

    assert list(sides(None)) == [THIS]
    with pytest.raises(SystemExit, match="src/headwater is missing"):
        sides(tmp_path)
    (tmp_path / "src" / "headwater").mkdir(parents=True)
    assert list(sides(tmp_path)) == [OTHER, THIS]
