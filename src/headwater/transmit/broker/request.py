"""The context of a request, which every handler receives."""

from typing import NamedTuple

from headwater.security.principal import Principal


class RequestContext(NamedTuple):
    """The sender of a request, and the version of the request."""

    client_id: str
    principal: Principal
    host: str
    version: int
    connection: object = None
    """Identifies the connection that the request arrived on; only compared, never used."""
