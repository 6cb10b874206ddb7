"""Where Spark's Python workers come from: a process that imports what they all need, then forks one after another.

PySpark's own forks first, and every worker imports pandas, PyArrow and the rest anew. Polars is left to the
workers: it starts threads when it is imported, and a fork has only the thread that called it.
"""

import pandas  # noqa: F401 - for the workers
import pyarrow  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import headwater.spark.source.source  # noqa: F401

if __name__ == "__main__":
    manager()
