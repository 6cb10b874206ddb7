"""Every kind of change to operators, aggregates and queries, planned; see `test_changes.py`."""

from dataclasses import replace
from typing import Any

import pytest

import headwater as hw
from tests.spark.pipeline.changed_programs import (
    AS_OF,
    BEST,
    BY_PRODUCT,
    CONTINUES,
    LATEST,
    NEW_RECORDS,
    OWN_JOIN,
    OWN_WINDOW,
    REFUSED,
    ROLLING,
    SPREAD,
    TABLE,
    TWO,
    UNIQUE,
    Case,
    Planner,
    Program,
    Spread,
    as_of,
    best,
    change,
    check_change,
    joined,
    own_join,
    own_window,
    panes,
    rolling,
    table,
    unique,
)


@pytest.fixture(scope="module")
def planner(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Planner:
    return Planner(spark, tmp_path_factory.mktemp("changes"))


CASES: dict[str, Case] = {
    # The other operators.
    "another kind of join": (
        change(TWO, function=joined(how="left")),
        REFUSED,
        "operator join, how: inner -> left",
    ),
    "another condition of a join": (
        change(
            TWO, function=lambda o, r: joined(on={"product": "reason"})(o, r.withColumnRenamed("product", "p"))
        ),
        REFUSED,
        "operator join, on:",
    ),
    "another interval of a join": (
        change(TWO, function=joined(within="2 hours")),
        REFUSED,
        "operator join, within: 1 hour -> 2 hours",
    ),
    "another deletion in a join": (
        change(AS_OF, function=as_of(deleted="reason is null")),
        REFUSED,
        "operator join, deleted: none -> reason is null",
    ),
    "a filter on a side of a join": (
        change(TWO, function=lambda o, r: joined()(o, r.where("reason > 'a'"))),
        NEW_RECORDS,
        "before operator join, right side: filter added: (reason > 'a')",
    ),
    "another number of rows": (change(BEST, function=best(n=3)), REFUSED, "operator top, n: 2 -> 3"),
    "another order": (
        change(BEST, function=best(order="amount")),
        REFUSED,
        "operator top, order: amount desc -> amount",
    ),
    "a rank": (change(BEST, function=best(rank="place")), REFUSED, "operator top, rank: none -> place"),
    "another key of duplicates": (
        change(UNIQUE, function=unique(key="n")),
        REFUSED,
        "operator deduplicate, by: product -> n",
    ),
    "another duplicate": (
        change(UNIQUE, function=unique(keep="last")),
        REFUSED,
        "operator deduplicate, keep: first -> last",
    ),
    "another key of a table": (
        change(TABLE, function=table(key="n")),
        REFUSED,
        "operator table, by: product -> n",
    ),
    "another position": (
        change(TABLE, function=table(position="n")),
        REFUSED,
        "operator table, position: at -> n",
    ),
    "another deletion": (
        change(TABLE, function=table(deleted="amount is null")),
        REFUSED,
        "operator table, deleted: none -> amount is null",
    ),
    "more rows of a rolling aggregate": (
        change(ROLLING, function=rolling(last=4)),
        REFUSED,
        "operator rolling, last: 3 -> 4",
    ),
    "another rolling aggregate": (
        change(ROLLING, function=rolling(what={"mean": hw.max("amount")})),
        REFUSED,
        "operator rolling, what mean:",
    ),
    # Aggregates of the user's own.
    "an aggregate keeps something else": (
        change(SPREAD, function=panes(what={"spread": Spread(low="sum")})),
        REFUSED,
        "what the aggregate keeps (`partial`, `merge`): its code has changed",
    ),
    "an aggregate has another result": (
        change(SPREAD, function=panes(what={"spread": Spread(2)})),
        NEW_RECORDS,
        "operator windowed, spread, the result of the aggregate: its code has changed",
    ),
    "an aggregate of the same code": (change(SPREAD, function=panes(what={"spread": Spread()})), CONTINUES, ""),
    # Spark's own operators.
    "another own window": (
        change(OWN_WINDOW, function=own_window("5 minutes")),
        REFUSED,
        "groupBy, by: time window of at: 1 minute, every 1 minute, offset 0, product string -> time window of",
    ),
    "another own window that slides": (
        change(OWN_WINDOW, function=own_window("2 minutes", "1 minute")),
        REFUSED,
        "time window of at: 2 minutes, every 1 minute, offset 0",
    ),
    "another own offset": (
        change(OWN_WINDOW, function=own_window("1 minute", "1 minute", "10 seconds")),
        REFUSED,
        "offset 10 seconds",
    ),
    "another own grouping": (
        change(BY_PRODUCT, function=lambda o: o.groupBy("product", "n").agg({"amount": "sum"}).drop("n")),
        REFUSED,
        "groupBy, by: product string -> product string, n int",
    ),
    "another own aggregate": (
        change(
            BY_PRODUCT,
            function=lambda o: (
                o.groupBy("product").agg({"amount": "max"}).withColumnRenamed("max(amount)", "sum(amount)")
            ),
        ),
        REFUSED,
        "groupBy, what: sum(amount) -> max(amount)",
    ),
    "other own duplicates": (
        (
            Program(function=lambda o: o.dropDuplicates(["product"])),
            Program(function=lambda o: o.dropDuplicates(["n"])),
        ),
        REFUSED,
        "dropDuplicates, by: product string -> n int",
    ),
    "another own join": (change(OWN_JOIN, function=own_join("left")), REFUSED, "join, how: inner -> left outer"),
    "another condition of an own join": (
        change(OWN_JOIN, function=own_join(limit="2 hours")),
        REFUSED,
        "join, on:",
    ),
    # Queries.
    "a view becomes a sink": (
        change(BY_PRODUCT, to=hw.Parquet("out")),
        REFUSED,
        "it was a view, and is a sink now",
    ),
    "a sink becomes a view": (
        (replace(BY_PRODUCT, to=hw.Parquet("out")), BY_PRODUCT),
        REFUSED,
        "it was a sink, and is a view now",
    ),
    "another folder of a sink": (
        (replace(LATEST, to=hw.Parquet("out")), replace(LATEST, to=hw.Parquet("other"))),
        NEW_RECORDS,
        "destination: Parquet(folder='out') -> Parquet(folder='other'); rows that are already written",
    ),
    "another kind of sink": (
        (replace(LATEST, to=hw.Parquet("out")), replace(LATEST, to=hw.Sqlite("out.db", table="t"))),
        NEW_RECORDS,
        "destination: Parquet(folder='out') -> Sqlite(",
    ),
    "another password": (
        (
            replace(LATEST, to=hw.Postgres("postgresql://a:b@db/shop", table="t")),
            replace(LATEST, to=hw.Postgres("postgresql://a:c@db/shop", table="t")),
        ),
        CONTINUES,
        "",
    ),
    "another database": (
        (
            replace(LATEST, to=hw.Postgres("postgresql://a:b@db/shop", table="t")),
            replace(LATEST, to=hw.Postgres("postgresql://a:b@db/store", table="t")),
        ),
        NEW_RECORDS,
        "db/store",
    ),
    "a key of a sink": (
        (replace(LATEST, to=hw.Parquet("out"), key=()), replace(LATEST, to=hw.Parquet("out"))),
        REFUSED,
        "key: none -> product",
    ),
    "indexes, search and history": (
        change(BY_PRODUCT, options={"indexes": ["product"], "search": "product", "history": 5}),
        CONTINUES,
        "",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change(planner: Planner, name: str) -> None:
    check_change(planner, CASES[name])
