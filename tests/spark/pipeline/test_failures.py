"""The reason of a failed query in one line, and whether it is retried."""

from headwater.errors import InvalidError, UnavailableError
from headwater.spark.pipeline.failures import PAUSE_MAX_S, TRIES_MAX, Failure, Retries, read_failure

TRACEBACK = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "call.py", line 7, in call
    raise error
{line}

=== Streaming Query ===
Identifier: revenue
"""


def test_reason_is_the_last_line_of_the_traceback() -> None:
    assert read_failure(TRACEBACK.format(line="RuntimeError: no")) == Failure("RuntimeError: no")


def test_reason_of_a_spark_failure_is_its_first_line() -> None:
    assert read_failure("Task not serializable\n=== Streaming Query ===\n") == Failure("Task not serializable")
    assert read_failure("") == Failure("no reason was given")


def test_headwaters_own_error_has_its_class() -> None:
    line = "headwater.errors.UnavailableError: cannot reach 127.0.0.1:9"
    assert read_failure(TRACEBACK.format(line=line)) == Failure("cannot reach 127.0.0.1:9", UnavailableError)


def test_a_full_disk_is_retried_whoever_reports_it() -> None:
    line = "OSError: [Errno 28] No space left on device: 'state'"
    assert read_failure(TRACEBACK.format(line=line)) == Failure(line, UnavailableError)
    java = "Job aborted\njava.io.IOException: No space left on device\n=== Streaming Query ===\n"
    assert read_failure(java) == Failure("java.io.IOException: No space left on device", UnavailableError)


def test_a_too_busy_machine_is_retried() -> None:
    java = "Python worker failed to connect back.\n=== Streaming Query ===\n"
    assert read_failure(java) == Failure("Python worker failed to connect back.", UnavailableError)


def test_failures_in_a_row_are_bounded_with_growing_pauses() -> None:
    retries, failure = Retries(), Failure("no")
    pauses = [retries.pause("q", failure, progressed=False) for _ in range(TRIES_MAX)]
    assert pauses == [1.0, 2.0, 4.0, None]


def test_progress_in_between_resets_the_count() -> None:
    retries, failure = Retries(), Failure("no")
    for _ in range(3 * TRIES_MAX):
        assert retries.pause("q", failure, progressed=True) == 1.0


def test_an_unavailable_service_is_retried_without_end() -> None:
    retries, failure = Retries(), Failure("away", UnavailableError)
    assert [retries.pause("q", failure, progressed=False) for _ in range(100)][-1] == PAUSE_MAX_S


def test_a_permanent_failure_is_given_up_at_once() -> None:
    assert Retries().pause("q", Failure("wrong", InvalidError), progressed=True) is None
