"""The steps of a rebuild, without Spark."""

from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.clock import ManualClock
from headwater.errors import ConflictError
from headwater.spark.pipeline.rebuilds import Rebuilds
from headwater.spark.pipeline.running_queries import RunningQueries
from headwater.spark.pipeline.settings import PipelineSettings
from headwater.store.pipelines.facts import FactStore
from headwater.store.pipelines.generations import Generation, Generations
from headwater.store.shapes import ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore
from tests.spark.pipeline.fake_queries import FakeStarts


class FakeLauncher:
    """Launches fake queries, and declares their views."""

    def __init__(self, queries: RunningQueries, store: ViewStore) -> None:
        self.queries, self.store = queries, store
        self.started: list[tuple[str, Generation]] = []
        self.conflicts = 0

    def start_query(self, view: hw.View, generation: Generation) -> None:
        if self.conflicts:
            self.conflicts -= 1
            raise ConflictError("another definition")
        self.store.declare(ViewShape(name=view.name, key=("k",), columns=(Column("k", "string"),)))
        self.queries.launch(view.name, FakeStarts())
        self.started.append((view.name, generation))


class World:
    """An app with a view 'revenue' that runs, and its rebuilds."""

    def __init__(self, folder: Path) -> None:
        app: Any = hw.App("shop")
        app.view(app.topic("orders"), key="k", name="revenue")(lambda orders: orders)
        self.store = ViewStore(folder / "views.db")
        self.generations = Generations(self.store)
        self.facts = FactStore(folder / "facts.db")
        self.queries = RunningQueries(self.facts, ManualClock())
        self.launcher = FakeLauncher(self.queries, self.store)
        self.settings = PipelineSettings(bootstrap_servers="127.0.0.1:9", data=folder, once=True)
        launcher: Any = self.launcher
        self.rebuilds = Rebuilds(self.queries, launcher, app, self.generations, self.settings)
        self.launcher.start_query(app.views[0], self.generations.current("revenue"))

    def end(self, name: str) -> None:
        self.queries[name].streaming.stop()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_without_a_request_there_is_nothing_to_do(world: World) -> None:
    assert not world.rebuilds.advance()


def test_a_rebuild_runs_alongside_the_view_and_replaces_it_when_both_have_ended(world: World) -> None:
    requested = world.generations.request_rebuild("revenue")
    checkpoint = world.settings.checkpoint("revenue")
    checkpoint.mkdir(parents=True)
    assert world.rebuilds.advance()
    assert [name for name, _ in world.queries] == ["revenue", requested.name]
    world.end(requested.name)
    assert world.rebuilds.advance()  # The view's query still runs.
    assert world.generations.current("revenue").number == 0
    world.end("revenue")
    assert world.rebuilds.advance()
    assert world.generations.current("revenue").number == requested.number
    assert [name for name, _ in world.queries] == ["revenue"]
    assert world.launcher.started[-1] == ("revenue", requested)
    assert not checkpoint.exists()
    assert not world.rebuilds.advance()


def test_a_rebuild_of_a_changed_definition_begins_again(world: World) -> None:
    first = world.generations.request_rebuild("revenue")
    world.launcher.conflicts = 1
    world.rebuilds.advance()
    world.rebuilds.advance()
    assert [name for name, _ in world.queries] == ["revenue", first.name]


def test_a_failed_rebuild_is_given_up_and_the_view_is_kept(world: World) -> None:
    requested = world.generations.request_rebuild("revenue")
    world.rebuilds.advance()
    assert world.rebuilds.give_up(requested.name, "no")
    assert [name for name, _ in world.queries] == ["revenue"]
    assert world.facts.latest("revenue")[-1].body == {"state": "running", "note": "rebuild given up: no"}
    assert world.rebuilds.failed == {"revenue": "no"}
    assert not world.rebuilds.advance()


def test_a_failed_view_is_not_given_up_as_a_rebuild(world: World) -> None:
    world.generations.request_rebuild("revenue")
    assert not world.rebuilds.give_up("revenue", "no")


def test_a_rebuild_of_a_view_that_the_app_no_longer_has_is_dropped(world: World) -> None:
    world.generations.request_rebuild("gone")
    assert world.rebuilds.advance()
    assert not world.rebuilds.advance()
