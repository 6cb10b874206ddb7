"""The decisions of Watch about failed queries, and its reports of progress, without Spark."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.clock import ManualClock
from headwater.errors import HeadwaterError, RefusedError, UnavailableError
from headwater.spark.pipeline.failures import PAUSE_MAX_S, TRIES_MAX, Failure
from headwater.spark.pipeline.poison_search import EveryRecordFailsError
from headwater.spark.pipeline.running_queries import RunningQueries
from headwater.spark.pipeline.watch import Isolate, Relaunch, Suspend, Watch
from headwater.store.pipelines.facts import FactStore
from tests.spark.pipeline.fake_queries import FakeStarts, progress

TRACEBACK = '  File "app.py", line 1\n{}\n'
LAUNCH: Any = SimpleNamespace(exclusions=["record"])


class Watched:
    """One query, named 'revenue', and its Watch."""

    def __init__(self, folder: Path, launch: Any) -> None:
        self.facts = FactStore(folder / "facts.db")
        self.clock = ManualClock()
        self.queries = RunningQueries(self.facts, self.clock)
        self.starts = FakeStarts()
        self.queries.launch("revenue", self.starts, launch)
        self.lines: list[str] = []
        self.watch = Watch(self.queries, "127.0.0.1:9", self.clock, self.lines.append)

    @property
    def last_fact(self) -> dict[str, Any]:
        return self.facts.latest("revenue")[-1].body

    def fail(self, times: int, error: str) -> list[Any]:
        """Let the query fail in a row; return the decisions after each failure."""
        decisions = []
        for _ in range(times):
            self.starts.last.fail(TRACEBACK.format(error))
            decisions.append(self.watch.check_failures())
            self.clock.advance(PAUSE_MAX_S)
            self.watch.check_failures()
        return decisions


@pytest.fixture
def view(tmp_path: Path) -> Watched:
    return Watched(tmp_path, LAUNCH)


def test_a_failed_query_is_restarted_after_its_pause(view: Watched) -> None:
    view.starts.last.fail(TRACEBACK.format("ValueError: no"))
    assert view.watch.check_failures() == []
    assert view.last_fact == {"state": "waiting", "error": "ValueError: no"}
    view.clock.advance(0.9)
    assert (view.watch.check_failures(), len(view.starts.started)) == ([], 1)
    view.clock.advance(0.1)
    assert (view.watch.check_failures(), len(view.starts.started)) == ([], 2)


def test_records_are_isolated_after_repeated_failures(view: Watched) -> None:
    *before, last = view.fail(TRIES_MAX, "ValueError: no")
    assert before == [[], [], []]
    assert last == [Isolate("revenue", Failure("ValueError: no"))]


def test_a_refused_row_is_isolated(view: Watched) -> None:
    decisions = view.fail(TRIES_MAX, "headwater.errors.RefusedError: too long")
    assert decisions[-1] == [Isolate("revenue", Failure("too long", RefusedError))]


def test_a_query_without_a_function_is_suspended_instead(tmp_path: Path) -> None:
    dead_letters = Watched(tmp_path, None)
    assert dead_letters.fail(TRIES_MAX, "ValueError: no")[-1] == [Suspend("revenue", "ValueError: no")]
    assert dead_letters.last_fact == {"state": "suspended", "error": "ValueError: no"}


def test_an_invalid_query_is_suspended_at_once(view: Watched) -> None:
    assert view.fail(1, "headwater.errors.InvalidError: wrong") == [[Suspend("revenue", "wrong")]]


def test_an_unavailable_log_is_retried_without_end(view: Watched) -> None:
    decisions = view.fail(3 * TRIES_MAX, "headwater.errors.UnavailableError: away")
    assert decisions == [[]] * (3 * TRIES_MAX)
    assert len(view.starts.started) == 1 + 3 * TRIES_MAX


class FakeIsolation:
    """A search with a given outcome."""

    failure = Failure("ValueError: no")

    def __init__(self, error: HeadwaterError | None = None, *, done: bool = True) -> None:
        self.done = done
        self._error = error

    def result(self) -> int:
        if self._error is not None:
            raise self._error
        return 1


def isolated(view: Watched, isolation: Any) -> list[Any]:
    view.starts.last.fail(TRACEBACK.format("ValueError: no"))
    view.queries["revenue"].isolation = isolation
    return view.watch.check_failures()


def test_nothing_is_decided_while_the_search_runs(view: Watched) -> None:
    search: Any = FakeIsolation(done=False)
    assert isolated(view, search) == []
    assert view.queries["revenue"].isolation is search


def test_a_query_is_relaunched_when_its_records_were_found(view: Watched) -> None:
    view.fail(TRIES_MAX - 1, "ValueError: no")
    assert isolated(view, FakeIsolation()) == [Relaunch("revenue")]
    # The failures before do not count any more.
    assert view.fail(TRIES_MAX - 1, "ValueError: no") == [[], [], []]


def test_a_query_is_suspended_when_no_record_is_to_blame(view: Watched) -> None:
    (decision,) = isolated(view, FakeIsolation(HeadwaterError("none found")))
    assert decision == Suspend("revenue", "ValueError: no (the search for poison rows failed: none found)")
    assert view.last_fact == {"state": "suspended", "error": decision.reason}


def test_a_query_that_fails_on_every_record_is_suspended_with_the_way_out(view: Watched) -> None:
    error = EveryRecordFailsError("ValueError: no (all 3 records fail)", hint="fix it")
    assert isolated(view, FakeIsolation(error)) == [Suspend("revenue", str(error), "fix it")]
    assert view.last_fact == {"state": "suspended", "error": str(error)}


def test_each_retry_and_search_and_its_end_are_announced(view: Watched) -> None:
    view.fail(TRIES_MAX, "ValueError: no")
    assert view.lines[:4] == [
        "query revenue failed, next try in 1 s: ValueError: no",
        "query revenue failed, next try in 2 s: ValueError: no",
        "query revenue failed, next try in 4 s: ValueError: no",
        "query revenue failed again: searching for the records that cause it: ValueError: no",
    ]
    view.lines.clear()
    isolated(view, FakeIsolation())
    isolated(view, FakeIsolation(HeadwaterError("none found")))
    assert view.lines == [
        "query revenue continues without 1 record on which it fails; see `headwater deadletter list`",
        "query revenue is suspended, the others go on: ValueError: no (the search for poison rows failed: none "
        "found); when the cause is fixed: `headwater pipeline resume revenue`",
    ]


def test_a_search_without_the_log_is_repeated_after_a_pause(view: Watched) -> None:
    assert isolated(view, FakeIsolation(UnavailableError("away"))) == []
    assert view.queries["revenue"].restart_at == PAUSE_MAX_S


def test_each_batch_is_reported_once(view: Watched) -> None:
    view.watch.report_progress()
    assert view.last_fact == {"state": "starting"}
    view.starts.last.recentProgress.append(progress(7))
    view.watch.report_progress()
    view.watch.report_progress()
    assert len(view.facts.latest("revenue", limit=10)) == 2
    fact = view.last_fact
    assert (fact["state"], fact["batchId"], fact["leftOutRecords"]) == ("running", 7, 1)
