"""Run `headwater` and record when Spark's Java is started and ready: `_marked.py MARKS run app.py ...`.

It watches the process through Python's audit events, so that it neither changes the product nor imports anything
earlier than usual. PySpark starts Java with the path of a file, which Java writes when it is ready, and opens the
file then.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

MARKS = Path(sys.argv[1])
_CONNECTION = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_awaited = ""


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    global _awaited  # noqa: PLW0603 - an audit hook has no other place for it
    if event == "subprocess.Popen" and _CONNECTION in (arguments[3] or os.environ):
        _awaited = (arguments[3] or os.environ)[_CONNECTION]
        mark("java started")
    elif event == "open" and _awaited and arguments[0] == _awaited:
        _awaited = ""
        mark("java ready")


def mark(name: str) -> None:
    at = time.monotonic()
    with MARKS.open("a") as file:
        file.write(f"{name}\t{at}\n")


if __name__ == "__main__":
    sys.argv[:2] = ["headwater"]
    del sys.path[0]  # The folder of this file: it has modules named `log` and `sql`.
    sys.addaudithook(audit)
    from headwater.cli import main

    main()
