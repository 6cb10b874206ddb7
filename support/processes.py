"""Descendants of a process, free ports, and options for JVMs that are soon killed."""

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xmn256m -XX:MetaspaceSize=256m"
)
"""For `SPARK_SUBMIT_OPTS`: only the fast first compiler. A JVM that is soon killed does not live long enough for
optimized code to pay off, and without the optimizing compiler it needs half the CPU time to start.

The first compiler alone has room for 48 MB of code by default, which Spark fills after some minutes. The other two
options save garbage collections: by default Java begins with a small young generation and metaspace."""

_PORTS = range(19_092, 32_000)
_returned_ports: set[int] = set()


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Yield the id and name of each child of a process, of its children, and so on.

    Linux lists children by the thread that started them, and Java starts Spark's workers from many threads.
    """
    for threads_children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # The process has ended meanwhile.
            for child in map(int, threads_children.read_text().split()):
                yield child, Path(f"/proc/{child}/comm").read_text().strip()
                yield from descendants(child)


def free_port() -> int:
    """Return a free port that this process has not returned before.

    It is below the range from which Linux assigns ports to outgoing connections, so that none of them takes it
    while its server is down.
    """
    # In random order, since other processes look for ports too; not by the global generator, which tests may seed.
    for port in random.Random().sample(_PORTS, len(_PORTS)):
        if port not in _returned_ports:
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                _returned_ports.add(port)
                return port
    raise RuntimeError(f"no port is free between {_PORTS.start} and {_PORTS.stop}")
