"""Programs with one query each, for tests of changes to an app, and how to plan them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.errors import ConflictError
from headwater.spark.definition.definition import Definition
from headwater.spark.definition.differences import Effect, check_definition, compare
from headwater.spark.kernels.spool import Spool
from headwater.spark.pipeline.plan import plan_query
from headwater.spark.source.topic_reads import read_stream

SERVERS = "127.0.0.1:9"  # Nothing is read.
Function = Callable[..., Any]
ORDERS = {"schema": "product string, amount double, n int, at timestamp", "event_time": "at"}
RETURNS = {"schema": "product string, reason string, returned timestamp", "event_time": "returned"}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program with one query."""

    function: Function
    orders: dict[str, Any] = field(default_factory=lambda: dict(ORDERS))
    topics: tuple[str, ...] = ("orders",)
    key: tuple[str, ...] = ("product",)
    to: Any = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def query(self) -> hw.app.Query:
        app = hw.App("shop")
        settings = {"orders": self.orders, "returns": RETURNS}
        topics = [app.topic(name, **settings.get(name, self.orders)) for name in self.topics]
        if self.to is None:
            app.view(*topics, key=self.key, name="revenue", **self.options)(self.function)
        else:
            app.sink(*topics, key=self.key, name="revenue", to=self.to)(self.function)
        return app.queries[0]


class Planner:
    """Plans programs; the first ones of the changes are the same, so definitions are kept."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self._known: list[tuple[Program, Definition]] = []

    def define(self, program: Program) -> Definition:
        for known, definition in self._known:
            if known is program:
                return definition

        def read(topic: hw.Topic, *, every_partition: bool = False, wake_ups: Path | None = None) -> Any:
            return read_stream(self._spark, topic, SERVERS, every_partition=every_partition, wake_ups=wake_ups)

        spool = Spool(str(self._folder / "spool"))
        plan = plan_query(program.query, read, spool, self._folder / "wake_ups.json")
        self._known.append((program, plan.definition))
        return plan.definition


# -- programs -------------------------------------------------------------------------------------------------


def by_product(orders: Any) -> Any:
    return orders.groupBy("product").agg({"amount": "sum", "n": "max"})


def latest(orders: Any) -> Any:
    return orders.where("amount > 0").selectExpr("product", "amount * 2 as total", "at")


def windows(**more: Any) -> Function:
    settings = {"what": {"total": hw.sum("amount")}, "where": hw.Tumbling("1 minute"), "by": ["product"], **more}
    return lambda orders: orders.transform(hw.windowed(**settings))


def panes(**more: Any) -> Function:
    return windows(**{"how": hw.RETRACTING, "lateness": "1 hour", **more})


def totals(before: str = "amount > 0", total: str = "amount", **more: Any) -> Function:
    settings = {"what": {"total": hw.sum("total"), "orders": hw.count()}, "by": "product", **more}
    return lambda orders: hw.aggregate(orders.where(before).selectExpr("*", f"{total} as total"), **settings)


def best(*columns: str, n: int = 2, **more: Any) -> Function:
    def function(orders: Any) -> Any:
        rows = orders.select(*columns) if columns else orders
        return hw.top(rows, n, **{"order": "amount desc", "by": "product", **more})

    return function


def joined(**more: Any) -> Function:
    settings = {"on": "product", "within": "1 hour", **more}
    return lambda orders, returns: hw.join(orders, returns, **settings)


def as_of(**more: Any) -> Function:
    settings = {"on": "product", "as_of": hw.EVENT_TIME, **more}
    return lambda orders, returns: hw.join(orders, returns, **settings)


def table(**more: Any) -> Function:
    return lambda orders: hw.table(orders, **{"key": "product", "position": "at", **more})


def rolling(**more: Any) -> Function:
    settings = {"last": 3, "what": {"mean": hw.mean("amount")}, "by": "product", **more}
    return lambda orders: hw.rolling(orders, **settings)


def unique(**more: Any) -> Function:
    return lambda orders: hw.deduplicate(orders, **{"key": "product", **more})


def own_window(size: str = "1 minute", slide: str | None = None, start: str | None = None) -> Function:
    from pyspark.sql import functions as F  # noqa: N812

    return lambda orders: orders.groupBy(F.window("at", size, slide, start), "product").count()


def own_join(how: str = "inner", limit: str = "1 hour", extra: str = "") -> Function:
    from pyspark.sql import functions as F  # noqa: N812

    def function(orders: Any, returns: Any) -> Any:
        condition = F.expr(f"o.product = r.product and returned between at and at + interval {limit}")
        sides = (
            orders.withWatermark("at", "1 hour").alias("o"),
            returns.withWatermark("returned", "1 hour").alias("r"),
        )
        return sides[0].join(sides[1], condition, how).selectExpr("o.product", "reason", *filter(None, [extra]))

    return function


class Spread:
    """An aggregate of a user's."""

    column = "amount"

    def __init__(self, factor: int = 1, *, low: str = "min") -> None:
        self.factor, self.low = factor, low

    def partial(self, row: Any) -> Any:
        return {"low": getattr(row.value, self.low)(), "high": row.value.max()}

    def merge(self, of: Any) -> Any:
        return {"low": getattr(of("low"), self.low)(), "high": of("high").max()}

    def result(self, of: Any) -> Any:
        return (of("high") - of("low")) * self.factor


