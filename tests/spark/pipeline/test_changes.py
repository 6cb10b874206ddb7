"""Every kind of change to topics, results and windows, planned: what a query continues with or refuses.

`docs/how-to/change.md` has a table of these; `test_changed_apps.py` runs some of them.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.spark.definition.definition import read_definition
from headwater.spark.definition.differences import Effect, compare
from tests.spark.pipeline import changed_programs
from tests.spark.pipeline.changed_programs import (
    BEST,
    BY_PRODUCT,
    CONTINUES,
    LATEST,
    LONG_N,
    NEW_RECORDS,
    NOTE,
    ORDERS,
    OWN_JOIN,
    OWN_WINDOW,
    PANES,
    REFUSED,
    RENAMED,
    SHORT,
    TABLE,
    TOTALS,
    TWO,
    WINDOWS,
    WITH_N,
    Case,
    Planner,
    Program,
    best,
    change,
    check_change,
    doubled,
    latest,
    panes,
    rewritten,
    settled,
    totals,
    windows,
    with_column,
)


@pytest.fixture(scope="module")
def planner(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Planner:
    return Planner(spark, tmp_path_factory.mktemp("changes"))


CASES: dict[str, Case] = {
    # Topics.
    "a column that nothing uses is added": (
        change(BY_PRODUCT, orders=NOTE),
        NEW_RECORDS,
        "topic orders has a new column 'note' (string)",
    ),
    "a column that no window uses is added": (change(WINDOWS, orders=NOTE), NEW_RECORDS, "new column 'note'"),
    "a column that no pane uses is added": (change(PANES, orders=NOTE), NEW_RECORDS, "new column 'note'"),
    "a column that an own window does not use is added": (
        change(OWN_WINDOW, orders=NOTE),
        NEW_RECORDS,
        "new column 'note'",
    ),
    "a column that an own join does not use is added": (
        change(OWN_JOIN, orders=NOTE),
        NEW_RECORDS,
        "new column 'note'",
    ),
    "a column that rows keep is added": (
        change(BEST, orders=NOTE),
        REFUSED,
        "operator top: its state has a new column 'note' (string)",
    ),
    "a column that a table keeps is added": (
        change(TABLE, orders=NOTE),
        REFUSED,
        "its state has a new column 'note' (string)",
    ),
    "a column that a join keeps is added": (change(TWO, orders=NOTE), REFUSED, "operator join: its state"),
    "a column is added, and left out before the operator": (
        change(Program(function=best("product", "amount", "at")), orders=NOTE),
        NEW_RECORDS,
        "new column 'note'",
    ),
    "an unused column is removed": (
        change(BY_PRODUCT, orders=SHORT),
        NEW_RECORDS,
        "topic orders no longer has the column 'n' (int)",
    ),
    "a used column is renamed": (
        (TOTALS, Program(function=totals("price > 0", "price"), orders=RENAMED)),
        NEW_RECORDS,
        "amount",
    ),
    "the type of an unused column changes": (
        change(BY_PRODUCT, orders=LONG_N),
        NEW_RECORDS,
        "column 'n': int -> bigint",
    ),
    "the type of a used column widens": (
        change(WITH_N, orders=LONG_N),
        REFUSED,
        "the result, column 'max(n)': int -> bigint",
    ),
    "the type of a kept column changes": (change(BEST, orders=LONG_N), REFUSED, "column 'n': int -> bigint"),
    "the order of columns changes": (
        change(PANES, orders=with_column("at timestamp, n int, amount double, product string")),
        CONTINUES,
        "",
    ),
    "the order of kept columns changes": (
        change(BEST, orders=with_column("at timestamp, n int, amount double, product string")),
        REFUSED,
        "the order of the columns in its state",
    ),
    "another event time": (
        change(
            WINDOWS,
            orders=with_column(
                "product string, amount double, n int, at timestamp, seen timestamp", event_time="seen"
            ),
        ),
        REFUSED,
        "topic orders, event time: at -> seen",
    ),
    "another event time without state": (
        change(
            LATEST,
            orders=with_column(
                "product string, amount double, n int, at timestamp, seen timestamp", event_time="seen"
            ),
        ),
        NEW_RECORDS,
        "event time: at -> seen",
    ),
    "another delay": (
        change(PANES, orders={**ORDERS, "delay": "5 seconds"}),
        NEW_RECORDS,
        "topic orders, delay: none -> 5 seconds",
    ),
    "another idle time": (
        change(PANES, orders={**ORDERS, "idle": "5 seconds"}),
        NEW_RECORDS,
        "topic orders, idle: none -> 5 seconds",
    ),
    "a watermark function": (
        change(PANES, orders={**ORDERS, "watermark": settled(5)}),
        NEW_RECORDS,
        "its watermark function is new",
    ),
    "another watermark function": (
        (
            replace(PANES, orders={**ORDERS, "watermark": settled(5)}),
            replace(PANES, orders={**ORDERS, "watermark": settled(6)}),
        ),
        NEW_RECORDS,
        "its watermark function: its code has changed",
    ),
    "more partitions in the declaration": (change(PANES, orders={**ORDERS, "partitions": 4}), CONTINUES, ""),
    "another topic": (change(BY_PRODUCT, topics=("orders2",)), REFUSED, "topics: orders -> orders2"),
    "a second topic": (
        change(LATEST, topics=("orders", "returns"), function=lambda orders, returns: latest(orders)),
        REFUSED,
        "topics: orders -> orders, returns",
    ),
    # Keys and results.
    "another key": (change(PANES, key=("window", "product")), REFUSED, "key: product, window -> window, product"),
    "a computed column is added": (
        change(LATEST, function=lambda o: latest(o).selectExpr("*", "total + 1 as x")),
        REFUSED,
        "the result has a new column 'x' (double)",
    ),
    "a column of the result is renamed": (
        change(LATEST, function=lambda o: latest(o).withColumnRenamed("total", "sum")),
        REFUSED,
        "the result no longer has the column 'total' (double)",
    ),
    "the type of a column of the result": (
        change(LATEST, function=lambda o: latest(o).selectExpr("product", "int(total) as total", "at")),
        REFUSED,
        "the result, column 'total': double -> int",
    ),
    "the order of columns of the result": (
        change(LATEST, function=lambda o: latest(o).select("at", "total", "product")),
        CONTINUES,
        "",
    ),
    # Rows without state.
    "another filter": (
        change(
            LATEST, function=lambda o: o.where("amount > 5").selectExpr("product", "amount * 2 as total", "at")
        ),
        NEW_RECORDS,
        "the function: filter: (amount > CAST(0 AS DOUBLE)) -> (amount > CAST(5 AS DOUBLE))",
    ),
    "another expression": (
        change(
            LATEST, function=lambda o: o.where("amount > 0").selectExpr("product", "amount * 3 as total", "at")
        ),
        NEW_RECORDS,
        "total: (amount * CAST(2 AS DOUBLE)) -> (amount * CAST(3 AS DOUBLE))",
    ),
    "the same meaning in other words": (change(LATEST, function=rewritten), CONTINUES, ""),
    # Windows.
    "another size": (
        change(WINDOWS, function=windows(where=hw.Tumbling("5 minutes"))),
        REFUSED,
        "operator windowed, where: Tumbling('1 minute') -> Tumbling('5 minutes')",
    ),
    "another kind of window": (
        change(PANES, function=panes(where=hw.Session("1 minute"))),
        REFUSED,
        "where: Tumbling('1 minute') -> Session('1 minute')",
    ),
    "another offset": (
        change(PANES, function=panes(where=hw.Tumbling("1 minute", offset="10 seconds"))),
        REFUSED,
        "offset='10 seconds'",
    ),
    "another trigger": (change(PANES, function=panes(when=hw.EveryBatch())), REFUSED, "operator windowed, when:"),
    "another mode": (change(PANES, function=panes(how=hw.DISCARDING)), REFUSED, "how: retracting -> discarding"),
    "another lateness": (
        change(PANES, function=panes(lateness="2 hours")),
        NEW_RECORDS,
        "operator windowed, lateness: 1 hour -> 2 hours",
    ),
    "panes in place of rows": (
        change(WINDOWS, function=windows(lateness="1 hour")),
        REFUSED,
        "is computed by a kernel of Headwater now",
    ),
    "an aggregate is added": (
        change(PANES, function=panes(what={"total": hw.sum("amount"), "n": hw.count()})),
        REFUSED,
        "operator windowed, what: 'n' is new (count())",
    ),
    "an aggregate is removed": (
        (replace(PANES, function=panes(what={"total": hw.sum("amount"), "n": hw.count()})), PANES),
        REFUSED,
        "operator windowed, what: 'n' is gone (count())",
    ),
    "another aggregate": (
        change(PANES, function=panes(what={"total": hw.max("amount")})),
        REFUSED,
        "what total: sum(",
    ),
    "aggregates in another order": (
        change(TOTALS, function=totals(what={"orders": hw.count(), "total": hw.sum("total")})),
        REFUSED,
        "the order has changed: total, orders -> orders, total",
    ),
    "an aggregate is renamed": (
        change(PANES, function=panes(what={"sum": hw.sum("amount")})),
        REFUSED,
        "what: 'total' is gone",
    ),
    "a group is added": (
        change(PANES, function=panes(by=["product", "n"])),
        REFUSED,
        "operator windowed, by: product -> product, n",
    ),
    "a group is removed": (
        change(replace(PANES, key=("window",)), function=panes(by=[])),
        REFUSED,
        "operator windowed, by: product -> none",
    ),
    "groups in another order": (
        (replace(PANES, function=panes(by=["product", "n"])), replace(PANES, function=panes(by=["n", "product"]))),
        REFUSED,
        "by: product, n -> n, product",
    ),
    # Before and after operators.
    "a filter before an operator": (
        change(TOTALS, function=totals("amount > 5")),
        NEW_RECORDS,
        "before operator aggregate: filter:",
    ),
    "a filter before panes is added": (
        change(PANES, function=lambda o: panes()(o.where("n > 1"))),
        NEW_RECORDS,
        "before operator windowed: filter added: (n > 1)",
    ),
    "a filter before Spark's own operator": (
        change(BY_PRODUCT, function=lambda o: BY_PRODUCT.function(o.where("n > 1"))),
        NEW_RECORDS,
        "before groupBy: filter added: (n > 1)",
    ),
    "a column that feeds an aggregate": (
        change(TOTALS, function=totals(total="amount / 2")),
        NEW_RECORDS,
        "before operator aggregate: total: amount -> (amount / CAST(2 AS DOUBLE))",
    ),
    "a function that feeds an aggregate": (
        (Program(function=doubled(2.0)), Program(function=doubled(3.0))),
        NEW_RECORDS,
        "before operator aggregate: function <lambda>: its code has changed",
    ),
    "a filter after an operator": (
        change(TOTALS, function=lambda o: totals()(o).where("total > 5")),
        NEW_RECORDS,
        "after the operators: filter added: (total > CAST(5 AS DOUBLE))",
    ),
    "a column after an operator": (
        change(
            TOTALS,
            function=lambda o: totals()(o).selectExpr(
                "product", "total + 1 as total", "orders", "_change", "_watermark"
            ),
        ),
        NEW_RECORDS,
        "after the operators: total: total -> (total + CAST(1 AS DOUBLE))",
    ),
    "an operator is inserted": (
        change(TOTALS, function=lambda o: totals()(hw.deduplicate(o, key="n"))),
        REFUSED,
        "operators: aggregate -> deduplicate, aggregate",
    ),
    "two operators are swapped": (
        (
            Program(function=lambda o: hw.top(hw.deduplicate(o, key="n"), 2, order="amount")),
            Program(function=lambda o: hw.deduplicate(hw.top(o, 2, order="amount"), key="n")),
        ),
        REFUSED,
        "operators: deduplicate, top -> top, deduplicate",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change(planner: Planner, name: str) -> None:
    check_change(planner, CASES[name])


def test_the_definition_of_a_program_is_the_same_elsewhere(planner: Planner, tmp_path: Path) -> None:
    """Another process, file, folder, hash seed, time zone and number of partitions change nothing."""
    (tmp_path / "elsewhere.py").write_text(Path(changed_programs.__file__ or "").read_text())
    code = f"""
import elsewhere, pathlib, sys
from headwater.spark.session.session import spark_session
from headwater.spark.definition.definition import write_definition
conf = {{"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.shuffle.partitions": "7"}}
folder = pathlib.Path({str(tmp_path)!r})
with spark_session("elsewhere", master="local[1]", log_file=folder / "spark.log", conf=conf) as session:
    planner = elsewhere.Planner(session, folder)
    for number, program in enumerate(elsewhere.PROGRAMS):
        write_definition(folder / str(number), planner.define(program))
"""
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    environment["PYTHONPATH"] = f"{tmp_path}:{Path(hw.__file__).parents[1]}"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=300)
    for number, program in enumerate(changed_programs.PROGRAMS):
        was = read_definition(tmp_path / str(number))
        assert was is not None
        found = compare(was, planner.define(program))
        assert [difference.effect for difference in found] == [Effect.NONE], found
