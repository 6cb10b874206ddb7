"""Group commit: one disk sync serves all producers that wait for it.

Logs with new records are queued. A few threads take all queued logs, sync each, and report the offsets reached to
the broker's loop. Meanwhile the next logs are queued, so the disk is always busy and gets no more syncs than it
can do. There are several threads because a file system writes its journal once for all concurrent syncs.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum

from headwater.transmit.log.partition import PartitionLog


class Durability(StrEnum):
    """The point at which an appended record counts as durable."""

    FSYNC = "fsync"
    """It is synced before it is acknowledged, and survives a power failure."""
    INTERVAL = "interval"
    """It is synced within INTERVAL_S: it survives a crash of the process at once, and a power failure then."""
    NEVER = "never"
    """The operating system decides when to write it, as in Kafka by default."""


INTERVAL_S = 1.0
THREADS = 4
"""64 files take 41 to 71 ms with one thread, 12 ms with four, and no less with more (ext4)."""

OnSynced = Callable[[PartitionLog, int | OSError], None]


class GroupCommit:
    """Syncs logs in its own threads; `on_synced` is called in the loop with the offset reached, or the error."""

    def __init__(self, on_synced: OnSynced) -> None:
        self.syncs = 0
        self.seconds = 0.0
        """Total time spent on syncs."""
        self._on_synced = on_synced
        self._waiting: set[PartitionLog] = set()
        self._running: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="headwater-sync")

    def request(self, log: PartitionLog) -> None:
        """Queue a log for the next sync."""
        self._waiting.add(log)
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def drain(self) -> None:
        """Wait until all requested syncs are done."""
        if self._running is not None:
            await self._running

    def close(self) -> None:
        self._threads.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            logs, self._waiting = list(self._waiting), set()
            started = loop.time()
            shares = [logs[number::THREADS] for number in range(min(THREADS, len(logs)))]
            found = await asyncio.gather(
                *(loop.run_in_executor(self._threads, _sync_all, share) for share in shares)
            )
            self.syncs += len(logs)
            self.seconds += loop.time() - started
            for results in found:
                for log, reached in results:
                    self._on_synced(log, reached)


def _sync_all(logs: Sequence[PartitionLog]) -> list[tuple[PartitionLog, int | OSError]]:
    results: list[tuple[PartitionLog, int | OSError]] = []
    for log in logs:
        try:
            results.append((log, log.sync()))
        except OSError as error:
            results.append((log, error))
    return results
