"""Detects that Spark's Java process has died. It is a child process, and all calls to Spark fail without it."""

import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.errors import HeadwaterError, UnavailableError

_NOTICE_S = 2.0
"""A broken connection may be noticed before the end of the process that broke it."""


class SparkDiedError(UnavailableError):
    """Spark's Java process has died: the session and all queries have to be created again."""


@contextmanager
def while_java_lives() -> Iterator[None]:
    """Raise SparkDiedError in place of errors that occur in the block because Java has died."""
    try:
        yield
    except SparkDiedError:
        raise
    except Exception as error:
        check_java(error)
        raise


def check_java(error: BaseException) -> None:
    """Raise SparkDiedError if an error has occurred because Java has died."""
    # Spark's and Headwater's own errors were most likely raised while Java was alive.
    code = java_exit() if isinstance(error, HeadwaterError | PySparkException) else _java_exit_soon()
    if code is not None:
        raise died(code) from error


def java_exit() -> int | None:
    """Return the exit code of Spark's Java process; None while it runs, or if there is none."""
    process = getattr(SparkContext._gateway, "proc", None)
    return None if process is None else process.poll()


def died(code: int) -> SparkDiedError:
    """Make the error for a Java process that ended with this code."""
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    why = ", as the system does when memory is short" if code == -signal.SIGKILL else ""
    return SparkDiedError(
        f"Spark's Java process has ended {how}{why}",
        hint="start the app again: it continues from its checkpoints; Spark's log is logs/spark.log",
    )


def silence_pyspark_threads(session: SparkSession) -> None:
    """Keep PySpark's threads from printing tracebacks when Java dies, which SparkDiedError reports."""
    server: Any = session.sparkContext._accumulatorServer
    otherwise = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError):
            otherwise(request, client_address)

    server.handle_error = handle_error
    if not any(isinstance(found, _NotFromPy4J) for found in logging.getLogger().filters):
        logging.getLogger().addFilter(_NotFromPy4J())


class _NotFromPy4J(logging.Filter):
    """Drops Py4J's messages, which it logs to the root logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname


def stop_session(session: SparkSession) -> None:
    """Stop Spark; if Java has died, reset PySpark so that a new session can be created."""
    if java_exit() is None:
        session.stop()
        return
    for _ in range(2):  # The first call fails where it needs Java, the second continues after that.
        with suppress(Exception):
            session.sparkContext.stop()
    _forget_java()


def check_java_at_start(error: Exception) -> None:
    """Raise SparkDiedError if Spark could not be started because Java has died, and reset PySpark."""
    try:
        check_java(error)
    except SparkDiedError:
        _forget_java()
        raise


def _forget_java() -> None:
    """Reset PySpark, so that it starts another Java."""
    SparkSession._instantiatedSession = None
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None


def _java_exit_soon() -> int | None:
    deadline = time.monotonic() + _NOTICE_S
    while (code := java_exit()) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return code
