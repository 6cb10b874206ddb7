"""The log's figures on the app's own HTTP server, for Prometheus."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

CONTENT_TYPE = "text/plain; version=0.0.4"


def metrics_route(render: Callable[[], str]) -> Route:
    """GET /metrics. `render` may take its time: it is called in a thread of its own."""

    def metrics(request: Request) -> PlainTextResponse:
        return PlainTextResponse(render(), media_type=CONTENT_TYPE)

    return Route("/metrics", metrics)
