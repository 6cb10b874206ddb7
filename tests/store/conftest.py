"""Every test of the store that takes `place` runs on an SQLite file and in a schema of a real PostgreSQL."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from headwater.store.views import ViewStore

Place = Path | str
OpenStore = Callable[..., ViewStore]


@pytest.fixture(params=["sqlite", "postgresql"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Place]:
    """A function that gives an empty place each time."""

    def make() -> Place:
        if request.param == "sqlite":
            return tmp_path / f"{uuid4().hex}.db"
        return f"{request.getfixturevalue('postgres').dsn}?schema=s{uuid4().hex}"

    return make


@pytest.fixture
def place(new_place: Callable[[], Place]) -> Place:
    return new_place()


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    """Opens stores, and closes them at the end."""
    opened: list[ViewStore] = []

    def make(place: Place, *, read_only: bool = False) -> ViewStore:
        opened.append(ViewStore(place, read_only=read_only))
        return opened[-1]

    yield make
    for store in opened:
        store.close()
