"""A stretch of a file, to be sent as it is: the kernel moves it from its cache to a socket, and no byte of it
comes to us. It has a descriptor of its own, so the file may be closed, replaced or removed meanwhile.
"""

import os


class FileRegion:
    """`size` bytes of a file from `position` on; the descriptor is closed when nobody has the region any more."""

    __slots__ = ("_fd", "position", "size")

    def __init__(self, fd: int, position: int, size: int) -> None:
        self._fd = os.dup(fd)
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __del__(self) -> None:
        # Answers end in many ways (sent, cancelled, the client gone), and all of them end here.
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def read(self) -> bytes:
        """All of it, as bytes."""
        return os.pread(self._fd, self.size, self.position)

    def send(self, to: int, sent: int, count: int) -> int:
        """Send up to `count` bytes behind the first `sent` ones to a socket; return how many it took."""
        return os.sendfile(to, self._fd, self.position + sent, min(count, self.size - sent))


Part = bytes | FileRegion
"""A piece of an answer."""
