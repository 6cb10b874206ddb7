"""The app that `./dev torture app` kills: its program, its events, and its outputs computed in plain Python."""

import inspect
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

ORDERS, CUSTOMERS = "orders", "customers"
PARTITIONS = 2
DELAY_S = 60
END = 10**7
"""Event time, in seconds, of the last orders: one in each partition closes every window before it."""
THE_END = "the end"
"""Product of the last orders. Their own windows never close, so they are not compared."""
BROKEN_FROM = 1_000_000
"""The failing view fails on every order whose id is at least this."""
FAILING = "totals"

HEAD = """
from pathlib import Path

import headwater as hw
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

app = hw.App("shop")
orders = app.topic(
    "orders",
    schema="id bigint, product string, customer bigint, amount bigint, at timestamp",
    event_time="at",
    delay="{delay} seconds",
    partitions={partitions},
)
customers = app.topic("customers", schema="id bigint, city string, version bigint", partitions={partitions})


@app.view(orders, key="id")
def picked(orders):
    return orders.where("amount % 7 != 0").select("id", "product", "amount")


@app.view(orders, key=["product", "start"])
def minutes(orders):
    windows = hw.windowed(
        what={{"n": hw.count(), "amount": hw.sum("amount")}},
        where=hw.Tumbling("1 minute"),
        by=["product"],
        {minutes}
    )
    rows = orders.transform(windows)
    change = [name for name in rows.columns if name == "_change"]
    return rows.selectExpr("product", "unix_seconds(window.start) as start", "n", "amount", *change)


@app.view(orders, key=["product", "start"])
def hops(orders):
    windows = hw.windowed(
        what={{"n": hw.count(), "amount": hw.sum("amount")}},
        where=hw.Hopping("2 minutes", "1 minute"),
        when=hw.AfterWatermark(early=hw.AfterCount(2)),
        how=hw.RETRACTING,
        by=["product"],
    )
    return orders.transform(windows).selectExpr(
        "product", "unix_seconds(window.start) as start", "n", "amount", "_change"
    )


@app.view(orders, key=["product", "place"])
def best(orders):
    rows = orders.select("product", "id", "amount")
    return hw.top(rows, 3, order=["amount desc", "id"], by="product", rank="place")


@app.view(orders, customers, key="id")
def placed(orders, customers):
    known = hw.table(customers.selectExpr("id as customer", "city", "version"), key="customer", position="version")
    return hw.join(orders.select("id", "product", "customer"), known, on="customer")

"""
TOTALS = """
@app.view(orders, key="customer")
def totals(orders):
    rows = hw.deduplicate(orders.select("id", "customer", "amount"), key="id")
    return hw.aggregate(rows, what={"n": hw.count(), "amount": hw.sum("amount")}, by="customer")

"""
FAILING_TOTALS = """
@F.udf(LongType())
def checked(id, amount):
    if id >= {limit} and not Path({flag!r}).exists():
        raise ValueError("unknown kind of order")
    return amount


@app.view(orders, key="customer")
def totals(orders):
    rows = orders.select("id", "customer", checked("id", "amount").alias("amount"))
    rows = hw.deduplicate(rows, key="id")
    return hw.aggregate(rows, what={{"n": hw.count(), "amount": hw.sum("amount")}}, by="customer")

"""
BANDS = """
@app.view(totals, key="band")
def bands(totals):
    rows = totals.withColumn("band", F.expr("amount % 5"))
    return hw.aggregate(rows, what={"customers": hw.count(), "n": hw.sum("n")}, by="band")

"""
SINKS = """
@app.sink(orders, to=hw.Postgres({dsn!r}, table="halves"), key=["product", "start"])
def halves(orders):
    windows = hw.windowed(
        what={{"n": hw.count(), "amount": hw.sum("amount")}},
        where=hw.Tumbling("30 seconds"),
        when=hw.AfterWatermark(early=hw.AfterCount(3)),
        how=hw.RETRACTING,
        by=["product"],
    )
    return orders.transform(windows).selectExpr(
        "product", "unix_seconds(window.start) as start", "n", "amount", "_change"
    )


@app.sink(orders, to=hw.Parquet({parquet!r}))
def archive(orders):
    return orders.select("id", "product", "amount")
"""
MINUTES = (
    "",
    "how=hw.ACCUMULATING, when=hw.AfterWatermark(early=hw.AfterCount(3))",
    'how=hw.RETRACTING, lateness="1 hour"',
)
"""Arguments of the tumbling windows, which all give the same rows in the end; without any, Spark aggregates."""

COLUMNS = {
    "picked": ("id", "product", "amount"),
    "minutes": ("product", "start", "n", "amount"),
    "hops": ("product", "start", "n", "amount"),
    "best": ("product", "place", "id", "amount"),
    "placed": ("id", "product", "customer", "city"),
    "totals": ("customer", "n", "amount"),
    "bands": ("band", "customers", "n"),
    "halves": ("product", "start", "n", "amount"),
    "archive": ("id", "product", "amount"),
}
VIEWS = ("picked", "minutes", "hops", "best", "placed", "totals")
VIEW_OVER_VIEW = "bands"
WINDOWED = ("minutes", "hops", "halves")
READS = {view: (ORDERS, CUSTOMERS) if view == "placed" else (ORDERS,) for view in VIEWS}
DEAD_LETTERS = "dead letters"

