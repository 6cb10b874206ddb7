"""A way to a server that can be cut: after so many bytes in one direction, or at once."""

import contextlib
import socket
import threading

FOREVER = 1 << 62


class Cut:
    """Passes bytes between clients and a server on this machine, until `arm`'s limit is reached; then it is dead.

    A cut on the way up loses what the client says, one on the way down what the server answers: then the client
    cannot know whether it was done.
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
        """Cut everything when so many bytes more have passed in that direction; counting starts anew."""
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
