"""Starts a Spark session with settings for streams, usually on one machine.

The output of Java and Spark goes to a log file; errors are raised in Python.
"""

import fcntl
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from headwater.errors import ConflictError, HeadwaterError, InvalidError
from headwater.spark.session.java import JavaChoice, find_java
from headwater.spark.session.jvm import check_java_at_start, silence_pyspark_threads, stop_session

PREDECESSOR_S = 60.0
"""Seconds to wait until the processes of a killed run have ended."""

_STREAMING = "org.apache.spark.sql.execution.streaming"


@contextmanager
def spark_session(
    name: str,
    *,
    master: str = "local[*]",
    log_file: Path,
    java: JavaChoice | None = None,
    conf: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[SparkSession]:
    """Yield a session, and stop it at the end. `conf` overrides the settings in `_settings`."""
    java = java or find_java(os.environ)
    os.environ["JAVA_HOME"] = str(java.chosen.home)
    # The workers must be the Python that has this package, whatever `python3` is on the PATH.
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # A cluster may have it at another path.
    # The pipeline reports a failed query; Py4J would also print the traceback with its proxies.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for query_context in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(query_context).disabled = True  # As above, for a row that cannot be cast, say.
    if master.startswith(("local", "spark://")):
        os.environ.setdefault("SPARK_HOME", str(_quick_home(log_file.with_name("spark-home"))))
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**_settings(master), **conf}.items():
        builder = builder.config(key, value)
    try:
        with _stderr_to(log_file):
            session = _started(builder)
            session.sparkContext.setLogLevel("WARN")
            silence_pyspark_threads(session)
    except HeadwaterError:
        raise
    except Exception as error:
        check_java_at_start(error)
        raise InvalidError(
            f"cannot start Spark at {master!r} with {java.chosen.home}: {error}",
            hint=f"`headwater doctor` checks Java; Spark's log is {str(log_file)!r}",
        ) from error
    try:
        yield session
    finally:
        stop_session(session)


def _started(builder: Any) -> SparkSession:
    """Start Spark; once more if Java ends before PySpark can connect to it, because it was killed for example."""
    try:
        session: SparkSession = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        session = builder.getOrCreate()
    return session


@contextmanager
def on_session(given: SparkSession) -> Iterator[SparkSession]:
    """Yield a session with our settings on the Spark of a user's session, which goes on at the end.

    What the user has set for all sessions of that Spark has precedence.
    """
    session = given.newSession()
    context = given.sparkContext
    own = dict(context.getConf().getAll())
    for key, value in _settings(str(context.master)).items():
        if key.startswith("spark.sql.") and key not in own:
            session.conf.set(key, value)
    yield session


def _settings(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Spark's default of 15 s for a worker to start is too short on a busy machine.
        "spark.python.authenticate.socketTimeout": "120s",
        # There is a task for each core already.
        "spark.executorEnv.POLARS_MAX_THREADS": "1",
        # By default Polars returns memory after half a second, and the system zeroes it again for the next batch.
        "spark.executorEnv._RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:10000",
        # Progress of batches without rows is of no interest, and there are many.
        "spark.sql.streaming.noDataProgressEventInterval": "60000",
    }
    if master.startswith("local"):
        # Spark's default of 200 is for clusters: on one machine each needs a task and a state store for nothing.
        settings["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.python.daemon.module"] = "headwater.spark.source.daemon"
        # Spark sets it for functions but not for sources, and does not share workers with different variables.
        settings["spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK"] = "1"
    return settings


def _quick_home(folder: Path) -> Path:
    """Create a SPARK_HOME of links to PySpark's files, without the zip of its Python part.

    Spark puts that zip first on its workers' path, and every worker would compile it. Without it they import the
    installed, compiled package: on two cores the first result came after 15 s instead of 24.
    """
    folder.mkdir(parents=True, exist_ok=True)
    installed = Path(pyspark.__file__).parent.resolve()
    for name in ("bin", "jars"):
        link = folder / name
        if not link.is_symlink() or link.readlink() != installed / name:
            link.unlink(missing_ok=True)
            link.symlink_to(installed / name)
    return folder.resolve()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect stderr to a file while the JVM starts, which inherits it; restore ours afterwards.

    The file is locked, and the JVM inherits the lock. So the lock is held until the last process of a run has
    ended, even if the run itself was killed and its JVM continues for a moment: a JVM that still writes to a
    checkpoint must not overlap with the next one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    ours = os.dup(2)
    with path.open("ab") as file:
        if SparkContext._gateway is None:
            _wait_for_lock(file.fileno(), path)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(ours, 2)
        os.close(ours)


def _wait_for_lock(fd: int, path: Path) -> None:
    deadline = time.monotonic() + PREDECESSOR_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConflictError(
                    f"cannot start Spark: processes of an earlier run still write to {str(path)!r}",
                    hint=f"end them (`fuser {path}` lists them), or choose another directory with --data",
                ) from None
            time.sleep(0.1)