Rows = Counter[Any]
"""Rows as tuples of their columns (`COLUMNS`), each with the number of times it is there."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order; `at` is its event time in seconds."""

    id: int
    product: str
    customer: int
    amount: int
    at: int

    topic = ORDERS

    @property
    def value(self) -> bytes:
        when = datetime.fromtimestamp(self.at, UTC).isoformat()
        fields = {"id": self.id, "product": self.product, "customer": self.customer, "amount": self.amount}
        return json.dumps({**fields, "at": when}).encode()


@dataclass(frozen=True, slots=True)
class Customer:
    """A version of a customer; the one with the highest version is valid."""

    id: int
    city: str
    version: int

    topic = CUSTOMERS

    @property
    def value(self) -> bytes:
        return json.dumps({"id": self.id, "city": self.city, "version": self.version}).encode()


@dataclass(frozen=True, slots=True)
class Malformed:
    """A record of the orders that does not match their schema."""

    value: bytes

    topic = ORDERS


Event = Order | Customer | Malformed


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """The outputs that a run has, and the program that computes them."""

    minutes: str = ""
    over_view: bool = False
    sinks: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the sinks: `dsn` and `parquet`; empty for a run without sinks."""
    fails_unless: str | None = None
    """File without which a view fails on orders from `BROKEN_FROM` on; None if it never fails."""

    @property
    def views(self) -> tuple[str, ...]:
        return (*VIEWS, VIEW_OVER_VIEW) if self.over_view else VIEWS

    @property
    def program(self) -> str:
        failing = FAILING_TOTALS.format(limit=BROKEN_FROM, flag=self.fails_unless)
        parts = [
            HEAD.format(delay=DELAY_S, partitions=PARTITIONS, minutes=self.minutes),
            TOTALS if self.fails_unless is None else failing,
            BANDS if self.over_view else "",
            SINKS.format(**self.sinks) if self.sinks else "",
        ]
        return "".join(parts)


def supports_views_over_views() -> bool:
    """Return whether `App.view` accepts views: today its inputs are declared as topics."""
    from headwater.app import App

    parameters = inspect.signature(App.view).parameters.values()
    inputs = next(p for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL)
    declared = inputs.annotation if isinstance(inputs.annotation, str) else inputs.annotation.__name__
    return str(declared) != "Topic"


def expected_outputs(events: Iterable[Event], names: Iterable[str] = (*COLUMNS, DEAD_LETTERS)) -> dict[str, Rows]:
    """Return the rows of these outputs after these events and the end of event time."""
    events = list(events)
    orders = [event for event in events if isinstance(event, Order)]
    closed = [order for order in orders if order.product != THE_END]
    computed: dict[str, Callable[[], Rows]] = {
        "picked": lambda: Counter({(o.id, o.product, o.amount) for o in orders if o.amount % 7 != 0}),
        "minutes": lambda: _windows(closed, 60, 60),
        "hops": lambda: _windows(closed, 120, 60),
        "best": lambda: _best(orders),
        "placed": lambda: _placed(orders, [event for event in events if isinstance(event, Customer)]),
        "totals": lambda: _totals(orders),
        "bands": lambda: _bands(_totals(orders)),
        "halves": lambda: _windows(closed, 30, 30),
        "archive": lambda: Counter((o.id, o.product, o.amount) for o in orders),
        DEAD_LETTERS: lambda: Counter(event.value for event in events if isinstance(event, Malformed)),
    }
    return {name: computed[name]() for name in names}


def differences(found: Mapping[str, Rows], expected: Mapping[str, Rows]) -> list[str]:
    """Return a line for each output whose rows differ: rows that are missing, and rows that are too many."""
    lines = []
    for name, rows in found.items():
        lost, more = expected[name] - rows, rows - expected[name]
        if lost or more:
            examples = f"such as {_some(lost)}; {more.total()} too many, such as {_some(more)}"
            lines.append(f"{name}: of {expected[name].total()} rows {lost.total()} are missing, {examples}")
    return lines


def _some(rows: Rows) -> list[Any]:
    return sorted(rows)[:3]


def _windows(orders: Sequence[Order], size: int, every: int) -> Rows:
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for order in orders:
        for start in range((order.at - size) // every * every + every, order.at + 1, every):
            found[order.product, start].append(order.amount)
    return Counter((product, start, len(them), sum(them)) for (product, start), them in found.items())


def _best(orders: Sequence[Order]) -> Rows:
    """Return the first three orders of each product; an order that was sent twice has two places."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for order in orders:
        found[order.product].append((-order.amount, order.id))
    return Counter(
        (product, place, number, -amount)
        for product, them in found.items()
        for place, (amount, number) in enumerate(sorted(them)[:3], 1)
    )


def _placed(orders: Sequence[Order], versions: Sequence[Customer]) -> Rows:
    cities = {customer.id: customer.city for customer in sorted(versions, key=lambda c: c.version)}
    return Counter({(o.id, o.product, o.customer, cities[o.customer]) for o in orders if o.customer in cities})


def _totals(orders: Sequence[Order]) -> Rows:
    found: dict[int, list[int]] = defaultdict(list)
    for order in {order.id: order for order in orders}.values():
        found[order.customer].append(order.amount)
    return Counter((customer, len(them), sum(them)) for customer, them in found.items())


def _bands(totals: Rows) -> Rows:
    found: dict[int, list[int]] = defaultdict(list)
    for _, n, amount in totals:
        found[amount % 5].append(n)
    return Counter((band, len(them), sum(them)) for band, them in found.items())
