"""Group commit: one wait for the disk serves every producer that is waiting at that moment.

A log with new records is queued; a few threads take all queued logs, sync each, and tell the broker's loop how far
each one has come. While they sync, the next ones gather. So the disk is always busy and never asked more often
than it can answer. Several threads, because a file system writes its journal once for those who wait together.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum

from headwater.transmit.log.partition import PartitionLog


class Durability(StrEnum):
    """When an appended record counts as safe."""

    FSYNC = "fsync"
    """Before it is acknowledged: it survives the loss of power."""
    INTERVAL = "interval"
    """Within INTERVAL_S: it survives the death of the process at once, the loss of power a moment later."""
    NEVER = "never"
    """When the operating system likes, as in Kafka by default."""


INTERVAL_S = 1.0
THREADS = 4
"""64 files take 41 to 71 ms with one thread, 12 ms with four, and no less with more (ext4)."""

OnSynced = Callable[[PartitionLog, int | OSError], None]


class GroupCommit:
    """Syncs logs in threads of its own; `on_synced` is called in the loop with what was reached."""

    def __init__(self, on_synced: OnSynced) -> None:
        self.syncs = 0
        self.seconds = 0.0
        """Spent waiting for the disk so far."""
        self._on_synced = on_synced
        self._waiting: set[PartitionLog] = set()
        self._running: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="headwater-sync")

    def request(self, log: PartitionLog) -> None:
        """Have the log synced soon."""
        self._waiting.add(log)
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def drain(self) -> None:
        """Wait until everything requested so far is on the disk."""
        if self._running is not None:
            await self._running

    def close(self) -> None:
        self._threads.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            logs, self._waiting = list(self._waiting), set()
            began = loop.time()
            shares = [logs[number::THREADS] for number in range(min(THREADS, len(logs)))]
            found = await asyncio.gather(
                *(loop.run_in_executor(self._threads, _sync_all, share) for share in shares)
            )
            self.syncs += len(logs)
            self.seconds += loop.time() - began
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
