"""A running app: all parts together, started in order and stopped in reverse.

The console starts before Spark, so that users can watch the start.
"""

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from headwater.app import App
from headwater.assembly.console import open_console
from headwater.assembly.log import open_log
from headwater.assembly.settings import Report, RunSettings
from headwater.assembly.spark import SparkRun, open_spark
from headwater.assembly.store import open_stores
from headwater.assembly.summary import summarize
from headwater.errors import ConflictError
from headwater.locks import FolderLock

if TYPE_CHECKING:
    from headwater.spark.pipeline.pipeline import Pipeline
    from headwater.store.views import ViewStore


@dataclass(frozen=True, slots=True, kw_only=True)
class AppParts:
    """The parts of a running app."""

    spark: SparkRun
    store: "ViewStore"
    bootstrap_servers: str
    console_url: str | None

    @property
    def pipeline(self) -> "Pipeline":
        """The current pipeline; a restart of Spark replaces it."""
        return self.spark.pipeline


@contextmanager
def running_app(
    app: App,
    settings: RunSettings,
    report: Report,
    *,
    produce: Callable[[str], AbstractContextManager[object]] | None = None,
) -> Iterator[AppParts]:
    """Start every part of an app in order, and stop them in reverse.

    `produce` is called with the address of the log once it is ready. The context manager it returns is entered
    then, and left before the log closes.
    """
    with ExitStack() as stack:
        enter = stack.enter_context
        if settings.is_temporary:
            stack.callback(shutil.rmtree, settings.data, ignore_errors=True)
        enter(pipeline_lock(settings.data))
        log = enter(open_log(app, settings, report))
        stores = enter(open_stores(app, settings))
        url = enter(open_console(app, log, stores, settings, report))
        if produce is not None:
            enter(produce(log.bootstrap_servers))
        spark = enter(open_spark(app, log, stores, settings, report))
        yield AppParts(spark=spark, store=stores.views, bootstrap_servers=log.bootstrap_servers, console_url=url)


def run_app(app: App, settings: RunSettings, report: Report) -> None:
    """Run an app until it is interrupted, or once to the end of the log with a summary of its results."""
    with clean_shutdown(), running_app(app, settings, report) as running:
        started = [query.name for query in app.queries if running.pipeline.has_started(query.name)]
        queries = ", ".join(started) or "none of its pipelines"
        report(f"running {app.name}: {queries}" + ("" if settings.once else "; press Ctrl-C to stop"))
        running.spark.run()
        for line in summarize(app, running.pipeline, running.store):
            report(line)


@contextmanager
def pipeline_lock(data: Path) -> Iterator[None]:
    """Keep a second process from running the queries of a data directory."""
    lock = FolderLock(data, "pipeline.lock", holder="pipeline")
    try:
        yield
    finally:
        lock.release()


def is_running(data: Path) -> bool:
    """Return whether an app runs the queries of a data directory."""
    try:
        with pipeline_lock(data):
            return False
    except ConflictError:
        return True


@contextmanager
def clean_shutdown() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that every part stops in order. Only the main thread receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
