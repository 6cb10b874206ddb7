"""Transports: ordered byte streams between the broker and its clients.

`Connection`, `Outbox` and the client use these protocols instead of sockets, so that an encrypted transport does
not require changes in them. It is a layer of its own, because `broker` and `client` both use it and do not
import each other. It is not in `security`, because it sends file regions, which are part of `transmit.records`.
"""

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from headwater.errors import ConflictError, InvalidError
from headwater.transmit.records.file_region import FileRegion

Address = tuple[str, int]
Buffer = bytes | bytearray | memoryview


class Transport(Protocol):
    """A stream that does not block: operations raise BlockingIOError where they would have to wait.

    The hot operations have the signatures of `socket.socket`, so that for plain sockets they are the socket's own
    methods, without a Python function in between.
    """

    peer: str
    """The IP address of the other side."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive into a buffer and return the number of bytes; 0 at the end of the stream."""
        ...

    def sendmsg(self, buffers: Sequence[Buffer], ancillary: tuple[()], flags: int, /) -> int:
        """Send from several buffers and return the number of bytes taken; ancillary data is empty.

        The only flag is MSG_MORE, which may be ignored: more data follows at once.
        """
        ...

    def send_region(self, region: FileRegion, sent: int, count: int) -> int:
        """Send up to `count` bytes of a file region after its first `sent` bytes; return the number taken.

        A transport that cannot send from a file directly reads the bytes and sends them.
        """
        ...

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        """Call back whenever there may be something to receive; None stops it.

        Includes data that the transport has received and buffered itself.
        """
        ...

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        """Call back whenever sending may succeed; None stops it."""
        ...

    def close(self) -> None: ...


class SocketTransport:
    """A connected socket, without encryption. Registers its callbacks with the running event loop."""

    def __init__(self, connected: socket.socket, peer: str) -> None:
        connected.setblocking(False)
        self.peer = peer
        self._socket = connected
        self._fd = connected.fileno()
        self.recv_into = connected.recv_into
        self.sendmsg = connected.sendmsg
        self.close = connected.close

    def send_region(self, region: FileRegion, sent: int, count: int) -> int:
        return region.send(self._fd, sent, count)

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        loop = asyncio.get_running_loop()
        if callback is None:
            loop.remove_reader(self._fd)
        else:
            loop.add_reader(self._fd, callback)

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        loop = asyncio.get_running_loop()
        if callback is None:
            loop.remove_writer(self._fd)
        else:
            loop.add_writer(self._fd, callback)


class BlockingTransport(Protocol):
    """A stream that blocks up to its timeout, as the client uses it. A `socket.socket` is one."""

    def recv_into(self, buffer: memoryview, /) -> int: ...

    def sendall(self, data: bytes, /) -> None: ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


Connect = Callable[[Address, float], BlockingTransport]
"""Opens a transport to an address; the second argument is the timeout in seconds."""


def connect(address: Address, timeout_s: float) -> BlockingTransport:
    """Open an unencrypted TCP connection; connecting, sending and receiving time out after `timeout_s`."""
    connected = socket.create_connection(address, timeout=timeout_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def listen(host: str, port: int, *, option: str, backlog: int | None = None) -> socket.socket:
    """Open a listening TCP socket; `option` is the command-line option for the address, named in errors."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConflictError(
                f"cannot listen on {address}: the address is in use",
                hint=f"stop the program that uses it, or choose another port with {option} (0: any free port)",
            ) from error
        raise InvalidError(f"cannot listen on {address}: {error.strerror or error}") from error
