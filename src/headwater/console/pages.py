"""The HTTP routes of the console: its pages, and its static files under `/assets`."""

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

PAGE_ADDRESSES = ("/", "/views", "/views/{name}")
"""The addresses of pages; the registry in `static/app.js` maps each to its module. Any other address is a 404."""

_STATIC = Path(__file__).parent / "static"

_HEADERS = {
    # The page may load and call only this server, and no other page may frame it.
    "Content-Security-Policy": ("default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # File names carry no version, so a browser must revalidate each time; an unchanged file is a 304.
    "Cache-Control": "no-cache",
}

# Before the console had several pages, the rows of a view were at `/?view=NAME&filter=...&sort=...`.
_OLD_VIEW_PARAMETERS = {"view", "filter", "sort"}


def routes() -> list[BaseRoute]:
    """Return the routes of the console, for `create_app(..., extra_routes=...)`."""
    pages = [Route(address, _page) for address in PAGE_ADDRESSES]
    return [*pages, Mount("/assets", _Assets(directory=_STATIC))]


def _page(request: Request) -> Response:
    parameters = request.query_params
    if request.url.path == "/" and _OLD_VIEW_PARAMETERS & parameters.keys():
        return RedirectResponse(
            _new_address(parameters.get("view", ""), parameters.multi_items()), headers=_HEADERS
        )
    return FileResponse(_STATIC / "index.html", headers=_HEADERS)


def _new_address(view: str, parameters: list[tuple[str, str]]) -> str:
    path = f"/views/{quote(view, safe='')}" if view else "/views"
    query = urlencode([(name, value) for name, value in parameters if name != "view"])
    return f"{path}?{query}" if query else path


class _Assets(StaticFiles):
    """Static files with the headers of the console."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_HEADERS)
        return response
