"""A page for Prometheus: HTTP as far as a scraper needs it, in the loop of whom it asks."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATIENCE_S = 10.0


async def serve_metrics(host: str, port: int, render: Callable[[], str]) -> asyncio.Server:
    """Answer GET /metrics with what `render` gives; each connection gets one answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(head, render))
                await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, host, port)


def _response(head: bytes, render: Callable[[], str]) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if path != b"/metrics":
        return _page("404 Not Found", "the metrics are at /metrics\n")
    if method not in (b"GET", b"HEAD"):
        return _page("405 Method Not Allowed", "only GET is answered\n")
    try:
        body = render()
    except Exception:  # a scraper must not end the broker
        logger.exception("cannot collect the metrics")
        return _page("500 Internal Server Error", "cannot collect the metrics; the broker's log says why\n")
    return _page("200 OK", body, is_wanted=method == b"GET")


def _page(status: str, body: str, *, is_wanted: bool = True) -> bytes:
    content = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(content)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (content if is_wanted else b"")
