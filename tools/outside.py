"""Run the test suites of other projects against the broker: kafka-python's from its sdist, librdkafka's if built.

Each function returns the outcomes of its tests, or raises NotAvailable if the suite cannot run on this machine.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from headwater.transmit.broker.embedded import Broker

PLUGINS = Path(__file__).parents[1] / "tests" / "compat" / "outside"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "headwater"
KAFKA_VERSION = "4.3.0"  # the version that the suites expect; the broker behaves like it
PARTITIONS = 4  # both suites expect topics with four partitions by default
SUITE_WAIT_S = 1800
TEST_WAIT_S = 900


class NotAvailable(Exception):
    """The suite cannot run on this machine; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One test of a suite and its result."""

    name: str
    state: str
    """passed, failed or skipped"""
    message: str = ""
    """The first line of its message, if it did not pass."""


def tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-15:])


# -- kafka-python ---------------------------------------------------------------------------------------------


def kafka_python(version: str) -> list[Outcome]:
    """Run kafka-python's integration tests of this version, which must be the installed one."""
    folder = _sdist(version)
    with Broker(durability="never", num_partitions=PARTITIONS) as broker, tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        environment = {
            **os.environ,
            "KAFKA_URI": f"kafka://{broker.bootstrap_servers}",
            "KAFKA_VERSION": KAFKA_VERSION,
            "KAFKA_ROOT": scratch,
            "PYTHONPATH": str(PLUGINS),
        }
        command = [
            sys.executable, "-m", "pytest", "test/integration", "-p", "kafka_python_plugin", "-p",
            "no:cacheprovider", "-o", "addopts=", "-o", "log_level=WARNING", "-q", f"--junit-xml={report}",
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SUITE_WAIT_S, check=False
        )
        if not report.exists():
            raise NotAvailable(f"pytest ended without a report:\n{tail(done.stdout + done.stderr)}")
        return sorted(_junit(ElementTree.parse(report).getroot()), key=lambda outcome: outcome.name)


def _sdist(version: str) -> Path:
    """Return the folder of the unpacked sdist; download it into the user's cache if it is missing."""
    folder = CACHE / f"kafka-python-{version}"
    if not (folder / "complete").exists():
        with tempfile.TemporaryDirectory() as scratch:
            index = (sys.executable, "-m", "pip") if _has_pip() else ("pip",)
            download = [*index, "download", "-q", "--no-binary", ":all:", "--no-deps"]
            try:
                subprocess.run(
                    [*download, "-d", scratch, f"kafka-python=={version}"],
                    check=True,
                    capture_output=True,
                    text=True,
                )
            except (OSError, subprocess.CalledProcessError) as error:
                why = tail(getattr(error, "stderr", None) or str(error))
                raise NotAvailable(f"pip cannot download the sdist of kafka-python {version}: {why}") from error
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as contents:
                contents.extractall(folder, filter="data")
        (folder / "complete").touch()
    return next(path for path in folder.iterdir() if path.is_dir())


def _has_pip() -> bool:
    return subprocess.run([sys.executable, "-m", "pip", "-V"], capture_output=True, check=False).returncode == 0


def _junit(root: ElementTree.Element) -> Iterator[Outcome]:
    for case in root.iter("testcase"):
        module = (case.get("classname") or "").removeprefix("test.integration.")
        name = f"{module}.{case.get('name')}"
        failure = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
        skipped = case.find("skipped")
        if failure is not None:
            yield Outcome(name=name, state="failed", message=_first_line(failure.get("message")))
        elif skipped is not None:
            yield Outcome(name=name, state="skipped", message=_first_line(skipped.get("message")))
        else:
            yield Outcome(name=name, state="passed")


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0][:200]


# -- librdkafka -----------------------------------------------------------------------------------------------

