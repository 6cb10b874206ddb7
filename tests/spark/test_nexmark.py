"""Nexmark's queries on Spark compared with SQL over the same events: the sum of all changes is SQLite's result."""

import os
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from headwater.cli.app_file import load_app
from headwater.spark.kernels.frames import from_arrow

FOLDER = Path(__file__).parents[2] / "examples" / "nexmark"
PARTS, EVENTS, PER_SECOND = 2, 3000, 100
STATELESS = {"q0", "q1", "q2", "q10", "q14", "q21", "q22"}

IN_TIME = """
select a.id, a.seller, a.category, b.bidder, b.price, b.date_time from auctions a join bids b on a.id = b.auction
where b.date_time between a.date_time and a.expires
"""
RANKED = "price < 10000", "price >= 10000 and price < 1000000", "price >= 1000000"
COUNTS = "count(*), " + ", ".join(f"count(*) filter (where {rank})" for rank in RANKED)
DISTINCT = ", ".join(
    f"count(distinct {who}), " + ", ".join(f"count(distinct case when {rank} then {who} end)" for rank in RANKED)
    for who in ("bidder", "auction")
)
RANK_COLUMNS = "total_bids rank1_bids rank2_bids rank3_bids"
WHO_COLUMNS = " ".join(
    f"{rank}_{who}s" for who in ("bidder", "auction") for rank in ("total", "rank1", "rank2", "rank3")
)

EXPECTED: dict[str, tuple[str, str]] = {
    "q0": ("auction bidder price date_time extra", "select auction, bidder, price, date_time, extra from bids"),
    "q1": ("auction bidder price", "select auction, bidder, round(0.908 * price, 3) from bids"),
    "q2": ("auction price", "select auction, price from bids where auction % 123 = 0"),
    "q3": (
        "name city state id",
        "select name, city, state, a.id from auctions a join persons p on seller = p.id "
        "where category = 10 and state in ('OR', 'ID', 'CA')",
    ),
    "q4": (
        "category mean",
        f"select category, avg(final) from (select category, max(price) final from ({IN_TIME}) "
        "group by id, category) group by category",
    ),
    "q5": (
        "start auction bids",
        "with counts as (select (date_time / 2000 - k) * 2000 start, auction, count(*) n from bids, "
        "(select 0 k union select 1 union select 2 union select 3 union select 4) group by 1, 2) "
        "select start, auction, n from counts c where start + 10000 <= :watermark "
        "and n = (select max(n) from counts d where d.start = c.start)",
    ),
    "q6": (
        "seller id price mean",
        f"select seller, id, price, avg(price) over (partition by seller order by date_time, id "
        f"rows between 9 preceding and current row) from (select *, row_number() over "
        f"(partition by id order by price desc, date_time) n from ({IN_TIME})) where n = 1",
    ),
    "q7": (
        "auction price bidder date_time",
        "select auction, price, bidder, date_time from bids b where price = (select max(price) from bids c "
        "where c.date_time / 10000 = b.date_time / 10000) and (date_time / 10000 + 1) * 10000 <= :watermark",
    ),
    "q8": (
        "id name start",
        "select id, name, date_time / 10000 * 10000 from persons p where exists (select * from auctions a "
        "where seller = p.id and a.date_time / 10000 = p.date_time / 10000)",
    ),
    "q9": (
        "id seller category price date_time",
        f"select id, seller, category, price, date_time from (select *, row_number() over "
        f"(partition by id order by price desc, date_time) n from ({IN_TIME})) where n = 1",
    ),
    "q10": (
        "auction bidder price dt hm",
        "select auction, bidder, price, strftime('%Y-%m-%d', date_time / 1000, 'unixepoch'), "
        "strftime('%H:%M', date_time / 1000, 'unixepoch') from bids",
    ),
    "q11": (
        "bidder bids",
        "with marked as (select *, date_time - lag(date_time) over w >= 10000 as is_new from bids "
        "window w as (partition by bidder order by date_time)), "
        "numbered as (select *, sum(coalesce(is_new, 0)) over (partition by bidder order by date_time) n "
        "from marked) select bidder, count(*) from numbered group by bidder, n "
        "having max(date_time) + 10000 <= :watermark",
    ),
    "q12": ("bidder bids", "select bidder, count(*) from bids group by bidder"),
    "q13": (
        "auction bidder price value",
        "select auction, bidder, price, 'value ' || (auction % 10000) from bids",
    ),
    "q14": (
        "auction bidder price time_type c_counts",
        "select auction, bidder, round(0.908 * price, 3), 'nightTime', "
        "length(extra) - length(replace(extra, 'c', '')) from bids "
        "where 0.908 * price > 1000000 and 0.908 * price < 50000000",
    ),
    "q15": (
        f"day {RANK_COLUMNS} {WHO_COLUMNS}",
        f"select '2026-01-01', {COUNTS}, {DISTINCT} from bids",
    ),
    "q16": (
        f"channel day minute {RANK_COLUMNS} {WHO_COLUMNS}",
        f"select channel, '2026-01-01', max(strftime('%H:%M', date_time / 1000, 'unixepoch')), {COUNTS}, "
        f"{DISTINCT} from bids group by channel",
    ),
    "q17": (
        f"auction day {RANK_COLUMNS} least most mean sum",
        f"select auction, '2026-01-01', {COUNTS}, min(price), max(price), avg(price), sum(price) from bids "
        "group by auction",
    ),
    "q18": (
        "bidder auction date_time",
        "select bidder, auction, max(date_time) from bids group by bidder, auction",
    ),
    "q19": (
        "auction rank_number price",
        "select auction, n, price from (select *, row_number() over (partition by auction order by price desc) n "
        "from bids) where n <= 10",
    ),
    "q20": (
        "auction bidder price date_time item_name seller",
        "select auction, bidder, price, b.date_time, item_name, seller from bids b "
        "join auctions a on auction = id where category = 10",
    ),
    "q21": (
        "auction bidder price channel channel_id",
        "select * from (select auction, bidder, price, channel, case lower(channel) when 'apple' then '0' "
        "when 'google' then '1' when 'facebook' then '2' when 'baidu' then '3' else "
        "nullif(substr(url, instr(url || '&channel_id=', '&channel_id=') + 12), '') end id from bids) "
        "where id is not null",
    ),
    "q22": (
        "auction bidder price channel dir1 dir2 dir3",
        "select auction, bidder, price, channel, d1, d2, d3 from bids",
    ),
}


