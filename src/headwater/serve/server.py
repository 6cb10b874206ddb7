"""The HTTP server: uvicorn in a thread of our process, silent, without signal handlers, and quick to stop.

The socket is bound in the caller's thread, so that a port in use is the caller's error at once.
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

_GRACE_S = 1  # for answers under way; feeds end by themselves well before
_STOP_S = 5.0
_STARTED_POLL_S = 0.01
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class HttpServer:
    """Serves an app that `create_app` made while the `with` block runs; port 0 takes a free one."""

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
        """Where a browser on this machine finds the server."""
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
        assert self._thread is not None  # we were entered
        # Uvicorn waits for open answers before it tells the app to end, and feeds are answers without an end.
        self._app.state.closing.set()
        self._server.should_exit = True
        self._thread.join(_STOP_S)

    def _wait_until_started(self, thread: threading.Thread) -> None:
        while not self._server.started:
            if not thread.is_alive():
                raise InternalError(f"the http server on {self.url} ended while it started")
            time.sleep(_STARTED_POLL_S)


class _Server(uvicorn.Server):
    """Uvicorn, that also hangs up on listeners which have stopped reading."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # the loop closes an aborted connection in its next round


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
