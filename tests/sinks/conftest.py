"""A real PostgreSQL, for all tests of sinks."""

from collections.abc import Iterator

import pytest

from torture.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server
