"""The HTTP API under `/api/v1`: one small function per address, and one mapping of errors to responses.

Handlers that read the stores are plain functions, so Starlette runs each in a worker thread. The server sets
`app.state.closing` when it stops, which ends the event streams.
"""

import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from headwater.clock import SystemClock
from headwater.errors import ConflictError, HeadwaterError, InvalidError, UnavailableError
from headwater.serve.api.status import (
    ApiContext,
    describe_columns,
    describe_late,
    read_groups,
    read_pipelines,
    read_status,
    read_topics,
    read_views,
)
from headwater.serve.api.view_queries import ROWS_DEFAULT, ROWS_MAX, integer, question_of, wait_until_seen
from headwater.serve.live.events import follow_status
from headwater.serve.live.group_lag import SAMPLE_EVERY_S as GROUPS_EVERY_S
from headwater.serve.live.rates import sampling
from headwater.serve.live.subscriptions import Hub
from headwater.serve.openapi import document
from headwater.store.pipelines.facts import FACTS_KEPT, FactKind
from headwater.store.shapes import ViewShape
from headwater.store.subscription import resume_position

__all__ = ["ApiContext", "create_app"]

_ROOT = "/api/v1"
_KEY_SEGMENTS_FROM = len(f"{_ROOT}/views/VIEW/rows/KEY".split("/")) - 1

_log = logging.getLogger(__name__)


class NotFoundError(InvalidError):
    """Raised for the name of a view, pipeline or row that does not exist."""


_STATUS_CODES: dict[type[HeadwaterError], int] = {
    NotFoundError: 404,
    InvalidError: 400,
    ConflictError: 409,
    UnavailableError: 503,
}


