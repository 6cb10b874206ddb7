"""Brokers to measure, each in a process of its own: Apache Kafka from Maven's jars, and ours."""

import random
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from _maven import jars
from confluent_kafka.admin import AdminClient, NewTopic

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
    """A broker that was started; `started` is the time just before its process was."""

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
    """The folder with Kafka's jars, its tools among them; fetched by Maven where they are missing."""
    dependencies = [
        ("org.apache.kafka", "kafka_2.13", version),
        ("org.apache.kafka", "kafka-tools", version),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
    ]
    found = jars(f"kafka-{version}", dependencies, transitive=True)
    (found.parent / "log4j2.xml").write_text(_LOGGING)
    return found


def java_version() -> str:
    """The Java that runs Kafka and its tools, as it names itself."""
    told = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=START_WAIT_S, check=False)
    found = re.search(r'"([^"]+)"', told.stderr)
    return f"Java {found[1]}" if found else "an unknown Java"


def java(classes: Path, main: str, *arguments: str, heap: str = "1G") -> list[str]:
    """The command line of a Java program of Kafka's."""
    logging = f"-Dlog4j2.configurationFile={classes.parent / 'log4j2.xml'}"
    return ["java", f"-Xmx{heap}", logging, "-cp", f"{classes}/*", main, *arguments]


def start_kafka(classes: Path, data: Path) -> Running:
    """A single node in the KRaft mode, with its shipped defaults; the time starts behind formatting."""
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


def free_port() -> int:
    """A port below those that the system gives to outgoing connections, so that none of them takes it first."""
    for port in random.sample(range(19092, 32000), 1000):  # at random: another bench may run beside this one
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in _given:
                _given.add(port)
                return port
    raise RuntimeError("no port is free between 19092 and 32000")


_given: set[int] = set()


def create_topic(servers: str, name: str, partitions: int) -> str:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(timeout=30)
    return name
