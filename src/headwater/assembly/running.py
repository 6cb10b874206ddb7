"""RunningApp: an app that runs in the background of a Python program, a test or a notebook."""

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headwater.app import App
from headwater.assembly.run import AppParts, running_app
from headwater.assembly.settings import Report, RunSettings
from headwater.clock import SystemClock
from headwater.errors import InvalidError, UnavailableError

if TYPE_CHECKING:
    from headwater.record import TopicPartition
    from headwater.store.reader import ViewReader

WATCH_S, LOOK_EVERY_S = 0.2, 0.02
TIMEOUT_S = 60.0


class RunningApp:
    """An app that runs in the background, as `app.start()` returns it. Stop it, or use it in a `with` block."""

    def __init__(self, app: App, settings: RunSettings, report: Report | None = None) -> None:
        self._app = app
        self._stack = ExitStack()
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        try:
            self._parts: AppParts = self._stack.enter_context(
                running_app(app, settings, report or (lambda _: None))
            )
        except BaseException:
            self._stack.close()
            raise
        self._thread = threading.Thread(target=self._watch, name=f"headwater-{app.name}", daemon=True)
        self._thread.start()

    @property
    def bootstrap_servers(self) -> str:
        """The address of the log, for Kafka clients."""
        return self._parts.bootstrap_servers

    @property
    def console_url(self) -> str | None:
        """The address of the console; None if it was not started."""
        return self._parts.console_url

    def view(self, name: str) -> "ViewReader":
        """Return the reader of a view, as `hw.Views` does; raises InvalidError if the app has no such view."""
        from headwater.store.reader import ViewReader

        self._app.view_named(name)
        return ViewReader(self._parts.store, name, SystemClock())

    def wait_until_seen(
        self, offsets: Mapping[str, Mapping[int, int]] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Wait until every view and sink has processed the records in the log, or those up to `offsets`.

        `{"orders": {0: 17}}` names the last records by their offsets. Raises UnavailableError after `timeout_s`,
        and HeadwaterError with the reason if a query is suspended.
        """
        wanted = self._ends() if offsets is None else self._after(offsets)
        deadline = time.monotonic() + timeout_s
        while missing := self._missing(wanted):
            self.check()
            if time.monotonic() > deadline:
                raise UnavailableError(f"not processed within {timeout_s:g} s: {', '.join(missing)}")
            time.sleep(LOOK_EVERY_S)

    def check(self) -> None:
        """Raise HeadwaterError with the reason if a query is suspended, or the app could not go on."""
        if self._error is not None:
            raise self._error
        self._parts.pipeline.check()

    def stop(self) -> None:
        """Stop every part of the app. Nothing happens if it is stopped."""
        self._stopping.set()
        self._thread.join()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _watch(self) -> None:
        try:
            while not self._stopping.is_set():
                self._parts.spark.run(until=time.monotonic() + WATCH_S)
        except BaseException as error:
            self._error = error  # `check` raises it in the user's thread.

    def _ends(self) -> "dict[TopicPartition, int]":
        """Return the offset after the last committed record of each partition that the app reads."""
        from headwater.record import LATEST, TopicPartition
        from headwater.transmit.client.client import Client

        with Client(self.bootstrap_servers, read_committed=True) as client:
            topics = client.topics([topic.name for topic in self._app.topics])
            partitions = [TopicPartition(name, n) for name, info in topics.items() for n in info.leaders]
            return client.offsets(partitions, LATEST)

    def _after(self, offsets: Mapping[str, Mapping[int, int]]) -> "dict[TopicPartition, int]":
        from headwater.record import TopicPartition

        names = {topic.name for topic in self._app.topics}
        if unknown := set(offsets) - names:
            raise InvalidError(f"app {self._app.name!r} does not read topic {min(unknown)!r}")
        return {TopicPartition(name, n): at + 1 for name, each in offsets.items() for n, at in each.items()}

    def _missing(self, wanted: "Mapping[TopicPartition, int]") -> list[str]:
        """Return the queries that have not read so far, with the first partition that each lacks."""
        read = self._parts.pipeline.offsets_read()
        missing = []
        for query in self._app.queries:
            topics = {topic.name for topic in query.topics}
            lacks = [
                str(tp)
                for tp, end in wanted.items()
                if end and tp.topic in topics and read.get(query.name, {}).get(tp, 0) < end
            ]
            missing += [f"{query.kind} {query.name!r} lacks records of {lacks[0]}"] if lacks else []
        return missing
