"""Checks of a query against its checkpoint before it is started; without Spark."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.clock import ManualClock
from headwater.errors import ConflictError
from headwater.spark.definition.definition import Definition, read_definition, write_definition
from headwater.spark.pipeline.launcher import QueryLauncher
from headwater.spark.pipeline.plan import Plan
from headwater.spark.pipeline.running_queries import RunningQueries
from headwater.spark.pipeline.settings import PipelineSettings
from headwater.store.pipelines.facts import FactStore
from headwater.store.pipelines.generations import Generation
from headwater.store.shapes import ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore

BEFORE = Definition(
    topics=[], key=["k"], columns={"k": "string"}, operators=[], native=[], partitions=2, version=2, kind="view"
)
AFTER = replace(BEFORE, columns={"k": "bigint"})
CURRENT = Generation(query="revenue")


class World:
    """A view whose checkpoint was made for another definition."""

    def __init__(self, folder: Path) -> None:
        app: Any = hw.App("shop")
        app.view(app.topic("orders"), key="k", name="revenue")(lambda orders: orders)
        app.sink(app.topic("events"), to=hw.Parquet(folder / "out"), name="archive")(lambda orders: orders)
        self.store = ViewStore(folder / "views.db")
        self.facts = FactStore(folder / "facts.db")
        settings = PipelineSettings(bootstrap_servers="127.0.0.1:9", data=folder, once=True)
        spark: Any = None
        queries = RunningQueries(self.facts, ManualClock())
        self.launcher = QueryLauncher(app, spark, self.store, queries, settings, ManualClock())
        self.view, self.sink = app.queries
        self.checkpoint = settings.checkpoint("revenue")
        write_definition(self.checkpoint, BEFORE)
        (self.checkpoint / "metadata").write_text('{"id": "run"}')

    def write(self, kind: str, number: int) -> None:
        (self.checkpoint / kind).mkdir(exist_ok=True)
        (self.checkpoint / kind / str(number)).write_text("v1\n{}\n{}")

    def plan(self, definition: Definition, query: Any = None) -> Plan:
        rows: Any = None
        return Plan(query=query or self.view, rows=rows, mode="append", definition=definition)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_query_that_never_began_a_batch_takes_any_definition(world: World) -> None:
    assert world.launcher.check_definition(world.plan(AFTER), CURRENT) == []
    assert world.launcher.check_definition(world.plan(AFTER, world.sink), CURRENT) == []
    world.launcher.save_definition(world.plan(replace(AFTER, partitions=9)), CURRENT, [])
    assert read_definition(world.checkpoint) == replace(AFTER, partitions=9)


def test_a_view_that_never_wrote_a_batch_begins_again(world: World) -> None:
    world.write("offsets", 0)
    assert world.launcher.check_definition(world.plan(AFTER), CURRENT) == []
    assert not world.checkpoint.exists()


def test_a_view_whose_first_batch_was_written_is_refused(world: World) -> None:
    """The store has the batch, although Spark did not get to record it."""
    world.write("offsets", 0)
    world.store.declare(ViewShape(name="revenue", key=("k",), columns=(Column("k", "string"),)))
    world.store.commit_rows("revenue", pa.table({"k": ["a"]}), run="run", batch=0)
    with pytest.raises(ConflictError, match="the result, column 'k': string -> bigint"):
        world.launcher.check_definition(world.plan(AFTER), CURRENT)
    assert world.checkpoint.exists()


def test_a_sink_that_began_a_batch_is_refused(world: World) -> None:
    world.write("offsets", 0)
    with pytest.raises(ConflictError, match="column 'k'"):
        world.launcher.check_definition(world.plan(AFTER, world.sink), CURRENT)


def test_a_view_with_batches_is_refused(world: World) -> None:
    world.write("offsets", 0)
    world.write("commits", 0)
    with pytest.raises(ConflictError, match="column 'k'"):
        world.launcher.check_definition(world.plan(AFTER), CURRENT)


def test_a_compatible_change_is_reported_once(world: World) -> None:
    world.write("offsets", 0)
    world.write("commits", 0)
    filtered = world.plan(replace(BEFORE, steps={"result": {"where": ["(n > 1)"]}}))
    write_definition(world.checkpoint, replace(BEFORE, steps={"result": {}}))
    for _ in range(2):
        found = world.launcher.check_definition(filtered, CURRENT)
        world.launcher.save_definition(filtered, CURRENT, found)
    note = "continues with a change that applies to new records only: the function: filter added: (n > 1)"
    assert world.launcher.notes == [f"view revenue {note}"]
    assert [fact.body.get("note") for fact in world.facts.latest("revenue")] == [note]


def test_the_store_takes_another_shape_of_a_view_that_never_had_rows(world: World) -> None:
    shape = ViewShape(name="revenue", key=("k",), columns=(Column("k", "string"), Column("n", "bigint")))
    world.store.declare(shape)
    world.store.declare(replace(shape, columns=(Column("k", "bigint"),)))
    world.store.declare(shape)
    world.store.commit_rows("revenue", pa.table({"k": ["a"], "n": [1]}), run="run", batch=0)
    world.store.declare(replace(shape, columns=shape.columns[::-1]))
    world.store.commit_rows("revenue", pa.table({"n": [2], "k": ["b"]}), run="run", batch=1)
    assert world.store.rows("revenue") == [{"k": "a", "n": 1}, {"k": "b", "n": 2}]
    with pytest.raises(ConflictError, match="cannot continue view 'revenue'"):
        world.store.declare(replace(shape, columns=shape.columns[:1]))
