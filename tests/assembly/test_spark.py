"""Restarts of Spark when its Java dies."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from headwater.assembly.spark import PAUSE_S, RESTARTS_MAX, RESTARTS_WITHIN_S, SparkRun
from headwater.clock import ManualClock
from headwater.spark.session.jvm import SparkDiedError


class DyingPipeline:
    """Stands in for a pipeline on a Java that dies: `died` runs are cut short, the next one ends."""

    def __init__(self, deaths: list[bool]) -> None:
        self._deaths = deaths

    def run(self, *, until: float | None = None) -> None:
        if self._deaths and self._deaths.pop():
            raise SparkDiedError("Spark's Java was killed")


def starter(deaths: list[bool], closed: list[str]) -> Callable[[ExitStack], Any]:
    def start(stack: ExitStack) -> Any:
        stack.callback(closed.append, "closed")
        return DyingPipeline(deaths)

    return start


def test_a_pipeline_is_started_again_on_a_new_session() -> None:
    closed, lines = list[str](), list[str]()
    run = SparkRun(starter([True, True], closed), lines.append, ManualClock())
    run.run()
    assert closed == ["closed", "closed"]
    assert lines == ["Spark's Java was killed; restarting it ..."] * 2
    run.close()
    assert len(closed) == 3


def test_a_run_to_the_end_of_the_log_ends_when_spark_keeps_dying() -> None:
    run = SparkRun(starter([True] * 10, []), print, ManualClock(), once=True)
    with pytest.raises(SparkDiedError):
        run.run()


def test_spark_that_keeps_dying_is_tried_again_after_a_pause() -> None:
    """The process goes on: it also has the log and the console."""
    lines, pauses = list[str](), list[float]()
    run = SparkRun(starter([True] * (RESTARTS_MAX + 2), []), lines.append, ManualClock(), sleep=pauses.append)
    run.run()
    assert pauses == [PAUSE_S, PAUSE_S]
    assert lines[-1] == f"Spark's Java was killed, {RESTARTS_MAX + 2} times; the next try is in {PAUSE_S:.0f} s"


@pytest.mark.parametrize("deaths", [1, RESTARTS_MAX, RESTARTS_MAX + 1])
def test_java_may_die_while_spark_starts(deaths: int) -> None:
    closed, lines, left = list[str](), list[str](), [True] * deaths

    def start(stack: ExitStack) -> Any:
        stack.callback(closed.append, "closed")
        if left:
            left.pop()
            raise SparkDiedError("Spark's Java was killed")
        return DyingPipeline([])

    if deaths > RESTARTS_MAX:  # It has never begun, so the cause may be permanent.
        with pytest.raises(SparkDiedError):
            SparkRun(start, lines.append, ManualClock())
    else:
        SparkRun(start, lines.append, ManualClock()).close()
    assert lines == ["Spark's Java was killed; restarting it ..."] * min(deaths, RESTARTS_MAX)
    assert len(closed) == min(deaths, RESTARTS_MAX) + 1


def test_deaths_long_ago_do_not_count() -> None:
    clock, closed = ManualClock(), list[str]()
    deaths = [True] * RESTARTS_MAX
    run = SparkRun(starter(deaths, closed), print, clock)
    run.run()
    clock.advance(RESTARTS_WITHIN_S + 1)
    deaths += [True] * RESTARTS_MAX
    run.run()
    assert len(closed) == 2 * RESTARTS_MAX
