"""Java's clients, in the version of Spark's connector and in the newest version.

Maven downloads the jars into ~/.cache/headwater; without java or mvn the tests are skipped.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client

VERSIONS = ("3.9.2", "4.3.1")
EVERY_VERSION = "HEADWATER_EVERY_VERSION" in os.environ
"""Set by `./dev compat java`; too slow for a normal run of the tests."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "headwater"
MAVEN_WAIT_S = 600
POM = (
    "<project><modelVersion>4.0.0</modelVersion><groupId>headwater</groupId><artifactId>compat</artifactId>"
    "<version>1</version><packaging>pom</packaging><dependencies><dependency><groupId>org.apache.kafka</groupId>"
    "<artifactId>kafka-tools</artifactId><version>{}</version></dependency></dependencies></project>"
)
MISSING = [program for program in ("java", "mvn") if shutil.which(program) is None]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run Kafka's tools in all versions, and our slow programs only in the newest, unless all are wanted."""
    if "version" not in metafunc.fixturenames:
        return
    if any(mark.args[0] == "version" for mark in metafunc.definition.iter_markers("parametrize")):
        return
    are_all = EVERY_VERSION or metafunc.module.__name__.endswith("test_java_clients")
    metafunc.parametrize("version", VERSIONS if are_all else VERSIONS[-1:], indirect=True, scope="session")


@pytest.fixture(scope="session")
def version(request: pytest.FixtureRequest) -> str:
    """Version of Kafka's jars."""
    return str(request.param)


@pytest.fixture(scope="session")
def jars(version: str) -> Path:
    """The folder of kafka-clients, kafka-tools and their dependencies."""
    if MISSING:
        pytest.skip(f"not on the PATH: {', '.join(MISSING)}")
    folder = CACHE / f"kafka-tools-{version}"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(POM.format(version))
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder / 'jars'}"]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=MAVEN_WAIT_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"Maven could not fetch kafka-tools {version}: {error}")
        (folder / "complete").touch()
    return folder / "jars"


@pytest.fixture(scope="session")
def java(jars: Path) -> list[str]:
    """The start of a command line, without optimized compilation: programs end before it would pay off."""
    return ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]


@pytest.fixture
def servers() -> Iterator[str]:
    with Broker(durability="never", num_partitions=3) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic(request: pytest.FixtureRequest, servers: str) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    with Client(servers) as client:
        client.create_topic(name, partitions=3)
    return name
