"""One failing query among healthy ones: these go on, and it is paused, resumed and reset on its own."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.clock import SystemClock
from headwater.errors import HeadwaterError, InvalidError
from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
from headwater.store.pipelines.controls import Action, Controls
from headwater.store.pipelines.facts import FactStore
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker

PATIENCE_S = 90.0


class Running:
    """A running pipeline with two views of the same records.

    `doubled` fails while the file `broken` exists, and cannot be planned while the file `invalid` exists.
    """

    def __init__(self, servers: str, produce: Any, folder: Path) -> None:
        self.servers, self._produce, self._folder = servers, produce, folder
        self.broken, self.invalid = folder / "broken", folder / "invalid"
        self.store = ViewStore(folder / "views.db")
        self.controls = Controls(self.store)
        self.facts = FactStore(folder / "facts.db")
        self.lines: list[str] = []
        self.sent = 0

    def app(self) -> hw.App:
        from pyspark.sql.functions import udf

        broken = str(self.broken)

        @udf("long")
        def double(n):  # type: ignore[no-untyped-def]
            from headwater.errors import InvalidError

            if Path(broken).exists():
                raise InvalidError("it is broken")  # not the fault of a record: suspended at once
            return 2 * n

        app = hw.App("numbers")
        numbers = app.topic("numbers", schema="n long")
        app.view(numbers, key="n", name="plain")(lambda rows: rows.select("n"))

        @app.view(numbers, key="n")
        def doubled(rows: Any) -> Any:
            if self.invalid.exists():
                raise InvalidError("it is invalid")
            return rows.select("n", double("n").alias("twice"))

        return app

    @contextmanager
    def pipeline(self, spark: Any) -> Iterator[Pipeline]:
        settings = PipelineSettings(bootstrap_servers=self.servers, data=self._folder)
        clock = SystemClock()
        running = Pipeline(self.app(), spark, self.store, self.facts, settings, clock, self.lines.append)
        stopping = threading.Event()

        def watch() -> None:
            while not stopping.is_set():
                running.run(until=clock.monotonic())

        running.start()
        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield running
        finally:
            stopping.set()
            thread.join()
            running.stop()

    def send(self) -> None:
        self._produce(self.servers, "numbers", [json.dumps({"n": self.sent}).encode()])
        self.sent += 1

    def state(self, query: str) -> str:
        return str(self.facts.latest(query)[-1].body["state"])

    def ask(self, query: str, action: Action) -> str | None:
        """Send a request, wait for the answer, and return the reason if it was refused."""
        self.controls.request(query, action)
        wait_until(lambda: not self.controls.is_waiting(query))
        return self.controls.refusal(query)

    def rows(self, view: str) -> list[Any]:
        return [tuple(row.values()) for row in self.store.rows(view)]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.05)


def test_a_failing_query_is_suspended_resumed_paused_and_reset_while_the_others_go_on(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    running = Running(broker.bootstrap_servers, produce, tmp_path)
    running.send()
    with running.pipeline(spark) as pipeline:
        wait_until(lambda: running.rows("doubled") == [(0, 0)] and running.rows("plain") == [(0,)])

        running.broken.touch()
        running.send()
        wait_until(lambda: running.state("doubled") == "suspended")
        running.send()
        wait_until(lambda: len(running.rows("plain")) == 3)
        assert running.rows("doubled") == [(0, 0)]
        assert "query doubled is suspended, the others go on: it is broken" in running.lines[-1]

        running.broken.unlink()
        assert running.ask("doubled", Action.RESUME) is None
        wait_until(lambda: running.rows("doubled") == [(0, 0), (1, 2), (2, 4)])
        pipeline.check()

        assert running.ask("doubled", Action.PAUSE) is None
        assert running.state("doubled") == "paused"
        assert "no pipeline 'other'" in str(running.ask("other", Action.PAUSE))
        assert "dead letters stay" in str(running.ask("numbers.deadletter", Action.RESET))
        running.send()
        wait_until(lambda: len(running.rows("plain")) == 4)

        running.invalid.touch()
        assert "it is invalid" in str(running.ask("doubled", Action.RESUME))
        assert running.state("doubled") == "suspended"
        with pytest.raises(HeadwaterError, match=r"query 'doubled' failed: .*it is invalid"):
            pipeline.check()
        running.invalid.unlink()
        assert running.ask("doubled", Action.PAUSE) is None
        pipeline.check()
    # It stays paused over a restart, and a request to a stopped app is carried out at its next start.
    running.controls.request("plain", Action.RESET)
    with running.pipeline(spark):
        assert not running.controls.is_waiting("plain")
        assert running.state("doubled") == "paused"
        wait_until(lambda: len(running.rows("plain")) == 4)
        assert len(running.rows("doubled")) == 3
        assert running.ask("doubled", Action.RESET) is None
        wait_until(lambda: running.rows("doubled") == [(n, 2 * n) for n in range(4)])
