"""Java's clients in the version inside Spark's connector and in the newest.

The jars come from Maven by their coordinates, into ~/.cache/headwater; without java or mvn the tests are skipped.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.transmit.client import Client
from headwater.transmit.embedded import Broker

VERSIONS = ("3.9.2", "4.3.1")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "headwater"
MAVEN_WAIT_S = 600
POM = (
    "<project><modelVersion>4.0.0</modelVersion><groupId>headwater</groupId><artifactId>compat</artifactId>"
    "<version>1</version><packaging>pom</packaging><dependencies><dependency><groupId>org.apache.kafka</groupId>"
    "<artifactId>kafka-tools</artifactId><version>{}</version></dependency></dependencies></project>"
)
MISSING = [program for program in ("java", "mvn") if shutil.which(program) is None]


@pytest.fixture(scope="session", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """The version of Kafka's jars."""
    return str(request.param)


@pytest.fixture(scope="session")
def jars(version: str) -> Path:
    """The folder of kafka-clients, kafka-tools and what they need."""
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
