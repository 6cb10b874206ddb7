"""Runs an app on Spark: a query for each view and each sink, and one for each topic's dead letters."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from pyspark.sql import SparkSession

from headwater.app import App, Query
from headwater.clock import Clock
from headwater.errors import ConflictError, CorruptError, HeadwaterError, InvalidError, UnavailableError
from headwater.spark.definition.differences import Difference
from headwater.spark.pipeline.batch_sinks import BatchSink
from headwater.spark.pipeline.failures import Failure
from headwater.spark.pipeline.launcher import QueryLauncher
from headwater.spark.pipeline.new_checkpoint import restart_from_start
from headwater.spark.pipeline.plan import Plan
from headwater.spark.pipeline.poison import Isolation
from headwater.spark.pipeline.poison_search import IsolationContext, nowhere
from headwater.spark.pipeline.rebuilds import Rebuilds
from headwater.spark.pipeline.running_queries import Launch, RunningQueries
from headwater.spark.pipeline.settings import PipelineSettings
from headwater.spark.pipeline.watch import Announce, Decision, Isolate, Relaunch, Suspend, Watch
from headwater.spark.session.jvm import SparkDiedError, died, java_exit, while_java_lives
from headwater.spark.source.checkpoint import check_checkpoint
from headwater.spark.source.offsets import Offsets
from headwater.store.pipelines.controls import Action, Controls, Request
from headwater.store.pipelines.facts import FactStore
from headwater.store.pipelines.generations import Generation, Generations
from headwater.store.views import ViewStore

__all__ = ["Pipeline", "PipelineSettings"]

WATCH_EVERY_S, LOOK_EVERY_S = 0.5, 0.05


class Pipeline:
    """The queries of an app: starts them, retries those that fail, swaps in rebuilt views, carries out requests.

    A query that fails repeatedly is suspended, and all others go on.

    `announce` is called with a line for the user when a query fails, and with what is done about it.

    `RunningQueries` is the registry of the queries. `QueryLauncher` puts queries into it, `Watch` decides about
    those that fail, `Rebuilds` computes views again; the pipeline calls the three in turn.
    """

    def __init__(
        self,
        app: App,
        spark: SparkSession,
        store: ViewStore,
        facts: FactStore,
        settings: PipelineSettings,
        clock: Clock,
        announce: Announce = lambda _: None,
    ) -> None:
        self._app = app
        self._spark = spark
        self._settings = settings
        self._clock = clock
        self._store = store
        self._generations = Generations(store)
        self._controls = Controls(store)
        self._announce = announce
        self._not_started: dict[str, HeadwaterError] = {}
        """The reasons why queries could not be started, or not again at a user's request."""
        self._queries = RunningQueries(facts, clock)
        self._launcher = QueryLauncher(app, spark, store, self._queries, settings, clock)
        self._watch = Watch(self._queries, settings.bootstrap_servers, clock, announce, self._count_dropped)
        self._rebuilds = Rebuilds(self._queries, self._launcher, app, self._generations, settings)

    @while_java_lives()
    def start(self) -> None:
        """Check every query, then start every one that is not paused.

        Nothing is started if anything is wrong with the app. A query that cannot continue from its checkpoint is
        suspended, and the others are started; its error is raised if there are no others.
        """
        for request in self._controls.requests():
            self._obey(request, self._record)
        with_schema = [topic for topic in self._app.topics if topic.schema is not None]
        for topic in with_schema:
            check_checkpoint(self._settings.checkpoint(topic.dead_letters), topic.dead_letters)
        self._launcher.load_exclusions()
        paused = self._controls.paused()
        prepared = self._prepared([query for query in self._app.queries if query.name not in paused])
        for plan, generation, differences, _ in prepared:
            self._launcher.save_definition(plan, generation, differences)
        for plan, generation, _, sink in prepared:
            with self._suspending(plan.query.name):
                self._launcher.start(plan, sink, generation)
        if self._not_started and not any(self.has_started(plan.query.name) for plan, *_ in prepared):
            raise next(iter(self._not_started.values()))
        for topic in with_schema:
            if topic.dead_letters not in paused:
                self._launcher.start_dead_letters(topic)
        self._launcher.release()
        self._queries.report_removed(self._names)
        for name, error in self._not_started.items():
            self._queries.report(name, {"state": "suspended", "error": str(error)})
            ways_out = f"; {error.hint}" if error.hint else ""
            self._announce(f"query {name} is suspended, the others go on: {error}{ways_out}")
        for name in self._names & paused:
            self._queries.report(name, {"state": "paused", "error": None})
            self._announce(f"query {name} is paused; `headwater pipeline resume {name}` continues it")
        self._rebuilds.advance(paused)

    @while_java_lives()
    def run(self, *, until: float | None = None) -> None:
        """Watch the queries until the monotonic time `until`; with `once`, until all have ended.

        A query that fails is restarted from its checkpoint; one that fails repeatedly is suspended. Raises
        SparkDiedError if Spark's Java process has died, and at the end of a run `once` what `check` raises.
        """
        while True:
            if (code := java_exit()) is not None:
                raise died(code)
            # While the store is unavailable, queries wait for it; the next look may find it again.
            with suppress(UnavailableError):
                if self._look() and self._settings.once:
                    return self.check()
            if until is not None and self._clock.monotonic() >= until:
                return
            self._pause()

    def _pause(self) -> None:
        """Sleep; in a run `once` only until one of the queries that run has ended."""
        if not self._settings.once:
            time.sleep(WATCH_EVERY_S)
            return
        active = next((running.streaming for _, running in self._queries if running.streaming.isActive), None)
        for _ in range(round(WATCH_EVERY_S / LOOK_EVERY_S)):
            time.sleep(LOOK_EVERY_S)
            if active is not None and not active.isActive:
                return

    def _look(self) -> bool:
        """Look at all queries once; return whether all have ended."""
        # Read before failures are checked: a query that ends after this is looked at once more.
        settled = self._queries.are_settled
        self._watch.report_progress()
        for decision in self._watch.check_failures():
            self._carry_out(decision)
        for request in self._controls.requests():
            self._obey(request, self._control)
        rebuilding = self._rebuilds.advance(paused=self._controls.paused())
        for name in [name for name in self._not_started if self._queries.get(name) is not None]:
            del self._not_started[name]  # It was rebuilt.
        return not rebuilding and settled and self._queries.are_settled

    def check(self) -> None:
        """Raise HeadwaterError with the reason if a query is suspended, or a view was not rebuilt."""
        for name, error in {**self._queries.suspended, **self._not_started}.items():
            raise HeadwaterError(f"query {name!r} failed: {error}", hint=error.hint)
        for view, reason in self._rebuilds.failed.items():
            raise HeadwaterError(
                f"view {view!r} was not rebuilt, it is as it was before: {reason}",
                hint=f"fix the cause and run it again: headwater rebuild {view}",
            )

    def stop(self) -> None:
        """Stop the queries between batches, as far as Spark can."""
        self._queries.stop(self._launcher.stop_lanes)
        self._launcher.close()

    def has_started(self, name: str) -> bool:
        """Return whether a query was started: it is not paused, and can continue from its checkpoint."""
        return self._queries.get(name) is not None

    @property
    def notes(self) -> list[str]:
        """The changes with which queries have continued from their checkpoints, in words."""
        return self._launcher.notes

    def rows_read(self) -> dict[str, int]:
        """Return how many records each query has read since the start."""
        return self._queries.rows_read()

    def offsets_read(self) -> dict[str, Offsets]:
        """Return the offsets up to which each query has processed the records of its topics, since the start."""
        return self._queries.offsets_read()

    def left_out(self) -> dict[str, int]:
        """Return how many records each query leaves out because its function fails on them."""
        return self._launcher.left_out()

    def _prepared(self, queries: Sequence[Query]) -> list[tuple[Plan, Generation, list[Difference], BatchSink]]:
        """Return what the start of each query needs, without those that cannot continue from their checkpoints.

        No sink is made before all queries are planned.
        """
        plans: list[tuple[Plan, Generation, list[Difference]]] = []
        for query in queries:
            with self._suspending(query.name):
                generation = self._generations.current(query.name)
                check_checkpoint(self._settings.checkpoint(generation.name), query.name)
                plan = self._launcher.plan(query)
                plans.append((plan, generation, self._launcher.check_definition(plan, generation)))
        prepared: list[tuple[Plan, Generation, list[Difference], BatchSink]] = []
        for plan, generation, differences in plans:
            with self._suspending(plan.query.name):
                prepared.append((plan, generation, differences, self._launcher.make_sink(plan, generation)))
        return prepared

    @contextmanager
    def _suspending(self, name: str) -> Iterator[None]:
        """Note the error in place of raising it if a query cannot continue from its checkpoint."""
        try:
            yield
        except (ConflictError, CorruptError) as error:
            if not self._is_being_rebuilt(name):
                self._not_started[name] = error

    def _is_being_rebuilt(self, name: str) -> bool:
        return name in {rebuild.query for rebuild in self._generations.rebuilds()}

    def _count_dropped(self, query: str) -> dict[str, int]:
        """Return how many rows and records of a query are not in its result, apart from those it leaves out."""
        return {
            "lateRows": self._store.late_count(query),
            "ignoredRows": self._queries.ignored_rows(query),
            "deadLetters": self._store.counters().get(query, 0),
        }

    def _carry_out(self, decision: Decision) -> None:
        running = self._queries[decision.name]
        match decision:
            case Isolate(name, failure):
                assert running.launch is not None
                running.isolation = self._isolate(name, running.launch, failure)
            case Relaunch(name):
                assert running.launch is not None
                try:
                    self._launcher.relaunch(running.launch)
                except HeadwaterError as error:
                    self._carry_out(self._watch.suspend(name, error))
            case Suspend(name, reason, hint):
                if not self._rebuilds.give_up(name, reason):
                    running.suspended = HeadwaterError(reason, hint=hint)

    # -- requests of users ------------------------------------------------------------------------------------

    @property
    def _names(self) -> set[str]:
        """The names of all queries, those of dead letters included."""
        letters = {topic.dead_letters for topic in self._app.topics if topic.schema is not None}
        return {query.name for query in self._app.queries} | letters

    def _obey(self, request: Request, carry_out: Callable[[str, Action], None]) -> None:
        """Carry out a request of a user, or record the reason why not."""
        try:
            carry_out(request.query, request.action)
        except (SparkDiedError, UnavailableError):
            raise  # The request stays.
        except HeadwaterError as error:
            self._controls.finish(request, str(error))
        else:
            self._controls.finish(request)

    def _control(self, name: str, action: Action) -> None:
        """Carry out a request to a query, which may be running."""
        self._check_request(name, action)
        running = self._queries.get(name)
        if action is Action.RESUME and running is not None and running.suspended is None:
            return
        self._queries.forget(name)
        self._not_started.pop(name, None)
        self._watch.forgive(name)
        self._record(name, action)
        if action is Action.PAUSE:
            self._queries.report(name, {"state": "paused", "error": None})
        else:
            self._start_again(name)

    def _record(self, name: str, action: Action) -> None:
        """Record what a request changes for the next start of a query."""
        self._check_request(name, action)
        if action is Action.RESET:
            restart_from_start(self._store, self._settings.checkpoints, name)
        self._controls.set_paused(name, action is Action.PAUSE)

    def _check_request(self, name: str, action: Action) -> None:
        if name not in self._names:
            raise InvalidError(f"the app has no pipeline {name!r}; it has: {', '.join(sorted(self._names))}")
        if action is not Action.RESUME and self._is_being_rebuilt(name):
            raise InvalidError("it is being rebuilt")
        if action is Action.RESET and name not in {query.name for query in self._app.queries}:
            raise InvalidError("dead letters stay in the log; it can be paused and resumed")

    def _start_again(self, name: str) -> None:
        """Start a query that was paused, suspended or reset, from its checkpoint."""
        for topic in self._app.topics:
            if topic.dead_letters == name:
                self._launcher.start_dead_letters(topic)
                return
        query = next(query for query in self._app.queries if query.name == name)
        generation = self._generations.current(name)
        try:
            check_checkpoint(self._settings.checkpoint(generation.name), name)
            self._launcher.start_query(query, generation)
        except HeadwaterError as error:
            self._not_started[name] = error
            self._queries.report(name, {"state": "suspended", "error": str(error)})
            raise

    def _isolate(self, name: str, launch: Launch, failure: Failure) -> Isolation:
        """Begin to search for the records on which a query's function fails, or whose rows its sink refuses."""
        context = IsolationContext(
            spark=self._spark,
            servers=self._settings.bootstrap_servers,
            checkpoint=self._settings.checkpoint(launch.generation.name),
            starting=launch.generation.starting,
            take=launch.sink.rehearse if failure.refused else nowhere,
        )
        report = partial(self._queries.report, name)
        return Isolation(launch.query, failure, context, launch.exclusions, self._clock, report)