# A line of its closing table: | 0001_multiobj | PASSED | 1.092s | reason for not passing.
ROW = re.compile(r"^\|\s*(\d{4}_\w+)\s*\|\s*(\w+)\s*\|\s*[\d.]+s\s*\|\s*(.*)$")
FAILURE = re.compile(r'^### Test "(\d{4}_\w+)(?: \((\w+):\d+[^)]*\))?" failed at [^\n]*\n([^\n]*)', re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FIRST_MANUAL = "8000"  # tests from this number on need a person to check them
CONCURRENT_TESTS = 5  # they wait most of the time
CONFIG = "bootstrap.servers={}\ntest.topic.random=true\ntest.timeout.multiplier=5\n"
SCENARIOS = {"default": True, "noautocreate": False}
# The tests are written for three brokers, and for members that join within three seconds of each other.
BROKER = {
    "durability": "never", "num_partitions": PARTITIONS, "accept_any_replication_factor": True,
    "group_initial_rebalance_delay_ms": 3000,
}  # fmt: skip
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-run-class.sh": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """librdkafka's test-runner in one scenario, with its files and environment."""

    program: Path
    scenario: str
    config: Path
    logs: Path
    environment: dict[str, str]


def librdkafka(
    program: Path,
    logs: Path,
    parts: Mapping[str, list[str]],
    known_failures: Collection[str],
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Run librdkafka's tests that need a broker, each in its own process, so that an abort affects only one test.

    A test whose number is in `parts` is run part by part. Many tests allow the broker only a second or two, which
    is too short on a busy machine: a test that fails and is not in `known_failures` is run once more, alone.
    """
    if not program.is_file():
        raise NotAvailable(f"there is no test-runner of librdkafka at {str(program)!r}")
    logs.mkdir(parents=True, exist_ok=True)
    ended: dict[tuple[str, str], list[Outcome]] = {}
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wanted = [
            f"{number}/{part}" if part else number
            for number in sorted(_numbers(program, scratch))
            for part in parts.get(number, [""])
        ]
        for scenario, auto_create in SCENARIOS.items():
            broker = stack.enter_context(Broker(**BROKER, auto_create_topics_enable=auto_create))
            config = scratch / f"{scenario}.conf"
            config.write_text(CONFIG.format(broker.bootstrap_servers))
            environment = _environment(program, config)
            environment |= {"BROKERS": broker.bootstrap_servers, **_kafka_path(scratch / "kafka")}
            runner = Runner(
                program=program, scenario=scenario, config=config, logs=logs, environment=environment
            )  # fmt: skip

            def run(test: str, runner: Runner = runner) -> list[Outcome]:
                outcomes = list(_run(runner, test))
                for outcome in outcomes:
                    on_outcome(outcome)
                return outcomes

            with ThreadPoolExecutor(CONCURRENT_TESTS) as pool:
                for test, outcomes in zip(wanted, pool.map(run, wanted), strict=True):
                    ended[scenario, test] = outcomes
            for (within, test), outcomes in ended.items():
                if within == scenario and any(
                    o.state == "failed" and o.name not in known_failures for o in outcomes
                ):
                    ended[within, test] = run(test)
    return sorted((outcome for outcomes in ended.values() for outcome in outcomes), key=lambda o: o.name)


def _environment(program: Path, config: Path) -> dict[str, str]:
    libraries = [str(program.parents[1] / folder) for folder in ("src", "src-cpp")]
    path = os.pathsep.join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")])
    return {
        **os.environ, "LD_LIBRARY_PATH": path, "RDKAFKA_TEST_CONF": str(config),
        "TEST_KAFKA_VERSION": KAFKA_VERSION, "TEST_LEVEL": "2",
    }  # fmt: skip


def _kafka_path(folder: Path) -> dict[str, str]:
    """Return the variable by which tests find Kafka's commands, if tests/compat/java has cached its jars."""
    jars = next((found for found in sorted(CACHE.glob("kafka-tools-4*/jars"), reverse=True)), None)
    if jars is None or shutil.which("java") is None:
        return {}
    if not folder.exists():
        (folder / "bin").mkdir(parents=True)
        (folder / "libs").symlink_to(jars)
        for name, command in TOOLS.items():
            script = folder / "bin" / name
            script.write_text(f'#!/bin/sh\nexec java -cp \'{jars}/*\':"$CLASSPATH" {command} "$@"\n')
            script.chmod(0o755)
    return {"KAFKA_PATH": str(folder)}


def _numbers(program: Path, scratch: Path) -> set[str]:
    """Return the numbers of all tests; the runner's report also lists tests that it did not run."""
    report, config = scratch / "report.json", scratch / "empty.conf"
    config.write_text("")
    environment = {**_environment(program, config), "TESTS": "none", "TEST_REPORT": str(report)}
    subprocess.run([str(program), "-p1"], cwd=program.parent, env=environment, capture_output=True, check=False)
    names = json.loads(report.read_text())["tests"]
    return {name[:4] for name in names if name[:4].isdigit() and name < FIRST_MANUAL}


def _run(runner: Runner, test: str) -> Iterator[Outcome]:
    """Run the tests of a number that need a broker and this scenario, and yield their outcomes."""
    number, _, subtest = test.partition("/")
    environment = {**runner.environment, "TESTS": number} | ({"SUBTESTS": subtest} if subtest else {})
    nice = ["nice", "-n", "19"] if shutil.which("nice") else []
    command = [*nice, str(runner.program), "-p1", "-L", "-K", "-s", runner.scenario]
    log = runner.logs / f"{test.replace('/', '-')}-{runner.scenario}.log"
    with log.open("w") as output:
        try:
            code = subprocess.run(
                command, cwd=runner.program.parent, env=environment, stdout=output, stderr=output,
                timeout=TEST_WAIT_S, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            yield Outcome(name=test, state="failed", message=f"not finished after {TEST_WAIT_S} s")
            return
    text = COLOUR.sub("", log.read_text(errors="replace"))
    suffix = f"/{subtest}" if subtest else ""
    failed = {match[1]: f"{match[2] or ''}: {match[3]}".removeprefix(": ") for match in FAILURE.finditer(text)}
    rows = {match[1]: (match[2], match[3].strip()) for line in text.splitlines() if (match := ROW.match(line))}
    for name, message in failed.items():
        yield Outcome(name=name + suffix, state="failed", message=_first_line(message))
    for name, (state, message) in rows.items():
        # Tests that need no broker are filtered; tests of another number or scenario have no message.
        is_wanted = state != "SKIPPED" or (message and not message.startswith("Filtered due to"))
        if is_wanted and name not in failed:
            ended = state.lower() if state in ("PASSED", "SKIPPED") else "failed"
            shown = "" if ended == "passed" else _first_line(message)
            yield Outcome(name=name + suffix, state=ended, message=shown)
    if code and not failed and not rows:
        yield Outcome(name=test, state="failed", message=_first_line(tail(text)))
