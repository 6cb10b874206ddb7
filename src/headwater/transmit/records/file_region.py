"""A region of a file, which the kernel sends from its cache to a socket without copying it into this process.

It has its own descriptor, so the file may be closed, replaced or removed before it is sent.
"""

import os


class FileRegion:
    """`size` bytes of a file at `position`; the descriptor is closed when the region is garbage collected."""

    __slots__ = ("_fd", "position", "size")

    def __init__(self, fd: int, position: int, size: int) -> None:
        self._fd = os.dup(fd)
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __del__(self) -> None:
        # Responses end in many ways (sent, cancelled, client disconnected), and all of them end here.
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def read(self) -> bytes:
        """Read all bytes of the region."""
        return os.pread(self._fd, self.size, self.position)

    def send(self, to: int, sent: int, count: int) -> int:
        """Send up to `count` bytes after the first `sent` ones to a socket; return the number of bytes sent."""
        return os.sendfile(to, self._fd, self.position + sent, min(count, self.size - sent))


Part = bytes | FileRegion
"""A part of a response."""
