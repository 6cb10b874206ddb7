"""Run an app's pipeline over the records that are in the log, for tests."""

from pathlib import Path
from typing import Any

from headwater.app import App
from headwater.clock import SystemClock
from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
from headwater.spark.pipeline.watch import Announce
from headwater.store.pipelines.facts import FactStore
from headwater.store.views import ViewStore


def run_once(
    app: App, spark: Any, servers: str, data: Path, store: ViewStore, announce: Announce = lambda _: None
) -> Pipeline:
    """Process the records in the log, like `headwater run --once`, with facts in `data`; return the pipeline."""
    settings = PipelineSettings(bootstrap_servers=servers, data=data, once=True)
    pipeline = Pipeline(app, spark, store, FactStore(data / "facts.db"), settings, SystemClock(), announce)
    run_to_end(pipeline)
    return pipeline


def run_to_end(pipeline: Pipeline) -> None:
    """Start a pipeline, wait until its queries end, and stop it."""
    try:
        pipeline.start()
        pipeline.run()
    finally:
        pipeline.stop()
