"""The Spark session of an app with its pipeline, restarted when Spark's Java dies."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

from headwater.app import App
from headwater.assembly.log import Log
from headwater.assembly.settings import Report, RunSettings
from headwater.assembly.store import Stores
from headwater.clock import Clock, SystemClock
from headwater.errors import HeadwaterError
from headwater.sink import Guarantee

if TYPE_CHECKING:
    from headwater.spark.pipeline.pipeline import Pipeline

RESTARTS_MAX, RESTARTS_WITHIN_S = 3, 600.0
"""Restarts of Spark's Java within this time without a pause; what dies more often has a permanent cause."""

PAUSE_S = 120.0
"""Pause before the next restart then; log and console stay up meanwhile."""


class SparkRun:
    """A pipeline on a Spark session; both are created again when Spark's Java dies."""

    def __init__(
        self,
        start: "Callable[[ExitStack], Pipeline]",
        report: Report,
        clock: Clock,
        *,
        restarts: bool = True,
        once: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._start = start
        self._report = report
        self._clock = clock
        self._restarts = restarts
        self._once = once
        self._sleep = sleep
        self._deaths: list[float] = []
        self._stack = ExitStack()
        self._has_begun = False
        try:
            self.pipeline = self._begun()
        except BaseException:
            self._stack.close()
            raise
        self._has_begun = True

    def run(self, *, until: float | None = None) -> None:
        """Run the pipeline until its queries end or the monotonic time `until`; restart Spark when it dies.

        A run `once`, or one that has never begun, ends when Spark has died too often. A run on a user's session
        ends when it has died.
        """
        from headwater.spark.session.jvm import SparkDiedError

        while True:
            try:
                return self.pipeline.run(until=until)
            except SparkDiedError as error:
                self._recover(error)
                self.pipeline = self._begun()

    def close(self) -> None:
        self._stack.close()

    def _begun(self) -> "Pipeline":
        """Start Spark and the pipeline, again if Java dies meanwhile, and after a death until it succeeds."""
        from headwater.spark.session.jvm import SparkDiedError

        while True:
            try:
                return self._start(self._stack)
            except HeadwaterError as error:
                if not self._has_begun and not isinstance(error, SparkDiedError):
                    raise
                self._recover(error)

    def _recover(self, error: Exception) -> None:
        """Prepare the next start after a death, or raise if there is to be none."""
        now = self._clock.monotonic()
        self._deaths = [*(at for at in self._deaths if at > now - RESTARTS_WITHIN_S), now]
        is_last = len(self._deaths) > RESTARTS_MAX and (self._once or not self._has_begun)
        if is_last or not self._restarts:
            raise error
        self._stack.close()
        if len(self._deaths) > RESTARTS_MAX:
            self._report(f"{error}, {len(self._deaths)} times; the next try is in {PAUSE_S:.0f} s")
            self._sleep(PAUSE_S)
        else:
            self._report(f"{error}; restarting it ...")


@contextmanager
def open_spark(app: App, log: Log, stores: Stores, settings: RunSettings, report: Report) -> Iterator[SparkRun]:
    """Start Spark on the Java that is found, and all queries of the app."""
    from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
    from headwater.spark.session.java import find_java
    from headwater.spark.session.jvm import while_java_lives
    from headwater.spark.session.session import on_session, spark_session

    clock = SystemClock()
    log_file = settings.data / "logs" / "spark.log"
    pipeline_settings = PipelineSettings(
        bootstrap_servers=log.bootstrap_servers, data=settings.data.resolve(), once=settings.once
    )

    def open_session() -> AbstractContextManager[Any]:
        if settings.spark is not None:
            return on_session(settings.spark)
        java = find_java(os.environ)
        report(f"starting Spark at {settings.master} on Java {java.chosen.version} ({java.chosen.origin}) ...")
        name = f"headwater-{app.name}"
        return spark_session(name, master=settings.master, log_file=log_file, java=java, conf=settings.conf)

    @while_java_lives()
    def start(stack: ExitStack) -> Pipeline:
        session = stack.enter_context(open_session())
        if settings.spark is None:
            report(f"Spark is ready; its log is {log_file}")
        pipeline = Pipeline(app, session, *stores, pipeline_settings, clock, report)
        stack.callback(pipeline.stop)
        pipeline.start()
        for note in pipeline.notes:
            report(note)
        for query in app.sink_queries:
            promise = _describe(query.to.guarantee)
            report(f"sink {query.name} writes to {type(query.to).__name__}, {promise}")
        return pipeline

    with closing(SparkRun(start, report, clock, restarts=settings.spark is None, once=settings.once)) as spark:
        yield spark


def _describe(guarantee: Guarantee) -> str:
    if guarantee is Guarantee.AT_LEAST_ONCE:
        return f"{guarantee}: after a failure it may repeat a change, with the same idempotency key"
    return str(guarantee)
