"""Responses that are not sent yet, in order.

Adjacent buffers are sent in one call, and regions of files directly from the kernel's page cache. No bytes are
joined or copied.
"""

import socket
from collections import deque
from collections.abc import Iterable
from itertools import islice

from headwater.transmit.records.file_region import FileRegion, Part
from headwater.transmit.transport import Transport

BYTES_A_TURN = 4 << 20
"""After these many bytes, other connections are served, even if the client accepts more."""
_BUFFERS_MAX = 64  # in one call; operating systems accept 1024


class Outbox:
    """The unsent parts of the responses to one client."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._parts: deque[Part | memoryview] = deque()
        self._sent = 0  # bytes sent of the first part, if that is a region
        self.size = 0
        """Number of unsent bytes."""

    def put(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self._parts.append(part)
            self.size += len(part)

    def send(self) -> None:
        """Send what the transport accepts now, up to BYTES_A_TURN. Raises OSError if the client is gone."""
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
                raise OSError(
                    f"cannot send a region of {first.size} bytes: its file was truncated at byte {self._sent}"
                )
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
                flags = socket.MSG_MORE  # so that both are sent in one packet
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
