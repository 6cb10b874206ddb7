"""Processes that are started to be killed: those below a program, their ports, and how JVMs start quickly."""

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For `SPARK_SUBMIT_OPTS`: a JVM that is soon killed does not live long enough for good code to pay off, and
starts with half the processor time without it."""


def below(pid: int) -> Iterator[tuple[int, str]]:
    """Those below one, at any depth, with their names.

    Linux lists children by the thread that started them, and Java starts Spark's workers from many.
    """
    for threads_children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            for child in map(int, threads_children.read_text().split()):
                yield child, Path(f"/proc/{child}/comm").read_text().strip()
                yield from below(child)


def free_port() -> int:
    """A port that stays free while who has it is down: below those that the system gives to clients."""
    chance = random.Random()
    while True:
        port = chance.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
