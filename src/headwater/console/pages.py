"""The console's addresses: the page at `/`, and what it is made of under `/assets`."""

from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

_STATIC = Path(__file__).parent / "static"

_HEADERS = {
    # The page may load and call nothing but this server, and nobody may frame it.
    "Content-Security-Policy": ("default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Names carry no version, so a browser must ask each time; an unchanged file is a 304.
    "Cache-Control": "no-cache",
}


def routes() -> list[BaseRoute]:
    """The routes of the console, for `create_app(..., extra_routes=...)`."""
    return [Route("/", _page), Mount("/assets", _Assets(directory=_STATIC))]


def _page(request: Request) -> Response:
    return FileResponse(_STATIC / "index.html", headers=_HEADERS)


class _Assets(StaticFiles):
    """Static files with our headers."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_HEADERS)
        return response
