"""Calls and jobs of a lane that take too long are abandoned, and the next ones run."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from headwater.spark.lanes.jobs import LaneJobs, TookTooLongError


@pytest.fixture
def jobs(spark: Any) -> Iterator[LaneJobs]:
    found = LaneJobs(spark.sparkContext)
    yield found
    found.close()


def test_a_call_returns_its_result_or_raises_its_error(jobs: LaneJobs) -> None:
    assert jobs.call(lambda: 1, None) == 1
    assert [jobs.call(lambda n=n: n, 5.0) for n in range(3)] == [0, 1, 2]  # type: ignore[misc]
    for error in (ValueError("wrong"), TimeoutError("of its own")):

        def fail(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error), match=str(error)):
            jobs.call(fail, 5.0)


def test_a_call_that_takes_too_long_is_abandoned_and_the_next_one_runs(jobs: LaneJobs) -> None:
    end = threading.Event()
    with pytest.raises(TookTooLongError, match=r"more than 0\.1 s"):
        jobs.call(end.wait, 0.1)
    assert jobs.call(lambda: 2, 5.0) == 2
    end.set()
    assert jobs.call(lambda: 3, 5.0) == 3


def test_a_stop_ends_the_wait_for_a_call(jobs: LaneJobs) -> None:
    end, began = threading.Event(), time.monotonic()
    with jobs.cancelled_after(0.1), pytest.raises(TookTooLongError, match="when it was to stop"):
        jobs.call(end.wait, 60.0)
    assert time.monotonic() < began + 30
    with pytest.raises(TookTooLongError, match="when it was to stop"):
        jobs.call(lambda: 1, None)
    end.set()


def test_a_job_that_takes_too_long_is_cancelled(jobs: LaneJobs, spark: Any) -> None:
    jobs.bind()

    def sleep(n):  # type: ignore[no-untyped-def]
        time.sleep(20)
        return n

    slow = spark.range(1).select(F.udf(sleep, "long")("id"))
    with pytest.raises(TookTooLongError, match=r"more than 0\.5 s"), jobs.within(0.5):
        slow.collect()
    with jobs.within(60.0):
        assert spark.range(3).count() == 3
