"""Commands that restart a broker on the same address and data: Headwater's, or Apache Kafka's."""

import sys
from pathlib import Path
from typing import Protocol

from support.brokers import KAFKA_VERSION, kafka_jars, start_kafka
from support.processes import free_port


class Log(Protocol):
    """A broker that keeps its address and its data when it is restarted."""

    @property
    def servers(self) -> str: ...

    @property
    def command(self) -> list[str]:
        """The command line that starts it."""


class HeadwaterLog:
    """`headwater broker`."""

    def __init__(self, folder: Path) -> None:
        self.servers = f"127.0.0.1:{free_port()}"
        program = [sys.executable, "-m", "headwater", "broker"]
        self.command = [*program, "--listen", self.servers, "--data", str(folder / "broker")]


class ApacheKafka:
    """A single node of Apache Kafka, from jars that Maven downloads."""

    def __init__(self, folder: Path) -> None:
        data = folder / "kafka"
        data.mkdir()
        first = start_kafka(kafka_jars(KAFKA_VERSION), data)
        first.stop()
        self.servers = first.servers
        self.command = first.process.args
