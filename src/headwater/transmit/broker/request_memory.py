"""Intake: how many bytes of requests the broker holds at once, over all connections, and who waits for room.

A request counts from the moment its length is known until its answer is given: while it is received, and while its
records wait for the disk. A connection that finds no room is not read from, so its client's socket fills and the
client slows down. Small requests always pass, so that heartbeats do not wait behind a flood of records.
"""

from collections import deque
from collections.abc import Callable

SMALL_BYTES = 16 * 1024


class RequestMemory:
    """Room for `bytes_max` bytes of requests; one that is larger than all of it passes when it is alone."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def waiting(self) -> int:
        """Connections that wait for room."""
        return len(self._queue)

    def take(self, size: int) -> bool:
        """Take room for a request; False if it has to wait its turn."""
        if size > SMALL_BYTES and (self._queue or not self._fits(size)):
            return False
        self.held_bytes += size
        return True

    def wait(self, size: int, go_on: Callable[[], None]) -> None:
        """Call `go_on` when there is room, which is taken by then; first come, first served."""
        self._queue.append((size, go_on))

    def forget(self, go_on: Callable[[], None]) -> None:
        """Let go of a place in the queue; the next ones may fit now."""
        self._queue = deque(entry for entry in self._queue if entry[1] != go_on)
        self.give_back(0)

    def give_back(self, size: int) -> None:
        """Give room back and let in who fits now."""
        self.held_bytes -= size
        while self._queue and self._fits(self._queue[0][0]):
            taken, go_on = self._queue.popleft()
            self.held_bytes += taken
            go_on()

    def _fits(self, size: int) -> bool:
        return self.held_bytes == 0 or self.held_bytes + size <= self.bytes_max
