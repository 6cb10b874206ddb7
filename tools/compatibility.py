"""Run real clients and the test suites of other projects against the broker, and write docs/compatibility.md.

Results are stored in docs/compatibility.json, and the page is generated from it. The results of tests that cannot
run on this machine (kcat is missing, librdkafka's test-runner is not built) are kept from the last run, with its
date.
"""

import argparse
import ctypes
import datetime
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import outside

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "compatibility.json"
PAGE = ROOT / "docs" / "compatibility.md"
OUTSIDE = ROOT / "tests" / "compat" / "outside"
RUNNER = "LIBRDKAFKA_TEST_RUNNER"
NOTE = "<!-- Generated from test runs by `./dev compat`; do not edit. -->\n"
SIGNS = {"passed": "yes", "failed": "**no**"}

ABSENT = {
    "kafka-python": ("the new consumer protocol (KIP-848)", "queues:"),
    "aiokafka": ("the new consumer protocol (KIP-848)", "queues:", "deleting records", "log directories"),
    "Java 3.9.2": ("queues:",),
    "kcat": (
        "topics: create", "configs:", "deleting records", "log directories", "groups: list", "static members",
        "the new consumer protocol", "transactions: offsets", "transactions: zombies", "transactions: abandoned",
        "queues:",
    ),
}  # fmt: skip
"""The features that a client does not have, by the prefix of their names."""

Found = dict[str, Any]


# -- running --------------------------------------------------------------------------------------------------


def run_clients(before: Found) -> Found:
    """Run the tests in tests/compat with every installed client except Java's."""
    return _run_ours(before, "tests/compat", "--ignore=tests/compat/java")


def run_java(before: Found) -> Found:
    """Run the tests with every version of Java's clients; these take the longest."""
    os.environ["HEADWATER_EVERY_VERSION"] = "1"
    return _run_ours(before, "tests/compat/java")


def _run_ours(before: Found, *which: str) -> Found:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        pytest = [sys.executable, "-m", "pytest", "-q", *which]
        command = [*pytest, "-p", "recording", "--compat-report", str(report)]
        environment = {**os.environ, "PYTHONPATH": str(OUTSIDE)}
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        recorded = json.loads(report.read_text())
    ended: dict[str, dict[str, str]] = {}
    for test in recorded["tests"]:
        features = ended.setdefault(test["client"], {})
        earlier = before.get("shown", {}).get(test["client"], {}).get(test["feature"], "not run")
        state = earlier if test["state"] == "skipped" else test["state"]
        if features.get(test["feature"]) != "failed":
            features[test["feature"]] = state
    return {"ran": _today(), "versions": before.get("versions", {}) | recorded["versions"], "shown": ended}


def run_kafka_python(before: Found) -> Found:
    """Run kafka-python's integration tests, in the installed version."""
    number = version("kafka-python")
    return {"ran": _today(), "version": number, "outcomes": _rows("kafka-python", outside.kafka_python(number))}


def run_librdkafka(before: Found) -> Found:
    """Run librdkafka's test-runner, which must be built and named in the environment."""
    if RUNNER not in os.environ:
        raise outside.NotAvailable(f"{RUNNER} is not set; set it to the path of librdkafka's test-runner")
    program = Path(os.environ[RUNNER]).resolve()
    logs = Path(tempfile.mkdtemp(prefix="librdkafka-"))
    print(f"its output is in {logs}", flush=True)
    outcomes = outside.librdkafka(
        program,
        logs,
        parts("librdkafka"),
        reasons("librdkafka"),
        on_outcome=lambda outcome: print(outcome.state, outcome.name, outcome.message, flush=True),
    )
    library = ctypes.CDLL(str(program.parents[1] / "src" / "librdkafka.so.1"))
    library.rd_kafka_version_str.restype = ctypes.c_char_p
    return {
        "ran": _today(),
        "version": library.rd_kafka_version_str().decode(),
        "outcomes": _rows("librdkafka", outcomes),
    }


RUNS: dict[str, Callable[[Found], Found]] = {
    "clients": run_clients, "java": run_java, "kafka-python": run_kafka_python, "librdkafka": run_librdkafka,
}  # fmt: skip


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _rows(suite: str, outcomes: Iterable[outside.Outcome]) -> dict[str, list[str]]:
    """Return the outcomes to store; a test's message is stored only if there is no reason for its failure."""
    known_reasons = reasons(suite)
    return {o.name: [o.state, "" if o.name in known_reasons else o.message] for o in outcomes}


def known() -> Found:
    """Return the stored results."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


# -- reasons --------------------------------------------------------------------------------------------------


def _suite_file(suite: str) -> dict[str, Any]:
    return tomllib.loads((OUTSIDE / f"{suite}.toml").read_text())


def reasons(suite: str) -> dict[str, str]:
    """Return the reasons why tests do not pass, by test name."""
    return {test: reason["why"] for reason in _suite_file(suite)["reason"] for test in reason["tests"]}


def parts(suite: str) -> dict[str, list[str]]:
    """Return the parts in which tests are run, by test number."""
    return dict(_suite_file(suite).get("parts", {}))


def unexplained(found: Found) -> list[str]:
    """Return the failures without a reason; these count as bugs."""
    return [
        f"{suite}: {name}: {message}"
        for suite in ("kafka-python", "librdkafka")
        for name, (state, message) in found.get(suite, {}).get("outcomes", {}).items()
        if state == "failed" and name not in reasons(suite)
    ] + [
        f"{client}: {feature}"
        for client, features in shown(found).items()
        for feature, state in features.items()
        if state != "passed"
    ]


def shown(found: Found) -> dict[str, dict[str, str]]:
    """Return the state of every feature by client."""
    return dict(found.get("clients", {}).get("shown", {}) | found.get("java", {}).get("shown", {}))


# -- the page -------------------------------------------------------------------------------------------------


def page(found: Found) -> str:
    """Return the page for these results."""
    return "".join([NOTE, INTRODUCTION, *_table(found), LIMITS, *_suites(found), *_differential(found), REPEAT])


INTRODUCTION = """
# Compatibility

