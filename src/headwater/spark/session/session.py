"""Starts Spark: with the Java that was found, for streams on one machine, and without noise on the screen.

What Java and Spark have to say goes to a log file instead; errors reach Python anyway.
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

import pyspark
from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from headwater.errors import ConflictError, HeadwaterError, InvalidError
from headwater.spark.session.java import JavaChoice, find_java
from headwater.spark.session.jvm import stop_session, tell_nothing_twice

PREDECESSOR_S = 60.0
"""How long the processes of a run that was killed may take to notice."""

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
    """A session that is stopped at the end; what Spark is told is in `_settings`, then in `conf`."""
    java = java or find_java(os.environ)
    os.environ["JAVA_HOME"] = str(java.chosen.home)
    # The workers must be the Python that has this package, whatever `python3` is on the PATH.
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # A cluster's may be in another place.
    # A failed query is told by the pipeline; Py4J would print the traceback as well, of the proxy and all.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for query_context in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(query_context).disabled = True  # As above: for a row that cannot be cast, say.
    if master.startswith(("local", "spark://")):
        os.environ.setdefault("SPARK_HOME", str(_quick_home(log_file.with_name("spark-home"))))
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**_settings(master), **conf}.items():
        builder = builder.config(key, value)
    try:
        with _stderr_to(log_file):
            session = builder.getOrCreate()
            session.sparkContext.setLogLevel("WARN")
            tell_nothing_twice(session)
    except HeadwaterError:
        raise
    except Exception as error:
        raise InvalidError(
            f"cannot start Spark at {master!r} with {java.chosen.home}: {error}",
            hint=f"`headwater doctor` checks Java; Spark's own words are in {str(log_file)!r}",
        ) from error
    try:
        yield session
    finally:
        stop_session(session)


def _settings(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Spark's 15 s for a worker to start are too few on a machine that is busy with other things.
        "spark.python.authenticate.socketTimeout": "120s",
        # There is a task for each core already.
        "spark.executorEnv.POLARS_MAX_THREADS": "1",
        # Polars gives memory back after half a second, and the next batch has it zeroed again.
        "spark.executorEnv._RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:10000",
        # Facts about batches without rows are of no interest, and there are many.
        "spark.sql.streaming.noDataProgressEventInterval": "60000",
    }
    if master.startswith("local"):
        # Spark's 200 are for clusters: on one machine each costs a task and a state store for nothing.
        settings["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.python.daemon.module"] = "headwater.spark.source.daemon"
        # Spark sets it for functions but not for sources, and keeps workers apart by what is set for them.
        settings["spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK"] = "1"
    return settings


def _quick_home(folder: Path) -> Path:
    """A SPARK_HOME of links to PySpark's files, all but one: the zip of its Python part.

    Spark puts that zip first on its workers' path, where every one of them compiles it anew. Without it they
    import the installed, compiled package: on two cores the first result came after 15 s instead of 24.
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
    """Have the JVM, which inherits it, write its stderr to a file; ours is back when it has started.

    The file is locked, and the lock is inherited too. So it is held until the last process of a run is gone, also
    where the run itself was killed and its JVM goes on for a moment: a JVM that still writes to a checkpoint must
    not meet its successor there.
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
