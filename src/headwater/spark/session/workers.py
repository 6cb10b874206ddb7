"""Settings of a Python worker of Spark's. The process that forks the workers is `source.daemon`."""

import gc
from functools import cache


@cache
def freeze_imports() -> None:
    """Exclude all objects that exist now from garbage collection; once for each process.

    A worker collects garbage after each task, and would traverse all objects of pandas, Polars and PySpark: 70 ms
    of processor time, four times a batch.
    """
    gc.freeze()
