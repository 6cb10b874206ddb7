"""The limit on the memory of requests, over all connections.

A request counts from the moment its length is known until it is answered: while it is received, and while its
records wait for the disk. While the limit is reached, the broker does not read from a connection, so the client's
socket fills up and the client slows down. Small requests are always accepted, so that heartbeats do not wait for
large produce requests.
"""

from collections import deque
from collections.abc import Callable

SMALL_BYTES = 16 * 1024


class RequestMemory:
    """Grants up to `bytes_max` bytes; a request that is larger than that is granted while no other is held."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def waiting(self) -> int:
        """Number of connections that wait for memory."""
        return len(self._queue)

    def acquire(self, size: int) -> bool:
        """Acquire memory for a request; return False if the request has to wait."""
        if size > SMALL_BYTES and (self._queue or not self._fits(size)):
            return False
        self.held_bytes += size
        return True

    def wait(self, size: int, on_acquired: Callable[[], None]) -> None:
        """Call `on_acquired` once the memory has been acquired; first come, first served."""
        self._queue.append((size, on_acquired))

    def cancel(self, on_acquired: Callable[[], None]) -> None:
        """Remove a request from the queue; the ones after it may fit now."""
        self._queue = deque(entry for entry in self._queue if entry[1] != on_acquired)
        self.release(0)

    def release(self, size: int) -> None:
        """Release memory, and grant it to the requests at the head of the queue that fit now."""
        self.held_bytes -= size
        while self._queue and self._fits(self._queue[0][0]):
            waiting_size, on_acquired = self._queue.popleft()
            self.held_bytes += waiting_size
            on_acquired()

    def _fits(self, size: int) -> bool:
        return self.held_bytes == 0 or self.held_bytes + size <= self.bytes_max
