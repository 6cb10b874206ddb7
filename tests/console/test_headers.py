"""The addresses of the console, and the headers of its responses."""

import http.client
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headwater.console import pages
from headwater.console.pages import PAGE_ADDRESSES, routes
from headwater.serve.api.app import ApiContext, create_app
from headwater.serve.server import HttpServer
from headwater.store.pipelines.facts import FactStore
from headwater.store.views import ViewStore

STATIC = Path(pages.__file__).parent / "static"


def get(url: str, path: str, **headers: str) -> http.client.HTTPResponse:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


@pytest.fixture
def url(tmp_path: Path):
    views, facts = ViewStore(tmp_path / "views.db"), FactStore(tmp_path / "facts.db")
    sources = ApiContext(app="shop", views=views, facts=facts, topics=None)
    with HttpServer(create_app(sources, extra_routes=routes()), "127.0.0.1", 0) as server:
        yield server.url


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/views", "text/html"),
        ("/views/revenue", "text/html"),
        ("/assets/app.js", "text/javascript"),
        ("/assets/pages/overview.js", "text/javascript"),
        ("/assets/console.css", "text/css"),
    ],
)
def test_pages_load_nothing_from_other_hosts(url, path, kind):
    response = get(url, path)
    assert (response.status, response.headers.get_content_type()) == (200, kind)
    assert response.headers["content-security-policy"].startswith("default-src 'self';")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-cache"


def test_unchanged_asset_is_not_sent_again(url):
    tag = get(url, "/assets/app.js").headers["etag"]
    assert get(url, "/assets/app.js", **{"If-None-Match": tag}).status == 304


@pytest.mark.parametrize("path", ["/assets/", "/assets/nope.js", "/assets/..%2fpages.py", "/assets/../pages.py"])
def test_only_static_files_are_served_as_assets(url, path):
    assert get(url, path).status == 404


@pytest.mark.parametrize("path", ["/nope", "/views/revenue/rows", "/index.html", "/view", "/views/a%2Fb"])
def test_unknown_addresses_are_not_found(url, path):
    assert get(url, path).status == 404


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/?view=revenue", "/views/revenue"),
        ("/?view=revenue&filter=green+tea&sort=-revenue&zone=local&pause=1",
         "/views/revenue?filter=green+tea&sort=-revenue&zone=local&pause=1"),
        ("/?view=a%2Fb%3F", "/views/a%2Fb%3F"),
        ("/?view=//example.com/", "/views/%2F%2Fexample.com%2F"),
        ("/?filter=tea", "/views?filter=tea"),
    ],
)  # fmt: skip
def test_links_to_a_view_from_before_there_were_pages_redirect(url, old, new):
    response = get(url, old)
    assert (response.status, response.headers["location"]) == (307, new)


@pytest.mark.parametrize("path", ["/", "/?zone=local", "/?pause=1", "/views?view=revenue"])
def test_current_addresses_do_not_redirect(url, path):
    assert get(url, path).status == 200


def test_every_page_of_the_registry_has_an_address():
    modules = sorted((STATIC / "pages").glob("*.js"))
    paths = {
        found
        for module in modules
        for found in re.findall(r"export const page = .*path: \"([^\"]+)\"", module.read_text())
    }
    assert len(paths) == len(modules)
    assert paths <= set(PAGE_ADDRESSES)
    registry = (STATIC / "app.js").read_text()
    assert all(f'"./pages/{module.name}"' in registry for module in modules)
