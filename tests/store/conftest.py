"""Fixtures: tests of the store that use `location` run on an SQLite file and in a schema of a real PostgreSQL."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from headwater.store.views import ViewStore

Location = Path | str
OpenStore = Callable[..., ViewStore]


@pytest.fixture(params=["sqlite", "postgresql"])
def new_location(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Location]:
    """A function that returns a new, empty location each time."""

    def make() -> Location:
        if request.param == "sqlite":
            return tmp_path / f"{uuid4().hex}.db"
        return f"{request.getfixturevalue('postgres').dsn}?schema=s{uuid4().hex}"

    return make


@pytest.fixture
def location(new_location: Callable[[], Location]) -> Location:
    return new_location()


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    """A function that opens stores; they are closed at the end of the test."""
    opened: list[ViewStore] = []

    def make(location: Location, *, read_only: bool = False) -> ViewStore:
        opened.append(ViewStore(location, read_only=read_only))
        return opened[-1]

    yield make
    for store in opened:
        store.close()