def create_app(sources: ApiContext, *, extra_routes: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the HTTP app that reads from `sources`; while it runs, it samples the log."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with ExitStack() as stack:
            if sources.topics is not None:
                stack.enter_context(sampling(sources.topics))
            if sources.groups is not None:
                stack.enter_context(sampling(sources.groups, GROUPS_EVERY_S))
            yield

    app = Starlette(
        routes=[*_api_routes(), *extra_routes],
        lifespan=lifespan,
        exception_handlers={
            HeadwaterError: _headwater_error,
            HTTPException: _http_error,
            Exception: _unexpected_error,
        },
    )
    app.state.sources = sources
    app.state.closing = threading.Event()
    app.state.hub = Hub(sources.views, app.state.closing)
    return app


def _api_routes() -> list[Route]:
    return [
        Route(f"{_ROOT}/openapi.json", _openapi),
        Route(f"{_ROOT}/status", _status),
        Route(f"{_ROOT}/status/stream", _status_stream),
        Route(f"{_ROOT}/topics", _topics),
        Route(f"{_ROOT}/groups", _groups),
        Route(f"{_ROOT}/pipelines", _pipelines),
        Route(f"{_ROOT}/pipelines/{{pipeline}}/facts", _facts),
        Route(f"{_ROOT}/views", _views),
        Route(f"{_ROOT}/views/{{view}}/rows", _rows),
        Route(f"{_ROOT}/views/{{view}}/rows/{{key:path}}", _rows_of_key),
        Route(f"{_ROOT}/views/{{view}}/search", _search),
        Route(f"{_ROOT}/views/{{view}}/subscribe", _subscribe),
        Route(f"{_ROOT}/views/{{view}}/late", _late),
    ]


# -- handlers ------------------------------------------------------------------------------------------------


def _openapi(request: Request) -> Response:
    return JSONResponse(document(_sources(request).app))


def _status(request: Request) -> Response:
    return JSONResponse(read_status(_sources(request)))


def _topics(request: Request) -> Response:
    return JSONResponse({"topics": read_topics(_sources(request))})


def _groups(request: Request) -> Response:
    return JSONResponse({"groups": read_groups(_sources(request))})


def _pipelines(request: Request) -> Response:
    return JSONResponse({"pipelines": read_pipelines(_sources(request))})


def _facts(request: Request) -> Response:
    facts, name, parameters = _sources(request).facts, request.path_params["pipeline"], request.query_params
    known = facts.queries()
    if name not in known:
        raise NotFoundError(f"there is no pipeline {name!r}; there are: {', '.join(known) or 'none yet'}")
    kind = parameters.get("kind", FactKind.BATCH)
    if kind not in list(FactKind):
        raise InvalidError(f"kind must be one of {', '.join(FactKind)}, not {kind!r}")
    limit = integer("limit", parameters.get("limit", str(FACTS_KEPT)), smallest=1, largest=FACTS_KEPT)
    found = facts.latest(name, kind=FactKind(kind), limit=limit)
    bodies = [{"sequence": fact.sequence, "atMs": fact.at_ms, **fact.body} for fact in found]
    return JSONResponse({"pipeline": name, "kind": kind, "facts": bodies})


def _late(request: Request) -> Response:
    shape, parameters = _shape(request), request.query_params
    rows = _sources(request).views.late_rows(
        shape.name,
        after=integer("after", parameters.get("after", "0"), smallest=0),
        limit=integer("limit", parameters.get("limit", str(ROWS_DEFAULT)), smallest=1, largest=ROWS_MAX),
    )
    return JSONResponse({"view": shape.name, "rows": [describe_late(row) for row in rows]})


def _views(request: Request) -> Response:
    return JSONResponse({"views": read_views(_sources(request))})


async def _rows(request: Request) -> Response:
    return JSONResponse(await _read_rows(request, request.query_params.getlist("key")))


async def _rows_of_key(request: Request) -> Response:
    key = _key_segments(request)
    found = await _read_rows(request, key)
    if not found["rows"]:
        raise NotFoundError(f"view {found['view']!r} has no row whose key starts with {key!r}")
    return JSONResponse(found)


async def _search(request: Request) -> Response:
    if "q" not in request.query_params:
        raise InvalidError("cannot search without q; give the words to search for, as in ?q=green+tea")
    return JSONResponse(await _read_rows(request, request.query_params.getlist("key")))


async def _subscribe(request: Request) -> Response:
    shape = await run_in_threadpool(_shape, request)
    token = request.headers.get("last-event-id", request.query_params.get("token"))
    # An invalid token must raise InvalidError here: a started stream can no longer become an error response.
    await run_in_threadpool(resume_position, _sources(request).views, token)
    return _event_stream(request.app.state.hub.subscribe(shape.name, token))


async def _status_stream(request: Request) -> Response:
    sources = _sources(request)
    return _event_stream(follow_status(lambda: read_status(sources), request.app.state.closing))


# -- reading a request ---------------------------------------------------------------------------------------


def _sources(request: Request) -> ApiContext:
    sources = request.app.state.sources
    assert isinstance(sources, ApiContext)
    return sources


def _shape(request: Request) -> ViewShape:
    name = request.path_params["view"]
    shapes = {shape.name: shape for shape in _sources(request).views.views()}
    if name not in shapes:
        raise NotFoundError(f"there is no view {name!r}; there are: {', '.join(shapes) or 'none yet'}")
    return shapes[name]


async def _read_rows(request: Request, key: Sequence[str]) -> dict[str, Any]:
    shape = await run_in_threadpool(_shape, request)
    views, parameters = _sources(request).views, request.query_params
    await wait_until_seen(views, shape.name, parameters, SystemClock())

    def read() -> dict[str, Any]:
        found = views.ask(shape.name, question_of(shape, parameters, key, views))
        return {
            "view": shape.name,
            "columns": describe_columns(shape),
            "rows": found.rows,
            "position": found.position,
            "token": found.token,
            "next": found.next,
        }

    return await run_in_threadpool(read)


def _key_segments(request: Request) -> list[str]:
    """Return the key's values from the undecoded path, where a slash inside a value is still encoded."""
    segments: list[bytes] = request.scope["raw_path"].split(b"/")
    return [unquote(segment.decode("ascii")) for segment in segments[_KEY_SEGMENTS_FROM:]]


# -- responses -----------------------------------------------------------------------------------------------


def _event_stream(events: AsyncIterator[bytes]) -> Response:
    # X-Accel-Buffering prevents nginx from buffering the events.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _headwater_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadwaterError)
    codes = (_STATUS_CODES[kind] for kind in type(error).__mro__ if kind in _STATUS_CODES)
    return _error(next(codes, 500), str(error), error.hint)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail.lower()}"
    return _error(error.status_code, message, f"{_ROOT}/openapi.json lists all addresses", error.headers)


def _unexpected_error(request: Request, error: Exception) -> Response:
    # Internals are not shown to the client; the traceback is in the app's log.
    _log.error("cannot handle %s %s", request.method, request.url.path, exc_info=error)
    return _error(500, "internal server error; see the log of the app", None)


def _error(code: int, message: str, hint: str | None, headers: Any = None) -> Response:
    return JSONResponse({"error": {"message": message, "hint": hint}}, status_code=code, headers=headers)
