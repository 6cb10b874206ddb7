"""The HTTP server: uvicorn in a thread of this process, without output or signal handlers, and quick to stop.

The socket is bound in the caller's thread, so that the caller gets an error at once if the port is in use.
"""

import asyncio
import socket
import threading
import time
from types import TracebackType
from typing import Self

import uvicorn
from starlette.applications import Starlette

from headwater.errors import InternalError
from headwater.transmit.transport import listen

_GRACE_S = 1  # for responses in progress; event streams end well before, when `closing` is set
_STOP_S = 5.0
_STARTED_POLL_S = 0.01
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class HttpServer:
    """Serves an app made by `create_app` while the `with` block runs; port 0 takes a free port."""

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        self._app = app
        self._host = host
        self._port = port
        config = uvicorn.Config(
            app,
            lifespan="on",
            ws="none",
            log_config=None,
            log_level="critical",
            access_log=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Server(config)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address of the server for a browser on this machine."""
        host = _ANY_HOST.get(self._host, self._host)
        return f"http://{_bracketed(host)}:{self._port}"

    def __enter__(self) -> Self:
        bound = listen(self._host, self._port, option="--http")
        self._port = bound.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, args=([bound],), name="http-server", daemon=True)
        self._thread.start()
        self._wait_until_started(self._thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None  # set by __enter__
        # Uvicorn waits for open responses before it shuts down the app, and event streams never end on their own.
        self._app.state.closing.set()
        self._server.should_exit = True
        self._thread.join(_STOP_S)

    def _wait_until_started(self, thread: threading.Thread) -> None:
        while not self._server.started:
            if not thread.is_alive():
                raise InternalError(f"the http server on {self.url} stopped during startup")
            time.sleep(_STARTED_POLL_S)


class _Server(uvicorn.Server):
    """Uvicorn that also closes the connections of clients that have stopped reading."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # the event loop closes an aborted connection in its next iteration


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
