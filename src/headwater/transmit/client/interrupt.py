"""TCP connections on which a thread can wait until another thread interrupts it.

A socket pair is polled together with each connection, so an interrupt ends connecting, sending and receiving at
once, without waking up from time to time to look for it. Only the look-up of a host name cannot be interrupted.
"""

import errno
import math
import os
import select
import socket
import threading
import time
from collections.abc import Collection
from typing import Any, Protocol

from headwater.transmit.transport import Address


class Interrupted(Exception):
    """Another thread has called `Interrupt.trigger`. Not an OSError, since the connection has not failed."""


class HasFileno(Protocol):
    """An object with a file descriptor, such as a socket."""

    def fileno(self) -> int: ...


class Interrupt:
    """Interrupts a thread that waits for connections opened with `connect`, from any other thread."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._lock = threading.Lock()
        self._is_triggered = self._is_closed = False

    def trigger(self) -> None:
        """End the current wait, or the next one if there is none, with Interrupted; until `reset` is called."""
        with self._lock:
            if not self._is_triggered and not self._is_closed:
                self._is_triggered = True
                self._sender.send(b"\0")

    def reset(self) -> None:
        with self._lock:
            if self._is_triggered and not self._is_closed:
                self._is_triggered = False
                self._receiver.recv(1)

    def connect(self, address: Address, timeout_s: float) -> "InterruptibleTransport":
        """Open an unencrypted TCP connection, as `transport.connect` does."""
        problem: OSError | None = None
        for family, kind, protocol, _, target in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            connecting = socket.socket(family, kind, protocol)
            try:
                connecting.setblocking(False)
                self._connect(connecting, target, timeout_s)
                connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return InterruptibleTransport(connecting, self, timeout_s)
            except OSError as error:
                connecting.close()
                problem = error
            except BaseException:
                connecting.close()
                raise
        raise problem or OSError(f"no address found for {address[0]!r}")

    def wait_readable(self, sources: Collection[HasFileno], timeout_s: float) -> set[int]:
        """Wait until at least one source is readable or has failed; return the file descriptors of those.

        Returns none at the timeout. Raises Interrupted after `trigger`.
        """
        return self._poll({source.fileno(): select.POLLIN for source in sources}, timeout_s)

    def wait_for(self, source: HasFileno, event: int, timeout_s: float) -> None:
        """Wait for one event of a source; raises TimeoutError or Interrupted."""
        if not self._poll({source.fileno(): event}, timeout_s):
            raise TimeoutError("timed out")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._receiver.close()
            self._sender.close()

    def _connect(self, connecting: socket.socket, target: Any, timeout_s: float) -> None:
        code = connecting.connect_ex(target)
        if code == errno.EINPROGRESS:
            self.wait_for(connecting, select.POLLOUT, timeout_s)
            code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))

    def _poll(self, events: dict[int, int], timeout_s: float) -> set[int]:
        poll = select.poll()
        ours = self._receiver.fileno()
        poll.register(ours, select.POLLIN)
        for fileno, event in events.items():
            poll.register(fileno, event)
        # Rounded up: with 0.4 ms left, a timeout of 0 ms would have the caller poll in a loop.
        ready = {fileno for fileno, _ in poll.poll(max(0, math.ceil(timeout_s * 1000)))}
        if ours in ready:
            raise Interrupted
        return ready


class InterruptibleTransport:
    """A TCP connection that blocks up to its timeout, or until its interrupt is triggered."""

    def __init__(self, connected: socket.socket, interrupt: Interrupt, timeout_s: float) -> None:
        self._socket = connected
        self._interrupt = interrupt
        self._timeout_s = timeout_s
        self.fileno = connected.fileno
        self.close = connected.close

    def recv_into(self, buffer: memoryview, /) -> int:
        while True:
            try:
                return self._socket.recv_into(buffer)
            except BlockingIOError:
                self._interrupt.wait_for(self._socket, select.POLLIN, self._timeout_s)

    def sendall(self, data: bytes, /) -> None:
        deadline = time.monotonic() + self._timeout_s
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                self._interrupt.wait_for(self._socket, select.POLLOUT, deadline - time.monotonic())
