"""A minimal HTTP server for Prometheus, in the event loop of the broker."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TIMEOUT_S = 10.0


async def serve_metrics(host: str, port: int, render: Callable[[], str]) -> asyncio.Server:
    """Serve the text that `render` returns at /metrics; each connection gets one response."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(head, render))
                await writer.drain()
        writer.close()

    return await asyncio.start_server(respond, host, port)


def _response(head: bytes, render: Callable[[], str]) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if path != b"/metrics":
        return _page("404 Not Found", "the metrics are at /metrics\n")
    if method not in (b"GET", b"HEAD"):
        return _page("405 Method Not Allowed", "only GET is supported\n")
    try:
        body = render()
    except Exception:  # an error in the metrics must not stop the broker
        logger.exception("cannot collect the metrics")
        return _page("500 Internal Server Error", "cannot collect the metrics; see the broker's log\n")
    return _page("200 OK", body, has_body=method == b"GET")


def _page(status: str, body: str, *, has_body: bool = True) -> bytes:
    content = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(content)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (content if has_body else b"")
