"""The results of a run in words: the rows of each view and sink, and what is not in them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headwater.app import App

if TYPE_CHECKING:
    from headwater.spark.pipeline.pipeline import Pipeline
    from headwater.store.views import ViewStore


def summarize(app: App, pipeline: "Pipeline", store: "ViewStore") -> Iterator[str]:
    """Yield a line for each view and each sink, and for what is not in their results, with its place."""
    for view in app.views:
        yield f"view {view.name}: {_counted(store.count(view.name), 'row')}"
    read = pipeline.rows_read()
    for sink in app.sink_queries:
        yield f"sink {sink.name}: {_counted(read.get(sink.name, 0), 'record')} read"
    left_out = pipeline.left_out()
    for query in app.queries:
        name = query.name
        if count := left_out.get(name):
            letters = " and ".join(f"`headwater deadletter list {topic.dead_letters}`" for topic in query.topics)
            yield f"{name}: {_counted(count, 'record')} left out because it fails on them; see {letters}"
        if count := store.late_count(name):
            yield f"{name}: {_counted(count, 'late row')}; see `headwater late rows {name}`"
    for letters, count in store.counters().items():
        records = _counted(count, "record")
        yield f"{letters}: {records} not matching the schema; see `headwater deadletter list {letters}`"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
