"""Runs an app on Spark: a query for each view and each sink, and one for each topic's dead letters."""

import time
from functools import partial

from pyspark.sql import SparkSession

from headwater.app import App
from headwater.clock import Clock
from headwater.errors import ConflictError, HeadwaterError
from headwater.spark.definition.differences import Difference
from headwater.spark.pipeline.checkpoint import check_checkpoint
from headwater.spark.pipeline.failures import Failure
from headwater.spark.pipeline.launcher import PipelineSettings, QueryLauncher
from headwater.spark.pipeline.plan import Plan
from headwater.spark.pipeline.poison import Isolation
from headwater.spark.pipeline.poison_search import IsolationContext, nowhere
from headwater.spark.pipeline.rebuilds import Rebuilds
from headwater.spark.pipeline.running_queries import Launch, RunningQueries
from headwater.spark.pipeline.watch import Announce, Decision, GiveUp, Isolate, Relaunch, Watch
from headwater.spark.session.jvm import died, java_exit, while_java_lives
from headwater.store.facts import FactStore
from headwater.store.generations import Generation, Generations
from headwater.store.views import ViewStore

__all__ = ["Pipeline", "PipelineSettings"]

WATCH_EVERY_S, LOOK_EVERY_S = 0.5, 0.05


class Pipeline:
    """The queries of an app: starts them, retries those that fail, swaps in rebuilt views.

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
        self._queries = RunningQueries(facts, clock)
        self._launcher = QueryLauncher(app, spark, store, self._queries, settings)
        self._watch = Watch(self._queries, settings.bootstrap_servers, clock, announce, self._count_dropped)
        self._rebuilds = Rebuilds(self._queries, self._launcher, app, self._generations, settings)

    @while_java_lives()
    def start(self) -> None:
        """Check every query, then start every one; nothing is started if anything is wrong."""
        for query in self._app.queries:
            check_checkpoint(self._settings.checkpoint(self._generations.current(query.name).name), query.name)
        with_schema = [topic for topic in self._app.topics if topic.schema is not None]
        for topic in with_schema:
            check_checkpoint(self._settings.checkpoint(topic.dead_letters), topic.dead_letters)
        self._launcher.load_exclusions()
        plans = [self._launcher.plan(query) for query in self._app.queries]
        unmatched = [(topic, self._launcher.read_unmatched(topic)) for topic in with_schema]
        continuing = [found for plan in plans if (found := self._continuation(plan)) is not None]
        sinks = [self._launcher.make_sink(plan, generation) for plan, generation, _ in continuing]
        for plan, generation, differences in continuing:
            self._launcher.save_definition(plan, generation, differences)
        for (plan, generation, _), sink in zip(continuing, sinks, strict=True):
            self._launcher.start(plan, sink, generation)
        for topic, records in unmatched:
            self._launcher.start_dead_letters(topic, records, self._clock)
        self._rebuilds.advance()

    @while_java_lives()
    def run(self, *, until: float | None = None) -> None:
        """Watch the queries until all have ended, one is given up, or the monotonic time `until` is reached.

        A query that fails is restarted from its checkpoint; one that fails repeatedly is given up. Raises
        SparkDiedError if Spark's Java process has died, and HeadwaterError if a query has failed, or when all have
        ended and a view was not rebuilt.
        """
        while True:
            if (code := java_exit()) is not None:
                raise died(code)
            # Read before failures are checked: a query that ends after this is looked at once more.
            settled = self._queries.are_settled
            self._watch.report_progress()
            for decision in self._watch.check_failures():
                self._carry_out(decision)
            if not self._rebuilds.advance() and settled and self._queries.are_settled:
                self._check_rebuilds()
                return
            if until is not None and self._clock.monotonic() >= until:
                return
            self._pause()

    def _pause(self) -> None:
        """Sleep until one of the queries that run has ended, but no longer than WATCH_EVERY_S."""
        active = next((running.streaming for _, running in self._queries if running.streaming.isActive), None)
        for _ in range(round(WATCH_EVERY_S / LOOK_EVERY_S)):
            time.sleep(LOOK_EVERY_S)
            if active is not None and not active.isActive:
                return

    def stop(self) -> None:
        """Stop the queries between batches, as far as Spark can."""
        self._queries.stop()
        self._launcher.close()

    @property
    def notes(self) -> list[str]:
        """The changes with which queries have continued from their checkpoints, in words."""
        return self._launcher.notes

    def rows_read(self) -> dict[str, int]:
        """Return how many records each query has read since the start."""
        return self._queries.rows_read()

    def left_out(self) -> dict[str, int]:
        """Return how many records each query leaves out because its function fails on them."""
        return self._launcher.left_out()

    def _continuation(self, plan: Plan) -> tuple[Plan, Generation, list[Difference]] | None:
        """Return how a query continues from its checkpoint; None if it cannot, but is being rebuilt."""
        generation = self._generations.current(plan.query.name)
        try:
            return plan, generation, self._launcher.check_definition(plan, generation)
        except ConflictError:
            if plan.query.name in {rebuild.query for rebuild in self._generations.rebuilds()}:
                return None
            raise

    def _count_dropped(self, query: str) -> dict[str, int]:
        """Return how many rows and records of a query are not in its result, apart from those it leaves out."""
        return {
            "lateRows": self._store.late_count(query),
            "ignoredRows": self._queries.ignored_rows(query),
            "deadLetters": self._store.counters().get(query, 0),
        }

    def _check_rebuilds(self) -> None:
        for view, reason in self._rebuilds.failed.items():
            raise HeadwaterError(
                f"view {view!r} was not rebuilt, it is as it was before: {reason}",
                hint=f"fix the cause and run it again: headwater rebuild {view}",
            )

    def _carry_out(self, decision: Decision) -> None:
        running = self._queries[decision.name]
        match decision:
            case Isolate(name, failure):
                assert running.launch is not None
                running.isolation = self._isolate(name, running.launch, failure)
            case Relaunch():
                assert running.launch is not None
                self._launcher.relaunch(running.launch)
            case GiveUp(name, reason, hint):
                if not self._rebuilds.give_up(name, reason):
                    raise HeadwaterError(f"query {name!r} failed: {reason}", hint=hint)

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
