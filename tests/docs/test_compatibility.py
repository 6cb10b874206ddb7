"""docs/compatibility.md lists what the tests declare, and gives a reason for every test that does not pass."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
OUTSIDE = ROOT / "tests" / "compat" / "outside"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)
    monkeypatch.syspath_prepend(OUTSIDE)
    spec = importlib.util.spec_from_file_location("compatibility", TOOLS / "compatibility.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_generated_from_the_results(tool: ModuleType) -> None:
    assert tool.PAGE.read_text() == tool.page(tool.known()), "run ./dev compat page"


def test_the_page_has_the_clients_and_features_that_the_tests_declare(tool: ModuleType, tmp_path: Path) -> None:
    """A test that is added, renamed or deleted changes the page."""
    report = tmp_path / "report.json"
    pytest_of_clients = [sys.executable, "-m", "pytest", "-q", "--collect-only", "tests/compat"]
    done = subprocess.run(
        [*pytest_of_clients, "-p", "recording", "--compat-report", str(report)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(OUTSIDE), "HEADWATER_EVERY_VERSION": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    declared = {(test["client"], test["feature"]) for test in json.loads(report.read_text())["tests"]}
    shown = tool.shown(tool.known())
    found = {(client, feature) for client, features in shown.items() for feature in features}
    assert declared == found, "run ./dev compat clients java"


def test_every_failure_has_a_reason(tool: ModuleType) -> None:
    assert tool.unexplained(tool.known()) == []


@pytest.mark.parametrize("suite", ["kafka-python", "librdkafka"])
def test_no_reason_is_given_for_a_test_that_passes(tool: ModuleType, suite: str) -> None:
    """A stale reason would hide that a test fails again."""
    outcomes = tool.known()[suite]["outcomes"]
    stale = [test for test in tool.reasons(suite) if outcomes.get(test, ["missing"])[0] in ("passed", "missing")]
    assert stale == []


def test_a_missing_client_keeps_its_earlier_results(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = {
        "versions": {"aiokafka": "2"},
        "tests": [
            {"test": "a", "client": "kcat", "feature": "f", "state": "skipped"},
            {"test": "b", "client": "aiokafka", "feature": "f", "state": "passed"},
            {"test": "c", "client": "aiokafka", "feature": "g", "state": "failed"},
            {"test": "d", "client": "aiokafka", "feature": "g", "state": "passed"},
            {"test": "e", "client": "kcat", "feature": "g", "state": "skipped"},
        ],
    }

    def run(command: list[str], **_: object) -> None:
        Path(command[-1]).write_text(json.dumps(recorded))

    monkeypatch.setattr(tool.subprocess, "run", run)
    found = tool.run_clients({"versions": {"kcat": "1"}, "shown": {"kcat": {"f": "passed"}}})
    assert found["shown"] == {"kcat": {"f": "passed", "g": "not run"}, "aiokafka": {"f": "passed", "g": "failed"}}
    assert found["versions"] == {"kcat": "1", "aiokafka": "2"}
    assert tool.unexplained({"clients": found}) == ["kcat: g", "aiokafka: g"]
