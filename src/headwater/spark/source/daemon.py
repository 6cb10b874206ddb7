"""The process that forks Spark's Python workers, after it has imported the modules that all of them need.

PySpark's own daemon forks first, and then every worker imports pandas, PyArrow and the rest. Polars is imported in
the workers: it starts threads when it is imported, and a forked process has only the thread that forked it.

It is not in `session`, which sets it as `spark.python.daemon.module`, because it imports the data source.
"""

import pandas  # noqa: F401 - for the workers
import pyarrow  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import headwater.spark.source.source  # noqa: F401

if __name__ == "__main__":
    manager()
