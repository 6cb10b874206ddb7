"""Runs other people's test suites against our broker: kafka-python's from its sdist, librdkafka's if it is built.

Each gives back its tests with how they ended; one that cannot be had here raises NotHere with the reason.
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
KAFKA_VERSION = "4.3.0"  # what the suites are told to expect; ours answers as that does
PARTITIONS = 4  # both suites are written for topics that have four unless told otherwise
SUITE_WAIT_S = 1800
TEST_WAIT_S = 900


class NotHere(Exception):
    """The suite cannot be run on this machine; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One test of a suite and how it ended."""

    name: str
    state: str
    """passed, failed or skipped"""
    said: str = ""
    """What it said of its end, if it did not pass: the first line."""


def tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-15:])


# -- kafka-python ---------------------------------------------------------------------------------------------


def kafka_python(version: str) -> list[Outcome]:
    """kafka-python's integration tests, those of the version that is installed."""
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
            raise NotHere(f"pytest did not get as far as to report:\n{tail(done.stdout + done.stderr)}")
        return sorted(_junit(ElementTree.parse(report).getroot()), key=lambda outcome: outcome.name)


def _sdist(version: str) -> Path:
    """The sdist, unpacked in the user's cache."""
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
                raise NotHere(f"pip cannot download the sdist of kafka-python {version}: {why}") from error
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
        problem = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
        skipped = case.find("skipped")
        if problem is not None:
            yield Outcome(name=name, state="failed", said=_first_line(problem.get("message")))
        elif skipped is not None:
            yield Outcome(name=name, state="skipped", said=_first_line(skipped.get("message")))
        else:
            yield Outcome(name=name, state="passed")


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0][:200]


# -- librdkafka -----------------------------------------------------------------------------------------------

# A line of its closing table: | 0001_multiobj | PASSED | 1.092s | and why not.
ROW = re.compile(r"^\|\s*(\d{4}_\w+)\s*\|\s*(\w+)\s*\|\s*[\d.]+s\s*\|\s*(.*)$")
FAILURE = re.compile(r'^### Test "(\d{4}_\w+)(?: \((\w+):\d+[^)]*\))?" failed at [^\n]*\n([^\n]*)', re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FIRST_MANUAL = "8000"  # from here on they wait for somebody to look at them
AT_A_TIME = 5  # they wait most of the time
CONFIG = "bootstrap.servers={}\ntest.topic.random=true\ntest.timeout.multiplier=5\n"
SCENARIOS = {"default": True, "noautocreate": False}
# The tests are written for three brokers, and for members that come within three seconds of each other.
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
    """librdkafka's test-runner in one scenario, and what it needs to find."""

    program: Path
    scenario: str
    config: Path
    logs: Path
    environment: dict[str, str]


def librdkafka(
    program: Path,
    logs: Path,
    parts: Mapping[str, list[str]],
    unable: Collection[str],
    say: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """librdkafka's tests that want a broker, each in a process of its own, so that one that aborts stands alone.

    A test whose number is in `parts` is run part by part. Many give the broker a second or two, which a machine
    that is busy may not have: one that fails and is not among the `unable` is run once more, by itself.
    """
    if not program.is_file():
        raise NotHere(f"there is no test-runner of librdkafka at {program}")
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
                    say(outcome)
                return outcomes

            with ThreadPoolExecutor(AT_A_TIME) as pool:
                for test, outcomes in zip(wanted, pool.map(run, wanted), strict=True):
                    ended[scenario, test] = outcomes
            for (within, test), outcomes in ended.items():
                if within == scenario and any(o.state == "failed" and o.name not in unable for o in outcomes):
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
    """Where the tests find Kafka's commands, if its jars are in the cache (tests/compat/java fetches them)."""
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
    """The numbers of all tests; its report lists those as well that it was not asked to run."""
    report, config = scratch / "report.json", scratch / "empty.conf"
    config.write_text("")
    environment = {**_environment(program, config), "TESTS": "none", "TEST_REPORT": str(report)}
    subprocess.run([str(program), "-p1"], cwd=program.parent, env=environment, capture_output=True, check=False)
    names = json.loads(report.read_text())["tests"]
    return {name[:4] for name in names if name[:4].isdigit() and name < FIRST_MANUAL}


def _run(runner: Runner, test: str) -> Iterator[Outcome]:
    """Those tests of a number that want a broker and this scenario; none, where there are none."""
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
            yield Outcome(name=test, state="failed", said=f"not done after {TEST_WAIT_S} s")
            return
    text = COLOUR.sub("", log.read_text(errors="replace"))
    behind = f"/{subtest}" if subtest else ""
    failed = {match[1]: f"{match[2] or ''}: {match[3]}".removeprefix(": ") for match in FAILURE.finditer(text)}
    rows = {match[1]: (match[2], match[3].strip()) for line in text.splitlines() if (match := ROW.match(line))}
    for name, said in failed.items():
        yield Outcome(name=name + behind, state="failed", said=_first_line(said))
    for name, (state, said) in rows.items():
        # Those that need no broker are filtered; those of another number or scenario say nothing.
        is_asked = state != "SKIPPED" or (said and not said.startswith("Filtered due to"))
        if is_asked and name not in failed:
            ended = state.lower() if state in ("PASSED", "SKIPPED") else "failed"
            yield Outcome(name=name + behind, state=ended, said="" if ended == "passed" else _first_line(said))
    if code and not failed and not rows:
        yield Outcome(name=test, state="failed", said=_first_line(tail(text)))
