"""Kill a process while it writes a batch."""

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from headwater.sink import Batch, Sink, Stream

PATIENCE_S = 60.0
"""Time within which the process must begin to write; importing takes a few seconds."""


def kill_while_writing(sink: Sink, stream: Stream, batch: Batch, *, after_s: float) -> None:
    """Write the batch in another process, and kill it (SIGKILL) `after_s` seconds after it has begun to write."""
    # Spawned, not forked: a forked process would share the locks of threads and the connections of this process.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_write, args=(sink, stream, batch, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(PATIENCE_S):
            raise TimeoutError(f"the writing process did not start within {PATIENCE_S} s")
        ours.recv()
        time.sleep(after_s)
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


def _write(sink: Sink, stream: Stream, batch: Batch, begin: Connection) -> None:
    writer = sink.open(stream)
    begin.send(True)
    writer.write(batch)
    time.sleep(PATIENCE_S)


def writes_with_kill(sink: Sink, stream: Stream, times: int) -> Iterator[Callable[[Batch], None]]:
    """Yield functions that write a batch in a process, which is killed at a random time."""
    chance = random.Random(7)
    for _ in range(times):
        yield lambda batch: kill_while_writing(sink, stream, batch, after_s=chance.random() * 0.03)
