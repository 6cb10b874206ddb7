"""Nexmark's queries, q0 to q22, each a function of the streams it needs.

Queries without state are plain PySpark. Queries with state emit changes: rows with `_change`, which is 1 for an
added row and -1 for a retracted one.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw

SIDE_INPUT = hw.SideInput("side_input.csv", schema="key long, value string")


def q0(bids: DataFrame) -> DataFrame:
    """Pass through."""
    return bids.select("auction", "bidder", "price", "date_time", "extra")


def q1(bids: DataFrame) -> DataFrame:
    """Prices in euros."""
    return bids.selectExpr("auction", "bidder", "0.908 * price as price", "date_time", "extra")


def q2(bids: DataFrame) -> DataFrame:
    """Bids for every 123rd auction."""
    return bids.where("auction % 123 = 0").select("auction", "price")


def q3(auctions: DataFrame, persons: DataFrame) -> DataFrame:
    """Sellers in Oregon, Idaho or California with auctions in category 10."""
    offered = auctions.where("category = 10").select("id", "seller")
    local = persons.where("state in ('OR', 'ID', 'CA')").selectExpr("id as person", "name", "city", "state")
    found = hw.join(offered, local, on={"seller": "person"})
    return found.select("name", "city", "state", "id", "_change")


def _bids_in_time(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Join each bid with its auction, if it was placed while the auction was open."""
    opened = auctions.selectExpr("id", "seller", "category", "date_time as opened", "expires")
    placed = bids.select("auction", "bidder", "price", "date_time")
    return hw.join(opened, placed, on={"id": "auction"}).where("date_time between opened and expires")


