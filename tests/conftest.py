"""Fixtures that many tests share: a broker, a PostgreSQL server, a Spark session, and a producer."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import Producer
from hypothesis import settings

from headwater.transmit.broker.embedded import Broker
from support.postgres import PostgresServer
from support.processes import SHORT_LIVED

# No deadline: the time of an example depends on the load of the machine.
settings.register_profile("headwater", deadline=None)
settings.load_profile("headwater")

# Otherwise Spark's workers would also look for packages in the folder of the tests.
os.environ.setdefault("PYTHONSAFEPATH", "1")

# As in Spark's workers: the frames in tests are small, and more threads would only wait for each other.
os.environ.setdefault("POLARS_MAX_THREADS", "1")

# Also for the session below, although it lives long: most of its code runs a few times only.
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
    from headwater.spark.session.session import spark_session

    log_file: Path = tmp_path_factory.mktemp("spark") / "spark.log"
    with spark_session("tests", master="local[2]", log_file=log_file) as session:
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
        target = {} if partition < 0 else {"partition": partition}
        producer.produce(topic, value=value, on_delivery=lambda e, _: errors.append(e) if e else None, **target)
        producer.poll(0)
    assert producer.flush(30) == 0
    assert errors == []
