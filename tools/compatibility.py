"""Runs the real clients and other people's test suites against the broker, and writes docs/compatibility.md.

What was found is kept in docs/compatibility.json, and the page is made from that: what cannot be run here (kcat is
missing, librdkafka's test-runner is not built) stays as it was found before, with its date.
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
FOUND = ROOT / "docs" / "compatibility.json"
PAGE = ROOT / "docs" / "compatibility.md"
OUTSIDE = ROOT / "tests" / "compat" / "outside"
RUNNER = "LIBRDKAFKA_TEST_RUNNER"
NOTE = "<!-- Made from test runs by `./dev compat`; do not edit. -->\n"
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
"""What a client does not have, by how the features' names begin."""

Found = dict[str, Any]


# -- running --------------------------------------------------------------------------------------------------


def run_clients(before: Found) -> Found:
    """Our own tests in tests/compat, with every client that is here but Java's."""
    return _run_ours(before, "tests/compat", "--ignore=tests/compat/java")


def run_java(before: Found) -> Found:
    """Our own tests with Java's clients, in every version of them; these take the longest."""
    os.environ["HEADWATER_EVERY_VERSION"] = "1"
    return _run_ours(before, "tests/compat/java")


def _run_ours(before: Found, *which: str) -> Found:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        pytest = [sys.executable, "-m", "pytest", "-q", *which]
        command = [*pytest, "-p", "recording", "--compat-report", str(report)]
        environment = {**os.environ, "PYTHONPATH": str(OUTSIDE)}
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        told = json.loads(report.read_text())
    ended: dict[str, dict[str, str]] = {}
    for test in told["tests"]:
        features = ended.setdefault(test["client"], {})
        earlier = before.get("shown", {}).get(test["client"], {}).get(test["feature"], "not run")
        state = earlier if test["state"] == "skipped" else test["state"]
        if features.get(test["feature"]) != "failed":
            features[test["feature"]] = state
    return {"ran": _today(), "versions": before.get("versions", {}) | told["versions"], "shown": ended}


def run_kafka_python(before: Found) -> Found:
    """kafka-python's integration tests, of the version that is installed."""
    number = version("kafka-python")
    return {"ran": _today(), "version": number, "outcomes": _rows("kafka-python", outside.kafka_python(number))}


def run_librdkafka(before: Found) -> Found:
    """librdkafka's test-runner, which must have been built and named in the environment."""
    if RUNNER not in os.environ:
        raise outside.NotHere(f"{RUNNER} does not say where librdkafka's test-runner is")
    program = Path(os.environ[RUNNER]).resolve()
    logs = Path(tempfile.mkdtemp(prefix="librdkafka-"))
    print(f"its output is in {logs}", flush=True)
    outcomes = outside.librdkafka(
        program,
        logs,
        parts("librdkafka"),
        reasons("librdkafka"),
        say=lambda outcome: print(outcome.state, outcome.name, outcome.said, flush=True),
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
    """Outcomes to be kept; what a test said is of interest only where nobody has said more."""
    known_reasons = reasons(suite)
    return {o.name: [o.state, "" if o.name in known_reasons else o.said] for o in outcomes}


def known() -> Found:
    """What was found before."""
    return dict(json.loads(FOUND.read_text())) if FOUND.exists() else {}


# -- reasons --------------------------------------------------------------------------------------------------


def _told(suite: str) -> dict[str, Any]:
    return tomllib.loads((OUTSIDE / f"{suite}.toml").read_text())


def reasons(suite: str) -> dict[str, str]:
    """Why a test does not pass, by its name."""
    return {test: reason["why"] for reason in _told(suite)["reason"] for test in reason["tests"]}


def parts(suite: str) -> dict[str, list[str]]:
    """The parts in which a test is run, by its number."""
    return dict(_told(suite).get("parts", {}))


def unexplained(found: Found) -> list[str]:
    """What failed without a reason: bugs, until somebody has found out."""
    return [
        f"{suite}: {name}: {said}"
        for suite in ("kafka-python", "librdkafka")
        for name, (state, said) in found.get(suite, {}).get("outcomes", {}).items()
        if state == "failed" and name not in reasons(suite)
    ] + [
        f"{client}: {feature}"
        for client, features in shown(found).items()
        for feature, state in features.items()
        if state != "passed"
    ]


def shown(found: Found) -> dict[str, dict[str, str]]:
    """How the features of every client ended."""
    return dict(found.get("clients", {}).get("shown", {}) | found.get("java", {}).get("shown", {}))


# -- the page -------------------------------------------------------------------------------------------------


def page(found: Found) -> str:
    """The page, from what was found."""
    return "".join([NOTE, INTRODUCTION, *_table(found), LIMITS, *_suites(found), AGAIN])


INTRODUCTION = """
# Compatibility

Every "yes" is a test that has passed, with that client, unchanged, against the embedded broker over TCP.

"""

LIMITS = """
"-" is what the client does not have; an empty field is what nobody has tested. One node for one team leaves out:
replication, TLS, SASL, ACLs (every client may do everything), client telemetry (KIP-714), groups of Kafka Streams
(KIP-1071) and version 2 of the transaction protocol (KIP-890, clients use version 1 without being told).

"""

AGAIN = """
## Run it again

    ./dev compat                # everything that this machine has; writes this page
    ./dev compat clients        # or java, kafka-python, librdkafka

Java's clients need a JDK and Maven, kcat must be on the PATH, and `LIBRDKAFKA_TEST_RUNNER` names librdkafka's
test-runner where somebody has built it. What is missing is left as it was found before. The features are in
`tests/compat/outside/recording.py`, the reasons beside it.
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
    yield f"\nTests of ours in `tests/compat`, run on {' and '.join(days)}.\n"


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
        yield "| why not | tests |\n|---|---|\n"
        others: dict[str, list[str]] = {}
        for name, (state, said) in outcomes.items():
            if state != "passed":
                why = reasons(suite).get(name) or f"Not explained: {said}"
                others.setdefault(why, []).append(f"`{name}`")
        for why, tests in others.items():
            yield f"| {why.replace('|', '/')} | {', '.join(tests)} |\n"
        yield f"\nThose that pass: {', '.join(f'`{name}`' for name in passed)}.\n\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", choices=[*RUNS, "page"], help="what to run; all if not given")
    wanted = parser.parse_args(arguments).part or list(RUNS)
    for name in wanted:
        if name == "page":
            continue
        print(f"{name} ...", flush=True)
        try:
            fresh = {name: RUNS[name](known().get(name, {}))}
        except outside.NotHere as reason:
            print(f"{name}: left as it was: {reason}", flush=True)
            continue
        # Read again: another part may have been run meanwhile.
        FOUND.write_text(json.dumps(known() | fresh, indent=1, sort_keys=True) + "\n")
    found = known()
    PAGE.write_text(page(found))
    bugs = unexplained(found)
    for bug in bugs:
        print(f"not explained: {bug}")
    return 1 if bugs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
