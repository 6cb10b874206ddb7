"""Sending answers: what a socket does not take at once is kept, in order, and sent when it takes more.

Bytes that stand together leave in one call; a region of a file goes straight from the kernel's cache. Nothing is
joined or copied.
"""

import socket
from collections import deque
from collections.abc import Iterable
from itertools import islice

from headwater.transmit.records.file_region import FileRegion, Part
from headwater.transmit.transport import Transport

BYTES_A_TURN = 4 << 20
"""Then others have their turn, however fast the client takes it."""
_BUFFERS_MAX = 64  # for one call; systems take 1024


class Outbox:
    """Parts that wait to be sent to one client. Its socket does not block."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._parts: deque[Part | memoryview] = deque()
        self._sent = 0  # of the first part, if that is a region
        self.size = 0
        """Bytes that wait."""

    def put(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self._parts.append(part)
            self.size += len(part)

    def send(self) -> None:
        """Send what the socket takes now, up to a bound; an OSError if the client has gone."""
        left = min(self.size, BYTES_A_TURN)
        try:
            while left > 0:
                sent = self._send_some(left)
                self.size -= sent
                left -= sent
        except BlockingIOError:
            pass

    def clear(self) -> None:
        self._parts.clear()
        self.size = 0

    def _send_some(self, count: int) -> int:
        first = self._parts[0]
        if isinstance(first, FileRegion):
            sent = self._transport.send_region(first, self._sent, count)
            if not sent:
                raise OSError(f"a region of {first.size} bytes ended at {self._sent}: its file was cut")
            self._sent += sent
            if self._sent == first.size:
                self._parts.popleft()
                self._sent = 0
            return sent
        return self._send_bytes()

    def _send_bytes(self) -> int:
        buffers: list[bytes | memoryview] = []
        flags = 0
        for part in islice(self._parts, _BUFFERS_MAX):
            if isinstance(part, FileRegion):
                flags = socket.MSG_MORE  # so that what belongs together travels together
                break
            buffers.append(part)
        sent = left = self._transport.sendmsg(buffers, (), flags)
        for buffer in buffers:
            if left < len(buffer):
                self._parts[0] = memoryview(buffer)[left:]
                break
            left -= len(buffer)
            self._parts.popleft()
        return sent
