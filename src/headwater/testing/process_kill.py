"""A process that writes a batch, and is killed meanwhile."""

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from headwater.sink import Batch, Sink, Stream

PATIENCE_S = 60.0


def kill_while_writing(sink: Sink, stream: Stream, batch: Batch, *, after_s: float) -> None:
    """Have another process write the batch, and kill it (SIGKILL) so long after it has begun to."""
    # Spawned, not forked: a fork would share the threads' locks and the connections of this process.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_write, args=(sink, stream, batch, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(PATIENCE_S):
            raise TimeoutError(f"the process did not begin to write within {PATIENCE_S} s")
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


def killed(sink: Sink, stream: Stream, times: int) -> Iterator[Callable[[Batch], None]]:
    """Attempts to write whose process is killed at some moment."""
    chance = random.Random(7)
    for _ in range(times):
        yield lambda batch: kill_while_writing(sink, stream, batch, after_s=chance.random() * 0.03)