def q4(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """The mean winning price of each category."""
    final = hw.aggregate(_bids_in_time(auctions, bids), what={"final": hw.max("price")}, by=["id", "category"])
    return hw.aggregate(final, what={"mean": hw.mean("final")}, by="category")


def q5(bids: DataFrame) -> DataFrame:
    """The auctions with the most bids in the last ten seconds, every two seconds."""
    counts = bids.select("auction", "date_time").transform(
        hw.windowed(
            what={"bids": hw.count()},
            where=hw.Hopping("10 seconds", "2 seconds"),
            when=hw.AfterWatermark(),
            by=["auction"],
        )
    )
    # One window ends every two seconds, so the counts of one tumbling window belong to the same hopping window.
    ended = counts.withColumn("one", F.struct("auction", "bids", counts["window.start"].alias("start")))
    together = {"all": hw.collect("one"), "most": hw.max("bids")}
    each = ended.transform(hw.windowed(what=together, where=hw.Tumbling("2 seconds"), when=hw.AfterWatermark()))
    return (
        each.select(F.explode("all").alias("one"), "most", "_change")
        .where("one.bids = most")
        .select("one.*", "_change")
    )


def q6(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """The mean price of each seller's last ten sales, updated with each sale."""
    sold = hw.top(_bids_in_time(auctions, bids), 1, order=["price desc", "date_time"], by="id")
    return hw.rolling(
        sold.select("seller", "id", "price", "date_time", "_change"),
        last=10,
        what={"mean": hw.mean("price")},
        by="seller",
        order=["date_time", "id"],
    )


def q7(bids: DataFrame) -> DataFrame:
    """The highest bid, or bids, of every ten seconds."""
    highest = bids.select("price", "date_time").transform(
        hw.windowed(what={"highest": hw.max("price")}, where=hw.Tumbling("10 seconds"), when=hw.AfterWatermark())
    )
    found = hw.join(
        bids.select("auction", "bidder", "price", "date_time", "extra"),
        highest.select("highest", "event_time", "_change", "_watermark"),
        on={"price": "highest"},
        within="10 seconds",
    )
    return found.select("auction", "price", "bidder", "date_time", "extra", "_change")


def q8(persons: DataFrame, auctions: DataFrame) -> DataFrame:
    """Persons who opened an auction in the same ten-second window in which they registered."""
    start = F.timestamp_seconds(F.floor(F.unix_seconds("date_time") / 10) * 10)
    new = persons.withColumn("start", start).select("id", "name", "start", "date_time")
    sellers = auctions.withColumn("start", start).select("seller", "start", "date_time")
    on = {"id": "seller", "start": "start"}
    return hw.join(new, sellers, on=on, how="semi", within=("-10 seconds", "10 seconds"))


def q9(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """The winning bid of each auction."""
    return hw.top(_bids_in_time(auctions, bids), 1, order=["price desc", "date_time"], by="id")


def q10(bids: DataFrame) -> DataFrame:
    """All bids, for files by day and minute."""
    day, minute = F.date_format("date_time", "yyyy-MM-dd"), F.date_format("date_time", "HH:mm")
    return bids.select("auction", "bidder", "price", "date_time", "extra", day.alias("dt"), minute.alias("hm"))


def q11(bids: DataFrame) -> DataFrame:
    """The number of bids of each bidder in each session."""
    return bids.select("bidder", "date_time").transform(
        hw.windowed(
            what={"bids": hw.count()}, where=hw.Session("10 seconds"), when=hw.AfterWatermark(), by=["bidder"]
        )
    )


def q12(bids: DataFrame) -> DataFrame:
    """The number of bids of each bidder in ten seconds of processing time, emitted with every batch."""
    return bids.select("bidder", "date_time").transform(
        hw.windowed(
            what={"bids": hw.count()},
            where=hw.Tumbling("10 seconds", by=hw.PROCESSING_TIME),
            when=hw.EveryBatch(),
            how=hw.RETRACTING,
            by=["bidder"],
        )
    )


def q13(bids: DataFrame, values: hw.SideInput = SIDE_INPUT) -> DataFrame:
    """Bids joined with the current content of a file."""
    keyed = bids.selectExpr("auction", "bidder", "price", "date_time", "auction % 10000 as key")
    return hw.join(keyed, values, on="key", as_of=hw.PROCESSING_TIME)


def q14(bids: DataFrame) -> DataFrame:
    """Bids of a medium price, with the time of day and the number of letters c in `extra`."""
    return bids.where("0.908 * price > 1000000 and 0.908 * price < 50000000").selectExpr(
        "auction",
        "bidder",
        "0.908 * price as price",
        "case when hour(date_time) between 8 and 18 then 'dayTime' "
        "when hour(date_time) <= 6 or hour(date_time) >= 20 then 'nightTime' else 'otherTime' end as time_type",
        "date_time",
        "extra",
        "length(extra) - length(replace(extra, 'c', '')) as c_counts",
    )


RANKS = {"rank1": "price < 10000", "rank2": "price >= 10000 and price < 1000000", "rank3": "price >= 1000000"}


def _statistics(bids: DataFrame, by: list[str], more: dict[str, object]) -> DataFrame:
    """Count the bids of each group, in total and by rank of price, and compute the aggregates in `more`."""
    what: dict[str, object] = {"total_bids": hw.count()}
    rows = bids.withColumn("day", F.date_format("date_time", "yyyy-MM-dd"))
    for rank, condition in RANKS.items():
        rows = rows.withColumn(f"{rank}_price", F.expr(f"if({condition}, price, null)"))
        what[f"{rank}_bids"] = hw.count(f"{rank}_price")
    return hw.aggregate(rows, what={**what, **more}, by=by)


def _distinct_counts(bids: DataFrame) -> tuple[DataFrame, dict[str, object]]:
    what: dict[str, object] = {}
    for name in ("bidder", "auction"):
        what[f"total_{name}s"] = hw.distinct(name)
        for rank, condition in RANKS.items():
            bids = bids.withColumn(f"{rank}_{name}", F.expr(f"if({condition}, {name}, null)"))
            what[f"{rank}_{name}s"] = hw.distinct(f"{rank}_{name}")
    return bids, what


def q15(bids: DataFrame) -> DataFrame:
    """The number of bids, bidders and auctions of each day, in total and by rank of price."""
    bids, what = _distinct_counts(bids)
    return _statistics(bids, ["day"], what)


def q16(bids: DataFrame) -> DataFrame:
    """The same for each channel, and when it was last used."""
    bids, what = _distinct_counts(bids.withColumn("at", F.date_format("date_time", "HH:mm")))
    return _statistics(bids, ["channel", "day"], {"minute": hw.max("at"), **what})


def q17(bids: DataFrame) -> DataFrame:
    """The number of bids, and price statistics, of each auction and day."""
    prices = {"least": hw.min("price"), "most": hw.max("price"), "mean": hw.mean("price"), "sum": hw.sum("price")}
    return _statistics(bids, ["auction", "day"], prices)


def q18(bids: DataFrame) -> DataFrame:
    """The last bid of each bidder for each auction."""
    return hw.deduplicate(bids, key=["bidder", "auction"], keep="last")


def q19(bids: DataFrame) -> DataFrame:
    """The ten highest bids of each auction."""
    return hw.top(bids, 10, order="price desc", by="auction", rank="rank_number")


def q20(bids: DataFrame, auctions: DataFrame) -> DataFrame:
    """Bids joined with their auction, in category 10."""
    offered = auctions.where("category = 10").withColumnsRenamed({"date_time": "opened", "extra": "auction_extra"})
    return hw.join(bids, offered, on={"auction": "id"})


def q21(bids: DataFrame) -> DataFrame:
    """Bids with the id of their channel, taken from its name or from the URL."""
    known = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    by_name = F.create_map(*(F.lit(text) for pair in known.items() for text in pair))[F.lower("channel")]
    by_address = F.nullif(F.regexp_extract("url", "(&|^)channel_id=([^&]*)", 2), F.lit(""))
    rows = bids.select(
        "auction", "bidder", "price", "channel", F.coalesce(by_name, by_address).alias("channel_id")
    )
    return rows.where("channel_id is not null")


def q22(bids: DataFrame) -> DataFrame:
    """The first three folders of each bid's URL."""
    folders = [f"split_part(url, '/', {number + 3}) as dir{number}" for number in (1, 2, 3)]
    return bids.selectExpr("auction", "bidder", "price", "channel", *folders)


_BID = ["auction", "bidder", "price", "date_time"]
KEYS = {
    "q3": ["id"],
    "q4": ["category"],
    "q5": ["start", "auction"],
    "q6": ["id"],
    "q7": _BID,
    "q8": ["id"],
    "q9": ["id"],
    "q11": ["bidder", "window"],
    "q12": ["bidder", "window"],
    "q13": _BID,
    "q15": ["day"],
    "q16": ["channel", "day"],
    "q17": ["auction", "day"],
    "q18": ["bidder", "auction"],
    "q19": ["auction", "rank_number"],
    "q20": _BID,
}
"""Key columns of the queries that emit changes; the results of the other queries are only appended."""

QUERIES = {f"q{number}": globals()[f"q{number}"] for number in range(23)}
