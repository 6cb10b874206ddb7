"""The interface of the request handlers."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from headwater.security.principal import Principal
from headwater.transmit.broker.node import Node


class RequestContext(NamedTuple):
    """The sender of a request, and the version of the request."""

    client_id: str
    principal: Principal
    host: str
    version: int
    connection: object = None
    """Identifies the connection that the request arrived on; only compared, never used."""


Handler = Callable[[Node, Any, RequestContext], Any | Awaitable[Any]]
"""Returns the response message, or an awaitable of it. None: the client expects no response."""
