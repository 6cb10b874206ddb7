"""What the console's files are sent with."""

import http.client
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headwater.console.pages import routes
from headwater.serve.api.app import ApiContext, create_app
from headwater.serve.server import HttpServer
from headwater.store.facts import FactStore
from headwater.store.views import ViewStore


def get(url: str, path: str, **headers: str) -> http.client.HTTPResponse:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


@pytest.fixture
def url(tmp_path: Path):
    views, facts = ViewStore(tmp_path / "views.db"), FactStore(tmp_path / "facts.db")
    sources = ApiContext(app="shop", views=views, facts=facts, topics=None)
    with HttpServer(create_app(sources, extra_routes=routes()), "127.0.0.1", 0) as server:
        yield server.url


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/assets/console.js", "text/javascript"), ("/assets/console.css", "text/css")],
)
def test_files_may_load_nothing_from_elsewhere(url, path, kind):
    answer = get(url, path)
    assert (answer.status, answer.headers.get_content_type()) == (200, kind)
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"


def test_unchanged_asset_is_not_sent_again(url):
    tag = get(url, "/assets/console.js").headers["etag"]
    assert get(url, "/assets/console.js", **{"If-None-Match": tag}).status == 304


@pytest.mark.parametrize("path", ["/assets/", "/assets/nope.js", "/assets/..%2fpages.py", "/assets/../pages.py"])
def test_nothing_but_the_assets_is_served(url, path):
    assert get(url, path).status == 404
