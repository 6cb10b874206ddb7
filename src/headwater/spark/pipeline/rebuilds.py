"""Rebuilds: a view is recomputed from the first record alongside the current one, which it then replaces.

    requested   `headwater rebuild` records it in the store
    computing   a query of its own writes rows of its own; the view is read and written as before
    closing     it has nearly caught up: the view's query is stopped, so that its end offsets no longer move
    swapped     rows, progress and checkpoint are exchanged in one transaction; the view's query continues there

A crash at any point leaves the request in the store, and the next run continues it.
"""

import shutil
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol

from headwater.app import App, Query, View
from headwater.errors import ConflictError
from headwater.spark.pipeline.running_queries import (
    RunningQueries,
    RunningQuery,
    latest_offsets,
    offsets_read,
    records_behind,
)
from headwater.spark.pipeline.settings import PipelineSettings
from headwater.spark.source.offsets import Offsets
from headwater.store.pipelines.generations import Generation, Generations

NEAR_RECORDS = 1000
"""A rebuild this close to the end of the log catches up while the view's query is stopped."""


class StartsQueries(Protocol):
    """Starts a query from the checkpoint of a generation, into the rows of the query's name."""

    def start_query(self, query: Query, generation: Generation) -> None: ...


class Rebuilds:
    """The rebuilds of an app's views, one step further with each call of `advance`."""

    def __init__(
        self,
        queries: RunningQueries,
        launcher: StartsQueries,
        app: App,
        generations: Generations,
        settings: PipelineSettings,
    ) -> None:
        self._queries = queries
        self._launcher = launcher
        self._app = app
        self._generations = generations
        self._settings = settings
        self.failed: dict[str, str] = {}
        """Reasons why views were not rebuilt, by view."""
        self._targets: dict[str, Offsets] = {}
        """Offsets that a rebuild must have read before it replaces the view whose query was stopped."""

    def advance(self, paused: AbstractSet[str] = frozenset()) -> bool:
        """Continue the requested rebuilds, except those of paused views; return whether there were any."""
        requested = [generation for generation in self._generations.rebuilds() if generation.query not in paused]
        for generation in requested:
            self._advance(generation)
        return bool(requested)

    def give_up(self, name: str, reason: str) -> bool:
        """Drop a rebuild whose query has failed; False if it is none, or no other query computes the view."""
        for generation in self._generations.rebuilds():
            if generation.name == name and self._queries.get(generation.query) is not None:
                self._queries.forget(name)
                self._drop(generation)
                self.failed[generation.query] = reason
                body = {"state": "running", "note": f"rebuild given up: {reason}"}
                self._queries.report(generation.query, body)
                return True
        return False

    def _advance(self, generation: Generation) -> None:
        view = next((view for view in self._app.views if view.name == generation.query), None)
        if view is None:  # The app no longer has it.
            return self._drop(generation)
        rebuild = self._queries.get(generation.name)
        if rebuild is None:
            self._start(view, generation)
        elif self._has_caught_up(generation, rebuild):
            self._swap(view, generation)

    def _start(self, view: View, generation: Generation) -> None:
        try:
            self._launcher.start_query(replace(view, name=generation.name), generation)
        except ConflictError:  # The app's definition has changed since the rebuild began: begin a new one.
            self._drop(generation)
            self._generations.request_rebuild(view.name)

    def _drop(self, generation: Generation) -> None:
        self._generations.drop_rebuild(generation.query)
        self._targets.pop(generation.query, None)
        shutil.rmtree(self._settings.checkpoint(generation.name), ignore_errors=True)

    def _has_caught_up(self, generation: Generation, rebuild: RunningQuery) -> bool:
        view = self._queries.get(generation.query)
        if self._settings.once:
            ended = not rebuild.streaming.isActive and rebuild.streaming.exception() is None
            return ended and (view is None or not view.streaming.isActive)
        progress = rebuild.streaming.lastProgress
        if progress is None:
            return False
        servers, reached = self._settings.bootstrap_servers, offsets_read(progress)
        if generation.query not in self._targets:
            near = max(NEAR_RECORDS, progress.numInputRows)
            behind = records_behind(servers, reached)
            if behind is None or behind > near:
                return False
            self._queries.forget(generation.query)
            # Read after the view's query has stopped: the view shows no record after these offsets.
            self._targets[generation.query] = latest_offsets(servers, reached)
        return all(reached.get(tp, 0) >= offset for tp, offset in self._targets[generation.query].items())

    def _swap(self, view: View, generation: Generation) -> None:
        before = self._generations.current(view.name)
        self._queries.forget(generation.name)
        self._queries.forget(view.name)
        self._generations.swap(generation)
        self._targets.pop(view.name, None)
        shutil.rmtree(self._settings.checkpoint(before.name), ignore_errors=True)
        self._queries.report(view.name, {"state": "starting", "note": "rebuilt from the log and swapped in"})
        self._launcher.start_query(view, generation)