Every "yes" is a test that passed with the unmodified client against the embedded broker over TCP.

"""

LIMITS = """
"-" means that the client does not have the feature; an empty cell means that it was not tested. Headwater is one
node for one team and does not support: replication, TLS, SASL, ACLs (every client may do everything), client
telemetry (KIP-714), Kafka Streams groups (KIP-1071) and version 2 of the transaction protocol (KIP-890; clients
fall back to version 1 by themselves).

"""

REPEAT = """
## Run the tests

    ./dev compat                # runs everything that is available on this machine, and writes this page
    ./dev compat clients        # or java, kafka-python, librdkafka

Java's clients need a JDK and Maven, kcat must be on the PATH, and `LIBRDKAFKA_TEST_RUNNER` must be the path of a
built test-runner of librdkafka. The results of tests that cannot run are kept from the last run. The features are
in `tests/compat/outside/recording.py`, the reasons in the same folder.
"""


def _table(found: Found) -> Iterable[str]:
    states = shown(found)
    ours = [found[part] for part in ("clients", "java") if part in found]
    versions = {client: number for part in ours for client, number in part["versions"].items()}
    names = sorted(states, key=lambda name: (-len(states[name]), name))
    features = [feature for feature in _features() if any(feature in states[name] for name in names)]
    titles = [f"{name} {versions[name]}" if name in versions else name for name in names]
    yield f"| | {' | '.join(titles)} |\n|---|{'---|' * len(names)}\n"
    for feature in features:
        cells = [_cell(states, name, feature) for name in names]
        yield f"| {feature} | {' | '.join(cells)} |\n"
    days = sorted({part["ran"] for part in ours})
    yield f"\nFrom Headwater's tests in `tests/compat`, run on {' and '.join(days)}.\n"


def _cell(states: dict[str, dict[str, str]], client: str, feature: str) -> str:
    if feature in states[client]:
        return SIGNS.get(states[client][feature], states[client][feature])
    return "-" if feature.startswith(ABSENT.get(client, ())) else ""


def _features() -> list[str]:
    sys.path.insert(0, str(OUTSIDE))
    import recording

    return list(recording.FEATURES)


def _suites(found: Found) -> Iterable[str]:
    for suite, title in (
        ("kafka-python", "kafka-python's integration tests"),
        ("librdkafka", "librdkafka's tests"),
    ):
        ran = found.get(suite)
        if ran is None:
            continue
        outcomes = ran["outcomes"]
        passed = [name for name, (state, _) in outcomes.items() if state == "passed"]
        yield f"## {title}\n\n"
        yield f"Version {ran['version']}, run on {ran['ran']}: {len(passed)} of {len(outcomes)} pass.\n\n"
        yield "| reason for not passing | tests |\n|---|---|\n"
        others: dict[str, list[str]] = {}
        for name, (state, message) in outcomes.items():
            if state != "passed":
                why = reasons(suite).get(name) or f"Not explained: {message}"
                others.setdefault(why, []).append(f"`{name}`")
        for why, tests in others.items():
            yield f"| {why.replace('|', '/')} | {', '.join(tests)} |\n"
        yield f"\nPassed: {', '.join(f'`{name}`' for name in passed)}.\n\n"


def _differential(found: Found) -> Iterable[str]:
    runs = found.get("differential")
    if not runs:
        return
    yield "## The same answer on every path\n\n"
    yield "Queries whose results were compared with SQL over the final rows, by `./dev differential`.\n\n"
    yield "| queries | compared | wrong | run on |\n|---|---|---|---|\n"
    for what, run in runs.items():
        yield f"| {what} | {run['queries']:,} | {run['wrong']} | {run['ran']} |\n"
    yield "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "part", nargs="*", choices=[*RUNS, "page"], help="tests to run (default: all); page only rewrites the page"
    )
    wanted = parser.parse_args(arguments).part or list(RUNS)
    for name in wanted:
        if name == "page":
            continue
        print(f"{name} ...", flush=True)
        try:
            fresh = {name: RUNS[name](known().get(name, {}))}
        except outside.NotAvailable as reason:
            print(f"{name}: not run, earlier results kept: {reason}", flush=True)
            continue
        # Read the file again: another part may have been run meanwhile.
        RESULTS.write_text(json.dumps(known() | fresh, indent=1, sort_keys=True) + "\n")
    found = known()
    PAGE.write_text(page(found))
    bugs = unexplained(found)
    for bug in bugs:
        print(f"not explained: {bug}")
    return 1 if bugs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
