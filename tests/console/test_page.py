"""The console in a real browser, over a real server: what a reader sees when a view changes."""

import datetime as dt
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from playwright.sync_api import Page, Route, expect, sync_playwright

from headwater.clock import SystemClock
from headwater.console.pages import routes
from headwater.record import TopicPartition
from headwater.serve.api.app import ApiContext, create_app
from headwater.serve.live.group_lag import GroupLag, GroupLags
from headwater.serve.live.rates import TopicRates
from headwater.serve.server import HttpServer
from headwater.store.columns import Column
from headwater.store.facts import FactStore
from headwater.store.shapes import ViewShape
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

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


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

    def sell(self, *rows: tuple[str, int, float]) -> None:
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
        self.views.commit_rows("revenue", table, run="run-1", batch=self.batch)
        self.batch += 1

    def tell(self, **body: object) -> None:
        self.facts.add("revenue", body, at_ms=SystemClock().now_ms())


class Visit:
    """A browser page that may talk to this machine only, and notes what goes wrong."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.troubles: list[str] = []
        page.route("**/*", self._only_loopback)
        page.on("console", lambda message: self.troubles.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))

    def open(self, path: str = "/") -> Page:
        self.page.goto(self.url + path)
        return self.page

    def _only_loopback(self, route: Route) -> None:
        if urlsplit(route.request.url).hostname == "127.0.0.1":
            route.continue_()
        else:
            self.troubles.append(f"asked for {route.request.url}")
            route.abort()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def visit(shop: Shop) -> Iterator[Visit]:
    with shop.server() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        started = Visit(browser.new_page(viewport={"width": 1280, "height": 800}), server.url)
        yield started
        browser.close()
    assert started.troubles == []


def cells(page: Page) -> list[list[str]]:
    return [row.split("\t") for row in page.locator("table.rows tbody tr").all_inner_texts()]


def test_rows_appear_and_change_without_reload(shop, visit):
    shop.sell(("tea", 0, 3.5), ("coffee", 0, 1234.5), ("tea", 1, 2.0))
    page = visit.open("/?view=revenue")
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


def test_paused_page_stands_still_until_resumed(shop, visit):
    shop.sell(("tea", 0, 3.5))
    page = visit.open("/?view=revenue")
    cell = page.locator("table.rows tbody td").nth(2)
    expect(cell).to_have_text("3.50")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#link-state")).to_have_text("Paused")
    assert "pause=1" in page.url
    shop.sell(("tea", 0, 7.0))
    page.wait_for_timeout(1500)  # a page that goes on would have shown it by now
    expect(cell).to_have_text("3.50")
    page.get_by_role("button", name="Resume").click()
    expect(cell).to_have_text("7.00")


def test_page_opened_paused_shows_how_things_are(shop, visit):
    shop.sell(("tea", 0, 3.5))
    page = visit.open("/?view=revenue&pause=1")
    expect(page.locator("table.rows tbody td").nth(2)).to_have_text("3.50")
    expect(page.locator("#link-state")).to_have_text("Paused")


def test_filter_and_view_are_in_the_address(shop, visit):
    shop.sell(("tea", 0, 3.5), ("coffee", 0, 4.0))
    page = visit.open("/?view=revenue&filter=COF")
    rows = page.locator("table.rows tbody tr")
    expect(rows).to_have_count(1)
    expect(page.locator(".summary")).to_have_text("1 of 2 rows match")
    page.get_by_role("searchbox").fill("tea 3.5")
    expect(rows).to_contain_text("tea")
    assert "filter=tea+3.5" in page.url
    page.get_by_role("tab", name="stock").click()
    expect(page.locator("#view")).to_contain_text("No rows yet")
    assert page.url.endswith("/?view=stock")


def test_large_view_says_what_is_not_shown(shop, visit):
    shop.sell(*((f"product {n:04d}", 0, float(n)) for n in range(2500)))
    page = visit.open("/?view=revenue")
    expect(page.locator("table.rows tbody tr")).to_have_count(200)
    expect(page.locator(".summary")).to_have_text("2,500 rows, 2,300 more not shown")
    page.get_by_role("button", name="revenue").click()
    expect(page.locator("table.rows tbody td").nth(2)).to_have_text("0.00")
    page.get_by_role("button", name="revenue").click()
    expect(page.locator("table.rows tbody td").nth(2)).to_have_text("2,499.00")


def test_health_is_said_in_words(shop, visit):
    health = visit.page.locator("#health")
    shop.offsets = {TopicPartition("orders", 0): (0, 0)}
    page = visit.open()
    expect(health).to_have_text("Waiting for the first event")
    expect(page.locator("#topics")).to_contain_text("headwater topic produce orders")

    shop.offsets = {TopicPartition("orders", 0): (0, 50)}
    shop.tell(state="running", batchId=1, numInputRows=50, processedRowsPerSecond=100.0, behindRecords=0)
    expect(health).to_contain_text("revenue is up to date, 0 behind")

    shop.tell(state="running", batchId=2, behindRecords=12_000)
    counting_down = re.compile("Catching up: revenue is 12,000 records behind, about (2 min 0|1 min 5[0-9]) s")
    expect(health).to_have_text(counting_down)
    shop.tell(state="running", batchId=3, behindRecords=14_000)
    expect(health).to_have_text("Falling behind: revenue is 14,000 records behind, more come than are read")

    shop.tell(state="isolating", error="ValueError: no", isolating={"records": 7, "found": 2})
    expect(health).to_have_text("Pipeline revenue is isolating a poison row, 2 found: ValueError: no")

    shop.tell(state="failed", error="no such column: price\n  in revenue.py, line 3")
    expect(health).to_have_text("Pipeline revenue failed: no such column: price")
    expect(page.locator(".error")).to_contain_text("in revenue.py, line 3")


def test_a_group_that_is_about_to_lose_records_is_pointed_out(shop, visit):
    page = visit.open()
    expect(page.locator("#health")).not_to_have_text("Connecting to the app")
    expect(page.locator("#groups-panel")).to_be_hidden()

    fine = GroupPosition(offset=400, end=400, lag_records=0, at_risk_records=0)
    late = GroupPosition(offset=100, end=400, lag_records=300, at_risk_records=250)
    place = TopicPartition("orders", 0)
    shop.readers = [
        GroupLag(name="reports", kind="classic", state="Stable", positions={place: fine}),
        GroupLag(name="slow", kind="consumer", state="Empty", positions={place: late}),
    ]
    page = visit.open()  # the groups are asked for now and then; a new page does not bring it forward
    rows = page.locator("table.groups tbody tr")
    expect(rows).to_have_text(["reportsStable00", "slowEmpty300250"], timeout=20_000)
    expect(rows.nth(1).locator(".warn")).to_have_text("250")
    expect(rows.nth(1)).to_have_attribute("title", "orders-0: at 100 of 400, 250 will be deleted soon")
    expect(page.locator("#health")).to_have_text(
        "Retention will soon delete 250 records of orders that group slow has not read"
    )
    expect(page.locator("#health")).to_have_attribute("data-tone", "warn")


def test_time_zone_is_the_readers_choice(shop, visit):
    shop.sell(("tea", 0, 3.5))
    page = visit.page.context.browser.new_page(timezone_id="Asia/Tokyo")
    page.goto(f"{visit.url}/?view=revenue")
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
        page.goto(server.url)
        expect(link).to_have_text("Live")
        expect(page.locator("table.rows tbody tr")).to_have_count(1)
    expect(link).to_have_text("Reconnecting")
    expect(page.locator("#health")).to_have_text("The app does not answer; this is how it was last")
    shop.sell(("milk", 0, 1.0))
    with shop.server(urlsplit(server.url).port or 0):
        expect(link).to_have_text("Live", timeout=20_000)
        expect(page.locator("table.rows tbody tr")).to_have_count(2, timeout=20_000)
        page.goto("about:blank")
    # The browser itself reports that nobody answered; nothing else may be wrong.
    visit.troubles = [trouble for trouble in visit.troubles if "ERR_CONNECTION_REFUSED" not in trouble]


@pytest.mark.parametrize("width", [360, 820, 1600])
def test_page_fits_its_window(shop, visit, width):
    shop.sell(("tea with a rather long name, as products have", 0, 3.5))
    shop.tell(state="failed", error="x" * 300)
    behind = {
        TopicPartition("orders", 0): GroupPosition(offset=0, end=10**9, lag_records=10**9, at_risk_records=10**9)
    }
    shop.readers = [GroupLag(name="g" * 200, kind="classic", state="PreparingRebalance", positions=behind)]
    visit.page.set_viewport_size({"width": width, "height": 800})
    page = visit.open()
    expect(page.locator("table.rows tbody tr")).to_have_count(1)
    expect(page.locator("table.groups tbody tr")).to_have_count(1, timeout=20_000)
    assert page.evaluate("document.documentElement.scrollWidth") == width
