"""What a Python worker of Spark's needs before its first task."""

import gc
from functools import cache


@cache
def settle() -> None:
    """Take what this process has imported out of the garbage collector's walks; once a process.

    A worker collects garbage after each task, and walks through all that pandas, Polars and PySpark have made of
    themselves: 70 ms of processor time, four times a batch.
    """
    gc.freeze()
