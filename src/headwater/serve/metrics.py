"""Prometheus metrics of the log, the views and the pipelines, on the app's own HTTP server."""

from collections.abc import Callable, Sequence
from typing import Any

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


_DROPPED = {
    "headwater_pipeline_late_rows_total": ("lateRows", "Rows that came after their window had closed."),
    "headwater_pipeline_ignored_rows_total": (
        "ignoredRows",
        "Rows without effect: older changes, null keys of joins.",
    ),
    "headwater_pipeline_excluded_records_total": ("leftOutRecords", "Records on which the function failed."),
    "headwater_pipeline_dead_letters_total": ("deadLetters", "Records that did not match the topic's schema."),
}


def pipeline_metrics(read_pipelines: Callable[[], list[dict[str, Any]]]) -> Render:
    """Render how many rows and records of each pipeline are not in its result, by the reason."""

    def render() -> str:
        pipelines = read_pipelines()
        lines: list[str] = []
        for metric, (name, meaning) in _DROPPED.items():
            lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} counter"]
            lines += [f'{metric}{{pipeline="{p["name"]}"}} {p[name]}' for p in pipelines if p[name] is not None]
        return "\n".join(lines) + "\n"

    return render