def doubled(factor: float) -> Function:
    from pyspark.sql import functions as F  # noqa: N812

    def function(orders: Any) -> Any:
        twice = F.udf(lambda amount: amount * factor, "double")
        return hw.aggregate(
            orders.withColumn("amount", twice("amount")), what={"t": hw.sum("amount")}, by="product"
        )

    return function


def settled(seconds: int) -> Function:
    from datetime import timedelta

    return lambda seen: seen.highest - timedelta(seconds=seconds)


def with_column(text: str, **more: Any) -> dict[str, Any]:
    return {**ORDERS, "schema": text, **more}


# Column 'n' is not used.
BY_PRODUCT = Program(function=lambda orders: orders.groupBy("product").agg({"amount": "sum"}))
WITH_N = Program(function=by_product)
LATEST = Program(function=latest)
WINDOWS, PANES = (Program(function=each, key=("product", "window")) for each in (windows(), panes()))
TOTALS, BEST, TABLE, ROLLING, UNIQUE = (
    Program(function=each) for each in (totals(), best(), table(), rolling(), unique())
)
TWO = Program(function=joined(), topics=("orders", "returns"))
AS_OF = replace(TWO, function=as_of())
OWN_JOIN = replace(TWO, function=own_join())
OWN_WINDOW = Program(function=own_window(), key=("product", "window"))
SPREAD = Program(function=panes(what={"spread": Spread()}), key=("product", "window"))
NOTE = with_column("product string, amount double, n int, note string, at timestamp")
SHORT = with_column("product string, amount double, at timestamp")
LONG_N = with_column("product string, amount double, n bigint, at timestamp")
RENAMED = with_column("product string, price double, n int, at timestamp")


def rewritten(rows: Any) -> Any:
    """Compute the same as `latest`, in another way."""
    twice = rows.select("at", "product", rows["amount"].alias("price")).selectExpr("*", "price * 2 as twice")
    found = twice.where("price > 0").withColumnRenamed("twice", "total")
    return found.alias("f").select("f.at", "f.product", "f.total")


Case = tuple[tuple[Program, Program], Effect | None, str]
"""A program before and after a change, what happens to its query, and what is said about it."""

CONTINUES, NEW_RECORDS, REFUSED = None, Effect.NEW_RECORDS, Effect.REFUSED


def change(was: Program, **parts: Any) -> tuple[Program, Program]:
    return was, replace(was, **parts)


def check_change(planner: Planner, case: Case) -> None:
    """Plan a program before and after a change, and check what would happen to its query."""
    (before, after), effect, text = case
    was, now = planner.define(before), planner.define(after)
    found = compare(was, now)
    if effect is CONTINUES:
        assert found == []
        return
    shown = [str(difference) for difference in found if difference.effect is effect]
    assert any(text in line for line in shown), found
    if effect is REFUSED:
        with pytest.raises(ConflictError, match=r"cannot continue \w+ 'revenue'") as refused:
            check_definition(after.query, was, now)
        message = str(refused.value)
        assert text in message
        assert max(map(len, message.splitlines())) < 400
        assert "headwater rebuild revenue --from start" in (refused.value.hint or "")
    else:
        assert check_definition(after.query, was, now) == found


PROGRAMS = [
    BY_PRODUCT, WITH_N, LATEST, WINDOWS, PANES, TOTALS, BEST, TABLE, ROLLING, UNIQUE, TWO, AS_OF, OWN_JOIN,
    OWN_WINDOW, SPREAD, Program(function=doubled(2.0)), replace(PANES, orders={**ORDERS, "watermark": settled(5)}),
]  # fmt: skip
