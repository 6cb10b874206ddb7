"""What many tests share: a broker, a PostgreSQL, a Spark session, and a way to produce."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import Producer
from hypothesis import settings

from headwater.transmit.embedded import Broker
from support.postgres import PostgresServer
from support.processes import SHORT_LIVED

# How long an example takes depends on what else the machine does.
settings.register_profile("headwater", deadline=None)
settings.load_profile("headwater")

# Spark's workers would otherwise look for packages beside the tests.
os.environ.setdefault("PYTHONSAFEPATH", "1")

# As in Spark's workers: the frames of tests are small, and threads only wait for each other.
os.environ.setdefault("POLARS_MAX_THREADS", "1")

os.environ["SPARK_SUBMIT_OPTS"] = SHORT_LIVED


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from headwater.spark.session import spark_session

    log_file: Path = tmp_path_factory.mktemp("spark") / "spark.log"
    os.environ["SPARK_SUBMIT_OPTS"] = ""  # This one lives long.
    with spark_session("tests", master="local[2]", log_file=log_file) as session:
        os.environ["SPARK_SUBMIT_OPTS"] = SHORT_LIVED
        yield session


class Produce(Protocol):
    """Produces values with a real client and waits until all are acknowledged."""

    def __call__(
        self, servers: str, topic: str, values: Iterable[bytes | None], *, partition: int = -1
    ) -> None: ...


@pytest.fixture
def produce() -> Produce:
    return _produce


def _produce(servers: str, topic: str, values: Iterable[bytes | None], *, partition: int = -1) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    errors = []
    for value in values:
        where = {} if partition < 0 else {"partition": partition}
        producer.produce(topic, value=value, on_delivery=lambda e, _: errors.append(e) if e else None, **where)
        producer.poll(0)
    assert producer.flush(30) == 0
    assert errors == []