@pytest.fixture(scope="module")
def nexmark() -> Iterator[Any]:
    """Import the example's modules as its app does."""
    names = ("events", "queries")
    sys.path.insert(0, str(FOLDER))
    yield SimpleNamespace(**{name: __import__(name) for name in names})
    sys.path.remove(str(FOLDER))
    for name in names:
        del sys.modules[name]


class House:
    """Events as files for Spark and as tables for SQLite."""

    def __init__(self, nexmark: Any, spark: Any, folder: Path) -> None:
        self.nexmark, self.spark, self.folder = nexmark, spark, folder
        self.db = sqlite3.connect(":memory:")
        parts = [
            nexmark.events.make_events(EVENTS // PARTS, first=n * EVENTS // PARTS, per_second=PER_SECOND)
            for n in range(PARTS)
        ]
        for kind in nexmark.events.SCHEMAS:
            frames = [getattr(part, kind) for part in parts]
            (folder / kind).mkdir()
            for number, frame in enumerate(frames):
                path = folder / kind / f"{number}.parquet"
                frame.write_parquet(path)
                os.utime(path, (1_000_000_000 + number,) * 2)  # Spark reads files by modification time.
            self._load(kind, pl.concat(frames))
        nexmark.events.side_input().write_csv(folder / "side_input.csv")
        (self.watermark,) = self.db.execute("select max(date_time) from bids").fetchone()

    def _load(self, kind: str, rows: pl.DataFrame) -> None:
        times = pl.col(pl.Datetime).dt.epoch("ms")
        if kind == "bids":
            folders = pl.col("url").str.split("/")
            rows = rows.with_columns(folders.list.get(n).alias(f"d{n - 2}") for n in (3, 4, 5))
        self.db.execute(f"create table {kind} ({', '.join(rows.columns)})")
        marks = ", ".join("?" * rows.width)
        self.db.executemany(f"insert into {kind} values ({marks})", rows.with_columns(times).rows())

    def stream(self, kind: str, *, batch: bool) -> Any:
        schema, path = self.nexmark.events.SCHEMAS[kind], str(self.folder / kind)
        reader = self.spark.read if batch else self.spark.readStream.option("maxFilesPerTrigger", 1)
        return reader.schema(schema).parquet(path).withMetadata("date_time", {"headwater.eventTime": True})

    def run(self, name: str) -> pl.DataFrame:
        """Return the output of a query over all batches."""
        query, batch = self.nexmark.queries.QUERIES[name], name in STATELESS
        inputs = {kind: self.stream(kind, batch=batch) for kind in signature(query).parameters if kind != "values"}
        if name == "q13":
            side = replace(
                self.nexmark.queries.SIDE_INPUT,
                load=self.folder / "side_input.csv",
                copies=self.folder / "copies",
            )
            query = partial(query, values=side)
        rows = query(**inputs)
        if batch:
            return from_arrow(rows.toArrow())
        found: list[pl.DataFrame] = []
        running = (
            rows.writeStream.foreachBatch(lambda some, number: found.append(from_arrow(some.toArrow())))
            .option("checkpointLocation", str(self.folder / f"checkpoint-{name}"))
            .trigger(availableNow=True)
            .start()
        )
        running.awaitTermination()
        return pl.concat(found)


@pytest.fixture(scope="module")
def house(nexmark: Any, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    # As in a pipeline that ends: otherwise processing time would cause batches without data endlessly.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    yield House(nexmark, spark, tmp_path_factory.mktemp("nexmark"))
    spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")


def plain(value: Any) -> Any:
    """Convert a value to the type that SQLite returns."""
    if isinstance(value, datetime):
        return round(value.replace(tzinfo=value.tzinfo or UTC).timestamp() * 1000)
    return round(float(value), 3) if isinstance(value, Decimal | float) else value


def added_up(changes: pl.DataFrame, columns: list[str]) -> Counter[Any]:
    rows = changes.select(columns).rows()
    weights = changes["_change"].to_list() if "_change" in changes.columns else [1] * len(rows)
    found: Counter[Any] = Counter()
    for row, weight in zip(rows, weights, strict=True):
        found[tuple(map(plain, row))] += weight
    return Counter({row: weight for row, weight in found.items() if weight})


@pytest.mark.parametrize("name", [f"q{number}" for number in range(23)])
def test_each_query_gives_the_result_of_sql(house: House, name: str) -> None:
    columns, sql = EXPECTED[name]
    rows = house.db.execute(sql, {"watermark": house.watermark} if ":watermark" in sql else {})
    expected = Counter(tuple(map(plain, row)) for row in rows)
    assert expected
    changes = house.run(name)
    found = added_up(changes, columns.split())
    if name == "q12":  # The windows of these rows depend on the clock.
        summed: Counter[Any] = Counter()
        for (bidder, bids), weight in found.items():
            summed[bidder] += bids * weight
        found = Counter(summed.items())
    assert found == expected


def test_events_depend_only_on_their_numbers(nexmark: Any) -> None:
    make = nexmark.events.make_events
    assert make(500, seed=3).bids.equals(make(500, seed=3).bids)
    assert not make(500, seed=3).bids.equals(make(500, seed=4).bids)
    first, then = make(5000), make(5000, first=5000)
    assert [frame.height for frame in (first.persons, first.auctions, first.bids)] == [100, 300, 4600]
    ids = pl.concat([first.auctions, then.auctions])["id"]
    assert ids.to_list() == list(range(1000, 1600))
    assert pl.concat([first.persons, then.persons])["id"].to_list() == list(range(1000, 1200))
    # Half of all bids are for a hot auction, and nearly all for one that is open or will be soon.
    assert 0.45 < (first.bids["auction"] % 100 == 0).mean() < 0.6
    assert first.bids["auction"].is_between(1000, 1310).all()
    assert first.bids["date_time"].is_sorted()


def test_the_app_has_all_queries(nexmark: Any) -> None:
    app = load_app(FOLDER / "app.py")
    assert [query.name for query in app.queries] == [f"q{number}" for number in range(23)]
    assert {view.name for view in app.views} == set(nexmark.queries.KEYS)
