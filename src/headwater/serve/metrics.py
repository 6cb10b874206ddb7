"""Prometheus metrics of the log and the views, on the app's own HTTP server."""

from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from headwater.store.views import ViewStore

CONTENT_TYPE = "text/plain; version=0.0.4"

Render = Callable[[], str]


def metrics_route(renders: Sequence[Render]) -> Route:
    """Return the route GET /metrics, which joins the output of all `renders`; they run in a worker thread."""

    def metrics(request: Request) -> PlainTextResponse:
        return PlainTextResponse("".join(render() for render in renders), media_type=CONTENT_TYPE)

    return Route("/metrics", metrics)


def view_metrics(views: ViewStore) -> Render:
    """Render the number of rows and of late rows of each view; the latter is a counter, so alerts miss none."""

    def render() -> str:
        late = views.late_counts()
        shapes = views.views()
        rows = [f'headwater_view_rows{{view="{s.name}"}} {views.count(s.name)}' for s in shapes]
        total = [
            f'headwater_view_late_rows_total{{view="{s.name}"}} {late.get(s.name, (0, 0))[0]}' for s in shapes
        ]
        lines = [
            "# HELP headwater_view_rows Rows of a view.",
            "# TYPE headwater_view_rows gauge",
            *rows,
            "# HELP headwater_view_late_rows_total Rows that came after their window had closed.",
            "# TYPE headwater_view_late_rows_total counter",
            *total,
        ]
        return "\n".join(lines) + "\n"

    return render
