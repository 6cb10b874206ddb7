"""Rebuilds: a view is computed anew from the first record on, beside the one there is, then takes its place.

    asked       `headwater rebuild` notes it in the store
    computing   a query of its own, into rows of its own; the view is read and written as before
    closing     it has nearly caught up: the view's query is stopped, so that what is to be reached stands still
    swapped     rows, progress and checkpoint change places in one transaction; the view's query goes on from there

A crash at any point leaves what was asked in the store, and the next run goes on with it.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from headwater.app import App, View
from headwater.errors import ConflictError, UnavailableError
from headwater.spark.pipeline.watch import Watch
from headwater.spark.source.offsets import Offsets, from_json
from headwater.store.generations import Generation, Generations
from headwater.transmit.client.client import LATEST, Client

NEAR_RECORDS = 1000
"""So few behind the end of the log that the view may stand still while they are caught up with."""


StartView = Callable[[View, Generation], None]
"""Starts a view from the checkpoint of a generation, into the rows of the view's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildContext:
    """Where the log and the checkpoints are, and whether the run ends with the log."""

    servers: str
    checkpoints: Path
    once: bool


class Rebuilds:
    """The rebuilds of an app's views, taken a step further with each call of `tend`."""

    def __init__(
        self, watch: Watch, start_view: StartView, app: App, generations: Generations, around: RebuildContext
    ) -> None:
        self._watch = watch
        self._start_view = start_view
        self._app = app
        self._generations = generations
        self._around = around
        self._targets: dict[str, Offsets] = {}
        """What a rebuilt view must have read before it takes the place of the one that was stopped."""

    def tend(self) -> bool:
        """Go on with what was asked for; whether there was anything."""
        asked = self._generations.rebuilds()
        for generation in asked:
            self._tend(generation)
        return bool(asked)

    def give_up(self, name: str, reason: str) -> bool:
        """Drop a rebuild whose query has failed; False if it is none, or nothing else computes the view."""
        for generation in self._generations.rebuilds():
            if generation.name == name and self._watch.query(generation.query) is not None:
                self._watch.forget(name)
                self._drop(generation)
                self._watch.tell(generation.query, {"state": "running", "note": f"rebuild given up: {reason}"})
                return True
        return False

    def _tend(self, generation: Generation) -> None:
        view = next((view for view in self._app.views if view.name == generation.query), None)
        if view is None:  # The app no longer has it.
            return self._drop(generation)
        beside = self._watch.query(generation.name)
        if beside is None:
            self._start(view, generation)
        elif self._has_caught_up(generation, beside):
            self._swap(view, generation)

    def _start(self, view: View, generation: Generation) -> None:
        try:
            self._start_view(replace(view, name=generation.name), generation)
        except ConflictError:  # It was begun by an app that had another definition: what is there is of no use.
            self._drop(generation)
            self._generations.request_rebuild(view.name)

    def _drop(self, generation: Generation) -> None:
        self._generations.drop_rebuild(generation.query)
        self._targets.pop(generation.query, None)
        shutil.rmtree(self._around.checkpoints / generation.name, ignore_errors=True)

    def _has_caught_up(self, generation: Generation, beside: StreamingQuery) -> bool:
        view = self._watch.query(generation.query)
        if self._around.once:
            ended = not beside.isActive and beside.exception() is None
            return ended and (view is None or not view.isActive)
        progress = beside.lastProgress
        if progress is None:
            return False
        reached: Offsets = {}
        for source in progress.sources:
            reached.update(from_json(json.loads(source.endOffset)))
        if generation.query not in self._targets:
            near = max(NEAR_RECORDS, progress.numInputRows)
            behind = self._behind(reached)
            if behind is None or behind > near:
                return False
            self._watch.forget(generation.query)
            # Asked for now that it has stopped: nothing that it has shown is behind this.
            self._targets[generation.query] = self._latest(reached)
        return all(reached.get(tp, 0) >= offset for tp, offset in self._targets[generation.query].items())

    def _behind(self, reached: Offsets) -> int | None:
        try:
            latest = self._latest(reached)
        except UnavailableError:
            return None
        return sum(max(0, latest[tp] - offset) for tp, offset in reached.items())

    def _latest(self, partitions: Offsets) -> Offsets:
        with Client(self._around.servers) as client:
            return client.offsets(partitions, LATEST)

    def _swap(self, view: View, generation: Generation) -> None:
        before = self._generations.current(view.name)
        self._watch.forget(generation.name)
        self._watch.forget(view.name)
        self._generations.swap(generation)
        self._targets.pop(view.name, None)
        shutil.rmtree(self._around.checkpoints / before.name, ignore_errors=True)
        self._watch.tell(view.name, {"state": "starting", "note": "rebuilt from the log and swapped in"})
        self._start_view(view, generation)
