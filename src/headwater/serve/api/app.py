"""JSON over HTTP, under `/api/v1`: one small function per address, and one place where errors become answers.

Handlers that read the stores are plain functions, so Starlette runs each in a worker thread. The server sets
`app.state.closing` when it stops, and the feeds, which have no other end, end then.
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
from headwater.serve.live.events import follow_status, follow_view
from headwater.serve.live.group_lag import SAMPLE_EVERY_S as GROUPS_EVERY_S
from headwater.serve.live.rates import sampling
from headwater.serve.live.subscriptions import Hub
from headwater.serve.openapi import document
from headwater.store.facts import FACTS_KEPT, FactKind
from headwater.store.shapes import ViewShape
from headwater.store.subscription import resume_position

__all__ = ["ApiContext", "create_app"]

_ROOT = "/api/v1"
_KEY_SEGMENTS_FROM = len(f"{_ROOT}/views/VIEW/rows/KEY".split("/")) - 1

_log = logging.getLogger(__name__)


class NotFoundError(InvalidError):
    """The address names nothing."""


_STATUS_CODES: dict[type[HeadwaterError], int] = {
    NotFoundError: 404,
    InvalidError: 400,
    ConflictError: 409,
    UnavailableError: 503,
}


def create_app(sources: ApiContext, *, extra_routes: Sequence[BaseRoute] = ()) -> Starlette:
    """Make the HTTP app that answers from `sources`; while it runs, it samples the log."""

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
            HeadwaterError: _answer_error,
            HTTPException: _answer_http_error,
            Exception: _answer_unexpected,
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
        Route(f"{_ROOT}/views/{{view}}/changes", _changes),
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
    facts, name, asked = _sources(request).facts, request.path_params["pipeline"], request.query_params
    known = facts.queries()
    if name not in known:
        raise NotFoundError(f"there is no pipeline {name!r}; there are: {', '.join(known) or 'none yet'}")
    kind = asked.get("kind", FactKind.BATCH)
    if kind not in list(FactKind):
        raise InvalidError(f"kind must be one of {', '.join(FactKind)}, not {kind!r}")
    limit = integer("limit", asked.get("limit", str(FACTS_KEPT)), smallest=1, largest=FACTS_KEPT)
    found = facts.latest(name, kind=FactKind(kind), limit=limit)
    bodies = [{"sequence": fact.sequence, "atMs": fact.at_ms, **fact.body} for fact in found]
    return JSONResponse({"pipeline": name, "kind": kind, "facts": bodies})


def _late(request: Request) -> Response:
    shape, asked = _shape(request), request.query_params
    rows = _sources(request).views.late_rows(
        shape.name,
        after=integer("after", asked.get("after", "0"), smallest=0),
        limit=integer("limit", asked.get("limit", str(ROWS_DEFAULT)), smallest=1, largest=ROWS_MAX),
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
        raise InvalidError("cannot search without words: give them as q, as in ?q=green+tea")
    return JSONResponse(await _read_rows(request, request.query_params.getlist("key")))


async def _subscribe(request: Request) -> Response:
    shape = await run_in_threadpool(_shape, request)
    token = request.headers.get("last-event-id", request.query_params.get("token"))
    await run_in_threadpool(resume_position, _sources(request).views, token)  # It says so if that is no token.
    return _event_stream(request.app.state.hub.subscribe(shape.name, token))


async def _status_stream(request: Request) -> Response:
    sources = _sources(request)
    return _event_stream(follow_status(lambda: read_status(sources), request.app.state.closing))


async def _changes(request: Request) -> Response:
    shape = await run_in_threadpool(_shape, request)
    views = _sources(request).views
    asked = request.headers.get("last-event-id", request.query_params.get("after"))
    if asked is None:
        after = await run_in_threadpool(views.position, shape.name)
    else:
        after = integer("after", asked, smallest=0)
    return _event_stream(follow_view(views, shape.name, after, request.app.state.closing))


# -- what a request asks for ---------------------------------------------------------------------------------


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
    views, asked = _sources(request).views, request.query_params
    await wait_until_seen(views, shape.name, asked, SystemClock())

    def read() -> dict[str, Any]:
        answer = views.ask(shape.name, question_of(shape, asked, key, views))
        return {
            "view": shape.name,
            "columns": describe_columns(shape),
            "rows": answer.rows,
            "position": answer.position,
            "token": answer.token,
            "next": answer.next,
        }

    return await run_in_threadpool(read)


def _key_segments(request: Request) -> list[str]:
    """The key's values, from the path as it was sent: decoded, a slash in a value would look like any."""
    segments: list[bytes] = request.scope["raw_path"].split(b"/")
    return [unquote(segment.decode("ascii")) for segment in segments[_KEY_SEGMENTS_FROM:]]


# -- answers -------------------------------------------------------------------------------------------------


def _event_stream(events: AsyncIterator[bytes]) -> Response:
    # X-Accel-Buffering keeps nginx from holding events back.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadwaterError)
    codes = (_STATUS_CODES[kind] for kind in type(error).__mro__ if kind in _STATUS_CODES)
    return _error(next(codes, 500), str(error), error.hint)


def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail.lower()}"
    return _error(error.status_code, message, f"{_ROOT}/openapi.json lists what there is", error.headers)


def _answer_unexpected(request: Request, error: Exception) -> Response:
    # The caller gets no inside view; whoever runs the app finds it in the log.
    _log.error("cannot answer %s %s", request.method, request.url.path, exc_info=error)
    return _error(500, "the server made a mistake; its log says more", None)


def _error(code: int, message: str, hint: str | None, headers: Any = None) -> Response:
    return JSONResponse({"error": {"message": message, "hint": hint}}, status_code=code, headers=headers)
