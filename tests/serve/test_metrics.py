"""The metrics of the log and the views over HTTP."""

import urllib.request
from typing import Any

from headwater.serve.api.app import create_app
from headwater.serve.metrics import metrics_route, view_metrics
from headwater.serve.server import HttpServer
from headwater.transmit.broker.embedded import Broker


def test_metrics_of_the_embedded_log_and_the_views(shop: Any) -> None:
    with Broker() as broker:
        app = create_app(shop.sources, extra_routes=[metrics_route([broker.metrics, view_metrics(shop.views)])])
        with (
            HttpServer(app, "127.0.0.1", 0) as http,
            urllib.request.urlopen(f"{http.url.rstrip('/')}/metrics", timeout=20) as page,
        ):
            assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = page.read()
    assert b"\nkafka_brokers 1\n" in text
    assert b'\nheadwater_view_late_rows_total{view="revenue"} 0\n' in text
