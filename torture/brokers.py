"""The log under an app that is tortured: our broker, or the Apache Kafka of the benchmarks."""

import importlib
import sys
from pathlib import Path
from typing import Protocol

from torture.processes import free_port

_BENCH = Path(__file__).parents[1] / "bench"


class Log(Protocol):
    """A broker that keeps its address and its data when it is started again."""

    @property
    def servers(self) -> str: ...

    @property
    def command(self) -> list[str]:
        """What starts it."""


class OurLog:
    """`headwater broker`."""

    def __init__(self, folder: Path) -> None:
        self.servers = f"127.0.0.1:{free_port()}"
        program = [sys.executable, "-m", "headwater", "broker"]
        self.command = [*program, "--listen", self.servers, "--data", str(folder / "broker")]


class ApacheKafka:
    """A node of Apache Kafka, from Maven's jars."""

    def __init__(self, folder: Path) -> None:
        sys.path.append(str(_BENCH))
        brokers = importlib.import_module("_brokers")
        data = folder / "kafka"
        data.mkdir()
        first = brokers.start_kafka(brokers.kafka_jars(brokers.KAFKA_VERSION), data)
        first.stop()
        self.servers = first.servers
        self.command = first.process.args
