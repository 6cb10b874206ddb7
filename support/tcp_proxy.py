"""A TCP proxy that cuts its connections after a number of bytes in one direction, or at once."""

import contextlib
import socket
import threading

FOREVER = 1 << 62


class Cut:
    """A proxy between clients and a server on this machine; it closes for good when the limit of `arm` is reached.

    A cut in the direction "up" loses requests of the client. A cut in the direction "down" loses responses of the
    server: then the client cannot know whether its request was executed.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._left = {"up": FOREVER, "down": FOREVER}
        self.passed = {"up": 0, "down": 0}
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, direction: str, after_bytes: int) -> None:
        """Cut all connections after this many more bytes in that direction, and reset the counters in `passed`."""
        with self._lock:
            self._left[direction] = after_bytes
            self.passed = {"up": 0, "down": 0}

    def close(self) -> None:
        with self._lock:
            sockets, self._sockets = [self._listener, *self._sockets], []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __enter__(self) -> "Cut":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                with self._lock:
                    self._sockets += [client, server]
                for source, target, direction in ((client, server, "up"), (server, client, "down")):
                    threading.Thread(target=self._pass, args=(source, target, direction), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    allowed = min(len(data), self._left[direction])
                    self._left[direction] -= allowed
                    self.passed[direction] += allowed
                target.sendall(data[:allowed])
                if allowed < len(data) or self._left[direction] == 0:
                    break
        self.close()
