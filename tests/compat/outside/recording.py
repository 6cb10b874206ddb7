"""A pytest plugin that writes down what the tests in tests/compat show of which client: `--compat-report FILE`.

A test says it with `@pytest.mark.compat(feature, client=...)`. Without a client it is the one its parameters begin
with; "Java" becomes the version that the test is run with. With --collect-only it is written what would be shown.
"""

import importlib.metadata
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PYTHON_CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")

FEATURES = (
    "records with key, headers, time and null values",
    "compression: gzip, snappy, lz4, zstd",
    "acks 1 and all",
    "acks 0",
    "idempotent producer",
    "reading from any offset",
    "offsets by time, exact to the record",
    "large records, and many small ones",
    "answers within fetch.max.bytes",
    "topics: create, grow, delete",
    "topics made when first used",
    "configs: describe and change",
    "deleting records",
    "metadata of cluster and topics",
    "log directories and replicas",
    "classic groups: sharing, taking over, committing",
    "assignors, cooperative ones too",
    "static members",
    "groups: list and describe",
    "the new consumer protocol (KIP-848)",
    "transactions: commit, abort, read_committed",
    "transactions: offsets inside",
    "transactions: zombies are fenced",
    "transactions: abandoned ones time out",
    "queues: accept, each record once",
    "queues: release and reject, with a delivery count",
    "queues: locks that time out",
    "queues: read_committed",
    "after kill -9: what was acknowledged, once",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compat-report", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(config.getoption("--compat-report")), "compat-recorder")


class Recorder:
    """Keeps, for each client and feature, how the tests of it ended."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._shows: dict[str, list[tuple[str, str]]] = {}
        self._ends: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._shows[item.nodeid] = list(shown(item))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        worse = {"passed": 0, "skipped": 1, "failed": 2}
        known = self._ends.get(report.nodeid, "passed")
        self._ends[report.nodeid] = max(known, report.outcome, key=worse.__getitem__)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        tests = [
            {"test": test, "client": client, "feature": feature, "state": self._ends.get(test, "collected")}
            for test, pairs in self._shows.items()
            for client, feature in pairs
        ]
        self._report.write_text(json.dumps({"versions": versions(), "tests": tests}))


def shown(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """The clients and features of a test."""
    for mark in item.iter_markers("compat"):
        (feature,) = mark.args
        if feature not in FEATURES:
            raise pytest.UsageError(f"{item.nodeid} shows {feature!r}, which is not in FEATURES of {__file__}")
        yield _client(item, mark.kwargs.get("client")), feature


def _client(item: Any, named: str | None) -> str:
    case = getattr(item, "callspec", None)
    if named == "Java":
        return f"Java {case.params['version']}"
    if named is not None:
        return named
    return next(client for client in PYTHON_CLIENTS if case.id.startswith(client))


def versions() -> dict[str, str]:
    """The versions of the clients that are installed."""
    found = {client: importlib.metadata.version(client) for client in PYTHON_CLIENTS}
    if shutil.which("kcat"):
        said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=False).stdout
        found["kcat"] = said.partition("Version ")[2].split()[0]
    return found
