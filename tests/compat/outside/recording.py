"""A pytest plugin that records which features of which clients tests/compat covers: `--compat-report FILE`.

A test declares them with `@pytest.mark.compat(feature, client=...)`. Without `client`, it is the client with whose
name the test's parameters begin; "Java" becomes the version that the test runs with. With --collect-only, the
report lists the features without running the tests.
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
    """Records the results of tests by client and feature."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._features: dict[str, list[tuple[str, str]]] = {}
        self._states: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._features[item.nodeid] = list(features_of(item))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        severity = {"passed": 0, "skipped": 1, "failed": 2}
        known = self._states.get(report.nodeid, "passed")
        self._states[report.nodeid] = max(known, report.outcome, key=severity.__getitem__)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        tests = [
            {"test": test, "client": client, "feature": feature, "state": self._states.get(test, "collected")}
            for test, pairs in self._features.items()
            for client, feature in pairs
        ]
        self._report.write_text(json.dumps({"versions": versions(), "tests": tests}))


def features_of(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """Yield the clients and features that a test covers."""
    for mark in item.iter_markers("compat"):
        (feature,) = mark.args
        if feature not in FEATURES:
            raise pytest.UsageError(f"{item.nodeid} covers {feature!r}, which is not in FEATURES of {__file__}")
        yield _client(item, mark.kwargs.get("client")), feature


def _client(item: Any, named: str | None) -> str:
    case = getattr(item, "callspec", None)
    if named == "Java":
        return f"Java {case.params['version']}"
    if named is not None:
        return named
    return next(client for client in PYTHON_CLIENTS if case.id.startswith(client))


def versions() -> dict[str, str]:
    """Return the versions of the installed clients."""
    found = {client: importlib.metadata.version(client) for client in PYTHON_CLIENTS}
    if shutil.which("kcat"):
        output = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=False).stdout
        found["kcat"] = output.partition("Version ")[2].split()[0]
    return found
