"""The console in a real browser, served by a real server."""

import dataclasses
import datetime as dt
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from headwater.clock import SystemClock
from headwater.console.pages import routes
from headwater.record import TopicPartition
from headwater.serve.api import app as api
from headwater.serve.api.app import ApiContext, create_app
from headwater.serve.live.group_lag import GroupLag, GroupLags
from headwater.serve.live.rates import TopicRates
from headwater.serve.server import HttpServer
from headwater.store.pipelines.facts import FactStore
from headwater.store.pipelines.generations import Generations
from headwater.store.shapes import ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore
from headwater.transmit.client.lag import GroupPosition

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NOON = dt.datetime(2026, 11, 15, 12, 0, tzinfo=dt.UTC)
INSTANT = pa.timestamp("us", tz="UTC")
TO = "\N{EN DASH}"
WINDOW = pa.struct([("start", INSTANT), ("end", INSTANT)])

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


class Shop:
    """An app with one topic, one pipeline and two views, served with its console."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.views = ViewStore(folder / "views.db")
        self.facts = FactStore(folder / "facts.db")
        self.offsets = {TopicPartition("orders", partition): (0, 400) for partition in range(3)}
        self.views.declare(
            ViewShape(
                name="revenue",
                key=("product", "window"),
                columns=(
                    Column("product", "string"),
                    Column("window", "struct<start:timestamp,end:timestamp>"),
                    Column("revenue", "double"),
                ),
            )
        )
        self.views.declare(ViewShape(name="stock", key=("item",), columns=(Column("item", "string"),)))
        self.batch = 0
        self.readers: list[GroupLag] = []

    def server(self, port: int = 0) -> HttpServer:
        topics = TopicRates(lambda: self.offsets, SystemClock())
        sources = ApiContext(
            app="shop", views=self.views, facts=self.facts, topics=topics, groups=GroupLags(self.read_groups)
        )
        return HttpServer(create_app(sources, extra_routes=routes()), "127.0.0.1", port)

    def read_groups(self) -> list[GroupLag]:
        return self.readers

    def sell(self, *rows: tuple[str, int, float], view: str = "revenue") -> None:
        """Commit one batch of rows: product, minute after noon, revenue."""
        starts = [NOON + dt.timedelta(minutes=minute) for _, minute, _ in rows]
        windows = [{"start": start, "end": start + dt.timedelta(minutes=1)} for start in starts]
        table = pa.table(
            {
                "product": [product for product, _, _ in rows],
                "window": pa.array(windows, WINDOW),
                "revenue": pa.array([revenue for _, _, revenue in rows], pa.float64()),
            }
        )
        self.views.commit_rows(view, table, run="run-1", batch=self.batch)
        self.batch += 1

    def report(self, **body: object) -> None:
        self.facts.add("revenue", body, at_ms=SystemClock().now_ms())


class Visit:
    """A browser page that may connect to this machine only, and collects errors."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        page.route("**/*", self._only_loopback)
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, path: str = "/") -> Page:
        self.page.goto(self.url + path)
        return self.page

    def _only_loopback(self, route: Route) -> None:
        if urlsplit(route.request.url).hostname == "127.0.0.1":
            route.continue_()
        else:
            self.errors.append(f"request to {route.request.url}")
            route.abort()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def visit(shop: Shop, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Visit]:
    """A page in a context of its own: tests share the browser, but no storage, cache or clipboard permission."""
    monkeypatch.setattr(api, "GROUPS_EVERY_S", 0.2)  # so that no test waits 5 s for the next sample
    with shop.server() as server:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        started = Visit(context.new_page(), server.url)
        yield started
        context.close()
    assert started.errors == []


def cells(page: Page) -> list[list[str]]:
    return [row.split("\t") for row in page.locator("table.rows tbody tr").all_inner_texts()]


def test_rows_appear_and_change_without_reload(shop, visit):
    shop.sell(("tea", 0, 3.5), ("coffee", 0, 1234.5), ("tea", 1, 2.0))
    page = visit.open("/views/revenue")
    rows = page.locator("table.rows tbody tr")
    expect(rows).to_have_count(3)
    # The newest window first, then by key.
    assert [(row[0], row[2]) for row in cells(page)] == [("tea", "2.00"), ("coffee", "1,234.50"), ("tea", "3.50")]
    expect(rows.nth(1)).to_contain_text(f"12:00 {TO} 12:01")

    page.evaluate("document.body.dataset.loaded = 'once'")
    shop.sell(("tea", 1, 8.25), ("milk", 2, 1.0))
    expect(rows.nth(1).locator("td").nth(2)).to_have_text("8.25")
    expect(rows.first).to_contain_text("milk")
    expect(page.locator("body")).to_have_attribute("data-loaded", "once")


def test_paused_page_does_not_change_until_resumed(shop, visit):
    shop.sell(("tea", 0, 3.5))
    page = visit.open("/views/revenue")
    cell = page.locator("table.rows tbody td").nth(2)
    expect(cell).to_have_text("3.50")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#link-state")).to_have_text("Paused")
    assert "pause=1" in page.url
    shop.sell(("tea", 0, 7.0))
    page.wait_for_timeout(1500)  # a page that is not paused would have shown the change by now
    expect(cell).to_have_text("3.50")
    page.get_by_role("button", name="Resume").click()
    expect(cell).to_have_text("7.00")


def test_page_opened_paused_shows_the_current_rows(shop, visit):
    shop.sell(("tea", 0, 3.5))
    page = visit.open("/views/revenue?pause=1")
    expect(page.locator("table.rows tbody td").nth(2)).to_have_text("3.50")
    expect(page.locator("#link-state")).to_have_text("Paused")


def test_filter_and_view_are_in_the_address(shop, visit):
    shop.sell(("tea", 0, 3.5), ("coffee", 0, 4.0))
    page = visit.open("/views/revenue?filter=COF")
    rows = page.locator("table.rows tbody tr")
    expect(rows).to_have_count(1)
    expect(page.locator(".summary")).to_have_text("1 of 2 rows match")
    page.get_by_role("searchbox").fill("tea 3.5")
    expect(rows).to_contain_text("tea")
    assert "filter=tea+3.5" in page.url
    page.get_by_role("tab", name="stock").click()
    expect(page.locator("#view")).to_contain_text("No rows yet")
    assert urlsplit(page.url)[2:] == ("/views/stock", "", "")


def test_large_view_shows_how_many_rows_are_left_out(shop, visit):
    shop.sell(*((f"product {n:04d}", 0, float(n)) for n in range(2500)))
    page = visit.open("/views/revenue")
    expect(page.locator("table.rows tbody tr")).to_have_count(200)
    expect(page.locator(".summary")).to_have_text("2,500 rows, 2,300 more not shown")
    page.get_by_role("button", name="revenue").click()
    expect(page.locator("table.rows tbody td").nth(2)).to_have_text("0.00")
    page.get_by_role("button", name="revenue").click()
    expect(page.locator("table.rows tbody td").nth(2)).to_have_text("2,499.00")


def test_health_line_describes_the_state_of_the_app(shop, visit):
    health = visit.page.locator("#health")
    shop.offsets = {TopicPartition("orders", 0): (0, 0)}
    page = visit.open()
    expect(health).to_have_text("Waiting for the first event")
    expect(page.locator("#topics")).to_contain_text("headwater topic produce orders")

    shop.offsets = {TopicPartition("orders", 0): (0, 50)}
    shop.report(state="running", batchId=1, numInputRows=50, processedRowsPerSecond=100.0, behindRecords=0)
    expect(health).to_contain_text("revenue is up to date, 0 records behind")

    shop.report(state="running", batchId=2, behindRecords=12_000)
    counting_down = re.compile("Catching up: revenue is 12,000 records behind, about (2 min 0|1 min 5[0-9]) s")
    expect(health).to_have_text(counting_down)
    shop.report(state="running", batchId=3, behindRecords=14_000)
    expect(health).to_have_text(
        "Falling behind: revenue is 14,000 records behind, records arrive faster than they are read"
    )

    shop.report(state="isolating", error="ValueError: no", isolating={"records": 7, "found": 2})
    expect(health).to_have_text("Pipeline revenue is isolating a poison row, 2 found: ValueError: no")

    shop.report(state="suspended", error="no such column: price\n  in revenue.py, line 3")
    expect(health).to_have_text("Pipeline revenue is suspended: no such column: price")
    expect(page.locator(".error")).to_contain_text("in revenue.py, line 3")


def test_group_about_to_lose_records_is_highlighted(shop, visit):
    page = visit.open()
    expect(page.locator("#health")).not_to_have_text("Connecting to the app")
    expect(page.locator("#groups-panel")).to_be_hidden()

    fine = GroupPosition(offset=400, end=400, lag_records=0, at_risk_records=0)
    late = GroupPosition(offset=100, end=400, lag_records=300, at_risk_records=250)
    partition = TopicPartition("orders", 0)
    shop.readers = [
        GroupLag(name="reports", kind="classic", state="Stable", positions={partition: fine}),
        GroupLag(name="slow", kind="consumer", state="Empty", positions={partition: late}),
    ]
    page = visit.open()  # opening the page does not trigger a sample
    rows = page.locator("table.groups tbody tr")
    expect(rows).to_have_text(["reportsStable00", "slowEmpty300250"], timeout=20_000)
    expect(rows.nth(1).locator(".warn")).to_have_text("250")
    expect(rows.nth(1)).to_have_attribute("title", "orders-0: at 100 of 400, 250 will be deleted soon")
    expect(page.locator("#health")).to_have_text(
        "Retention will soon delete 250 records of orders that group slow has not read"
    )
    expect(page.locator("#health")).to_have_attribute("data-tone", "warn")


def test_time_zone_can_be_switched(shop, visit):
    shop.sell(("tea", 0, 3.5))
    page = visit.page.context.browser.new_page(timezone_id="Asia/Tokyo")
    page.goto(f"{visit.url}/views/revenue")
    row = page.locator("table.rows tbody tr")
    expect(row).to_contain_text(f"12:00 {TO} 12:01")
    page.get_by_role("button", name="Local").click()
    expect(row).to_contain_text(f"21:00 {TO} 21:01")
    page.close()


def test_page_survives_a_server_that_restarts(shop, visit):
    shop.sell(("tea", 0, 3.5))
    page = visit.page
    link = page.locator("#link-state")
    with shop.server() as server:
        page.goto(f"{server.url}/views")
        expect(link).to_have_text("Live")
        expect(page.locator("table.rows tbody tr")).to_have_count(1)
    expect(link).to_have_text("Reconnecting")
    expect(page.locator("#health")).to_have_text("The app does not respond; showing its last known state")
    shop.sell(("milk", 0, 1.0))
    with shop.server(urlsplit(server.url).port or 0):
        expect(link).to_have_text("Live", timeout=20_000)
        expect(page.locator("table.rows tbody tr")).to_have_count(2, timeout=20_000)
        page.goto("about:blank")
    # The browser logs the refused connections; there must be no other error.
    visit.errors = [error for error in visit.errors if "ERR_CONNECTION_REFUSED" not in error]


def test_overview_links_to_each_view_with_its_number_of_rows(shop, visit):
    shop.sell(("tea", 0, 3.5), ("coffee", 0, 4.0))
    page = visit.open("/?zone=local")
    rows = page.locator("table.view-list tbody tr")
    expect(rows).to_have_count(2)
    assert rows.first.inner_text().split("\t")[:3] == ["revenue", "product, window", "2"]
    page.evaluate("document.body.dataset.loaded = 'once'")
    page.get_by_role("link", name="revenue").click()
    expect(page.locator("table.rows tbody tr")).to_have_count(2)
    assert urlsplit(page.url)[2:4] == ("/views/revenue", "zone=local")
    expect(page.locator("body")).to_have_attribute("data-loaded", "once")
    expect(page).to_have_title(re.compile("^revenue .* shop "))


def test_arrow_keys_move_between_tabs(shop, visit):
    page = visit.open("/views/revenue")
    page.get_by_role("tab", name="revenue").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="stock")).to_be_focused()
    expect(page.get_by_role("tab", name="stock")).to_have_attribute("aria-selected", "true")
    assert urlsplit(page.url).path == "/views/stock"


def test_commands_for_a_view_can_be_copied(shop, visit):
    page = visit.open("/views/revenue")
    page.get_by_role("button", name="CLI").click()
    expect(page.locator("#toast")).to_contain_text("headwater view rows revenue")
    page.get_by_role("button", name="URL").click()
    expect(page.locator("#toast")).to_contain_text(f"curl '{visit.url}/api/v1/views/revenue/rows?order_by=window")


def test_deep_link_survives_a_reload(shop, visit):
    shop.sell(("tea", 0, 3.5), ("coffee", 0, 4.0))
    page = visit.open("/views/revenue?filter=tea&sort=-revenue&zone=local")
    for _ in range(2):
        expect(page.locator("table.rows tbody tr")).to_have_count(1)
        expect(page.get_by_role("tab", name="revenue")).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("searchbox")).to_have_value("tea")
        expect(page.locator("th[aria-sort=descending]")).to_have_text("revenue")
        expect(page.locator("#zone-local")).to_have_attribute("aria-pressed", "true")
        page.reload()


def test_back_and_forward_move_between_pages_and_views(shop, visit):
    shop.sell(("tea", 0, 3.5))
    page = visit.open()
    navigation = page.get_by_role("navigation")
    navigation.get_by_role("link", name="Views").click()
    page.get_by_role("searchbox").fill("tea")
    page.get_by_role("tab", name="stock").click()
    expect(page.locator("#view")).to_contain_text("No rows yet")
    page.get_by_role("button", name="Local").click()

    page.go_back()
    expect(page.locator("table.rows tbody tr")).to_have_count(1)
    expect(page.get_by_role("searchbox")).to_have_value("tea")
    assert urlsplit(page.url)[2:4] == ("/views", "filter=tea&zone=local")  # the zone chosen last is kept
    page.go_back()
    expect(page.locator("#topics")).to_contain_text("orders")
    expect(page.locator("#view")).to_have_count(0)
    expect(navigation.locator("[aria-current=page]")).to_have_text("Overview")
    page.go_forward()
    expect(page.locator("table.rows tbody tr")).to_have_count(1)
    shop.sell(("milk", 0, 1.0), ("tea", 1, 1.0))  # the view is subscribed to again
    expect(page.locator("table.rows tbody tr")).to_have_count(2)


def test_old_link_leads_to_the_view(shop, visit):
    shop.sell(("tea", 0, 3.5), ("coffee", 0, 4.0))
    page = visit.open("/?view=revenue&filter=tea")
    expect(page.locator("table.rows tbody tr")).to_have_count(1)
    assert urlsplit(page.url)[2:4] == ("/views/revenue", "filter=tea")


def test_unknown_view_is_reported_and_appears_once_it_exists(shop, visit):
    page = visit.open("/views/sales")
    expect(page.locator("#view")).to_have_text("There is no view sales. Choose one of those above.")
    shop.views.declare(ViewShape(name="sales", key=("item",), columns=(Column("item", "string"),)))
    expect(page.locator("#view")).to_contain_text("No rows yet")


def test_unknown_address_is_not_found(visit):
    response = visit.page.goto(f"{visit.url}/nope")
    assert response is not None
    assert response.status == 404
    visit.errors.clear()  # the browser logs the 404


def test_health_line_links_to_the_pipeline_on_the_overview(shop, visit):
    shop.report(state="suspended", error="no such column: price")
    page = visit.open("/views/revenue")
    page.get_by_role("link", name="Pipeline revenue is suspended").click()
    expect(page.locator("article:target h3")).to_have_text("revenue")
    assert urlsplit(page.url)[2:] == ("/", "", "pipeline-revenue")


def test_rebuilt_view_is_read_again(shop, visit):
    shop.sell(("tea", 0, 3.5), ("coffee", 0, 4.0))
    page = visit.open("/views/revenue")
    rows = page.locator("table.rows tbody tr")
    expect(rows).to_have_count(2)
    generations = Generations(shop.views)
    rebuild = generations.request_rebuild("revenue")
    shop.views.declare(dataclasses.replace(shop.views.shape("revenue"), name=rebuild.name))
    shop.sell(("milk", 0, 1.0), view=rebuild.name)
    generations.swap(rebuild)
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("milk")
    shop.sell(("milk", 1, 2.0))
    expect(rows).to_have_count(2)


@pytest.mark.parametrize("width", [360, 400, 820, 1600])
def test_page_fits_its_window(shop, visit, width):
    shop.sell(("tea with a rather long name, as products have", 0, 3.5))
    shop.report(state="suspended", error="x" * 300)
    behind = {
        TopicPartition("orders", 0): GroupPosition(offset=0, end=10**9, lag_records=10**9, at_risk_records=10**9)
    }
    shop.readers = [GroupLag(name="g" * 200, kind="classic", state="PreparingRebalance", positions=behind)]
    visit.page.set_viewport_size({"width": width, "height": 800})
    page = visit.open()
    expect(page.locator("table.view-list tbody tr")).to_have_count(2)
    expect(page.locator("table.groups tbody tr")).to_have_count(1, timeout=20_000)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.get_by_role("link", name="Views", exact=True).click()
    expect(page.locator("table.rows tbody tr")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") == width
