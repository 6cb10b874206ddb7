"""Brokers, each in its own process: Apache Kafka from jars that Maven downloads, and Headwater."""

import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from support.maven import jars
from support.processes import free_port

KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.25.1"
START_WAIT_S = 60
STOP_WAIT_S = 20
_READY_EVERY_S = 0.02

_LOGGING = (
    '<Configuration status="OFF"><Appenders><Console name="c" target="SYSTEM_ERR"/></Appenders>'
    '<Loggers><Root level="error"><AppenderRef ref="c"/></Root></Loggers></Configuration>'
)
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={data}/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"


@dataclass(slots=True)
class Running:
    """A running broker; `started` is the monotonic time just before its process was started."""

    process: subprocess.Popen[bytes]
    servers: str
    started: float

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def kafka_jars(version: str) -> Path:
    """Return the folder with the jars of Kafka and its tools; Maven downloads them if they are missing."""
    dependencies = [
        ("org.apache.kafka", "kafka_2.13", version),
        ("org.apache.kafka", "kafka-tools", version),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
    ]
    found = jars(f"kafka-{version}", dependencies, transitive=True)
    (found.parent / "log4j2.xml").write_text(_LOGGING)
    return found


def java_version() -> str:
    """Return the version of the Java that runs Kafka and its tools."""
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=START_WAIT_S, check=False)
    found = re.search(r'"([^"]+)"', done.stderr)
    return f"Java {found[1]}" if found else "an unknown Java"


def java(classes: Path, main: str, *arguments: str, heap: str = "1G") -> list[str]:
    """Return the command line of one of Kafka's Java programs."""
    logging = f"-Dlog4j2.configurationFile={classes.parent / 'log4j2.xml'}"
    return ["java", f"-Xmx{heap}", logging, "-cp", f"{classes}/*", main, *arguments]


def start_kafka(classes: Path, data: Path) -> Running:
    """Start a single node in KRaft mode with its default settings; formatting is not part of its start time."""
    port, controller = free_port(), free_port()
    config = data / "server.properties"
    config.write_text(_PROPERTIES.format(port=port, controller=controller, data=data))
    format_it = java(classes, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(config))
    subprocess.run(format_it, check=True, capture_output=True, timeout=START_WAIT_S)
    return _start(java(classes, "kafka.Kafka", str(config)), port, data)


def start_headwater(data: Path, durability: str) -> Running:
    port = free_port()
    program = [sys.executable, "-m", "headwater", "broker"]
    options = ["--listen", f"127.0.0.1:{port}", "--data", str(data), "--durability", durability]
    return _start([*program, *options], port, data)


def _start(command: list[str], port: int, data: Path) -> Running:
    with open(data / "output.txt", "wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=output)
    broker = Running(process, f"127.0.0.1:{port}", started)
    while time.monotonic() < started + START_WAIT_S and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return broker
        time.sleep(_READY_EVERY_S)
    broker.stop()
    raise RuntimeError(f"{command[0]} did not listen:\n{(data / 'output.txt').read_text()[-2000:]}")


def create_topic(servers: str, name: str, partitions: int) -> str:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(timeout=30)
    return name
