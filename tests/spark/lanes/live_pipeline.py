"""A pipeline that runs and is watched in the background, for tests of lanes."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headwater as hw
from headwater.clock import SystemClock
from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
from headwater.store.pipelines.controls import Action, Controls
from headwater.store.pipelines.facts import FactStore
from headwater.store.views import ViewStore

PATIENCE_S = 90.0


class LivePipeline:
    """Runs apps over the same data, one after the other."""

    def __init__(self, spark: Any, servers: str, folder: Path) -> None:
        self._spark, self.servers, self.folder = spark, servers, folder
        self.store = ViewStore(folder / "views.db")
        self.facts = FactStore(folder / "facts.db")
        self.controls = Controls(self.store)
        self.lines: list[str] = []
        self.pipeline: Pipeline | None = None

    @contextmanager
    def running(self, app: hw.App) -> Iterator[Pipeline]:
        settings = PipelineSettings(bootstrap_servers=self.servers, data=self.folder)
        clock = SystemClock()
        pipeline = Pipeline(app, self._spark, self.store, self.facts, settings, clock, self.lines.append)
        stopping = threading.Event()

        def watch() -> None:
            while not stopping.wait(0.05):
                pipeline.run(until=clock.monotonic())

        thread = threading.Thread(target=watch)
        self.pipeline = pipeline
        pipeline.start()
        thread.start()
        try:
            yield pipeline
        finally:
            stopping.set()
            thread.join()
            pipeline.stop()

    def lanes(self) -> list[set[str]]:
        """Return the names of the queries in each lane, the front first."""
        assert self.pipeline is not None
        lanes = self.pipeline._launcher._lanes
        assert lanes is not None
        return [{member.name for member in lane.members} for lane in lanes._lanes if not lane.is_ended]

    def query(self, name: str) -> Any:
        assert self.pipeline is not None
        return self.pipeline._queries[name].streaming

    def state(self, name: str) -> str:
        return str(self.facts.latest(name)[-1].body["state"])

    def ask(self, query: str, action: Action) -> str | None:
        """Send a request, wait for the answer, and return the reason if it was refused."""
        self.controls.request(query, action)
        wait_until(lambda: not self.controls.is_waiting(query))
        return self.controls.refusal(query)

    def numbers(self, view: str) -> list[int]:
        return [row["n"] for row in self.store.rows(view, limit=10_000)]

    def positions(self) -> dict[str, Any]:
        """Return the offsets of all views as one reader sees them."""
        found = self.store.reading().execute("select query, note from headwater_progress").fetchall()
        return {query: note["offsets"] for query, text in found if "offsets" in (note := json.loads(text))}


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.02)
