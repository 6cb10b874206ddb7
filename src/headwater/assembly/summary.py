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
        yield f"view {view.name}: {store.count(view.name)} rows"
    read = pipeline.rows_read()
    for sink in app.sink_queries:
        yield f"sink {sink.name}: {read.get(sink.name, 0)} records read"
    left_out = pipeline.left_out()
    for query in app.queries:
        name = query.name
        if count := left_out.get(name):
            letters = " and ".join(f"`headwater deadletter list {topic.dead_letters}`" for topic in query.topics)
            yield f"{name}: {_records(count)} left out because it fails on them; see {letters}"
        if count := store.late_count(name):
            yield f"{name}: {count} late row{'s' if count > 1 else ''}; see `headwater late rows {name}`"
    for letters, count in store.counters().items():
        yield f"{letters}: {_records(count)} not matching the schema; see `headwater deadletter list {letters}`"


def _records(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"
