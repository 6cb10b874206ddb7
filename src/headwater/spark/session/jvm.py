"""Whether Spark's Java process lives: it is our child, and whatever we ask of it fails when it is gone."""

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
"""A connection that breaks may be seen before the end of the process that broke it."""


class SparkDiedError(UnavailableError):
    """Spark's Java process has ended by itself: everything on it has to be made anew."""


@contextmanager
def while_java_lives() -> Iterator[None]:
    """Whatever goes wrong inside because Java is gone is told as that."""
    try:
        yield
    except SparkDiedError:
        raise
    except Exception as error:
        # What is said in Spark's words or in ours was said while it lived, most likely.
        code = java_exit() if isinstance(error, HeadwaterError | PySparkException) else _java_exit_soon()
        if code is None:
            raise
        raise died(code) from error


def java_exit() -> int | None:
    """How Spark's Java process ended; None while it lives, or if there is none."""
    process = getattr(SparkContext._gateway, "proc", None)
    return None if process is None else process.poll()


def died(code: int) -> SparkDiedError:
    """An error that says how it ended."""
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    why = ", as the system does when memory is short" if code == -signal.SIGKILL else ""
    return SparkDiedError(
        f"Spark's Java process has ended {how}{why}",
        hint="start again: it goes on where it was; Spark's own words are in logs/spark.log",
    )


def tell_nothing_twice(session: SparkSession) -> None:
    """Have PySpark's own threads print no tracebacks when Java dies: it is told in a sentence, by us."""
    server: Any = session.sparkContext._accumulatorServer
    otherwise = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError):
            otherwise(request, client_address)

    server.handle_error = handle_error
    if not any(isinstance(found, _NotFromPy4J) for found in logging.getLogger().filters):
        logging.getLogger().addFilter(_NotFromPy4J())


class _NotFromPy4J(logging.Filter):
    """Py4J logs to nobody's logger in particular."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname


def stop_session(session: SparkSession) -> None:
    """Stop Spark; where Java is gone, forget it, so that a new session can be made."""
    if java_exit() is None:
        session.stop()
        return
    for _ in range(2):  # The first try ends where it finds nobody, the second behind that.
        with suppress(Exception):
            session.sparkContext.stop()
    SparkSession._instantiatedSession = None
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None


def _java_exit_soon() -> int | None:
    deadline = time.monotonic() + _NOTICE_S
    while (code := java_exit()) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return code
