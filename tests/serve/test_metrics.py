"""The metrics of the log and the views over HTTP."""

import urllib.request
from typing import Any

from headwater.serve.api.app import create_app
from headwater.serve.api.status import read_pipelines
from headwater.serve.metrics import metrics_route, pipeline_metrics, view_metrics
from headwater.serve.server import HttpServer
from headwater.transmit.broker.embedded import Broker


def test_metrics_of_the_embedded_log_and_the_views(shop: Any) -> None:
    with Broker() as broker:
        pipelines = pipeline_metrics(lambda: read_pipelines(shop.sources))
        shop.facts.add("sales", {"state": "running", "lateRows": 3, "leftOutRecords": 2}, at_ms=1)
        metrics = metrics_route([broker.metrics, view_metrics(shop.views), pipelines])
        app = create_app(shop.sources, extra_routes=[metrics])
        with (
            HttpServer(app, "127.0.0.1", 0) as http,
            urllib.request.urlopen(f"{http.url.rstrip('/')}/metrics", timeout=20) as page,
        ):
            assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = page.read()
    assert b"\nkafka_brokers 1\n" in text
    assert b'\nheadwater_view_late_rows_total{view="revenue"} 0\n' in text
    assert b'\nheadwater_pipeline_late_rows_total{pipeline="sales"} 3\n' in text
    assert b'\nheadwater_pipeline_excluded_records_total{pipeline="sales"} 2\n' in text
