"""What the broker does for each request, by subject. A handler takes the node, the request and who asked, and
gives the response's message, now or later; it writes no bytes and opens no socket.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from headwater.transmit.broker.node import Node


class RequestContext(NamedTuple):
    """Who sent a request, in which version."""

    client_id: str
    host: str
    version: int
    connection: object = None
    """Which of its connections; to be compared only."""


Handler = Callable[[Node, Any, RequestContext], Any | Awaitable[Any]]
