"""Columns with unusual names: every operator gives the result that it gives for plain names, or refuses them."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater import process
from headwater.errors import InvalidError
from headwater.spark.kernels.column_names import RESERVED, check_names, with_metadata
from headwater.spark.kernels.watermark_sources import METADATA_COLUMNS
from headwater.spark.source.decoding import EVENT_TIME_KEY

START = datetime(2026, 1, 1, tzinfo=UTC)
PLAIN = ("k", "v", "at")
NASTY = [("k.`é x", "v.a b`", "at.at"), ("select", "2", "a, (b)")]
ROWS = [("tea", 1, 0), ("tea", 3, 70), ("mug", 2, 5), (None, 4, 5), ("tea", 1, 0)]

Make = Callable[[Any, str, str, str], Any]


def frame_of(spark: Any, k: str, v: str, at: str) -> Any:
    rows = [(key, value, START + timedelta(seconds=second)) for key, value, second in ROWS]
    frame = spark.createDataFrame(rows, "a string, b int, c timestamp").toDF(k, v, at)
    return with_metadata(frame, at, {EVENT_TIME_KEY: True})


def right(rows: Any, k: str, v: str, at: str) -> Any:
    return with_metadata(rows.toDF(k, f"{v}2", f"{at}2"), f"{at}2", {EVENT_TIME_KEY: True})


WINDOWED = {"where": hw.Tumbling("1 minute")}
OPERATORS: dict[str, Make] = {
    "windowed": lambda r, k, v, at: r.transform(
        hw.windowed(what={v: hw.sum(v), f"{v}3": hw.max(v)}, by=[k], how=hw.RETRACTING, **WINDOWED)
    ),
    "native": lambda r, k, v, at: r.transform(
        hw.windowed(what={v: hw.sum(v), f"{v}3": hw.count()}, by=[k], **WINDOWED)
    ),
    "global": lambda r, k, v, at: r.transform(hw.windowed(what={v: hw.sum(v)}, by=[k], where=hw.Global())),
    "table": lambda r, k, v, at: hw.table(r, key=k, position=v),
    "aggregate": lambda r, k, v, at: hw.aggregate(r, what={v: hw.sum(v), f"{v}3": hw.collect(v)}, by=[k]),
    "top": lambda r, k, v, at: hw.top(r, 1, order=f"{v} desc", by=k, rank=f"{v}3"),
    "deduplicate": lambda r, k, v, at: hw.deduplicate(r, key=k, keep="last"),
    "rolling": lambda r, k, v, at: hw.rolling(r, last=2, what={f"{v}3": hw.sum(v)}, by=k, lateness="1 hour"),
    "join": lambda r, k, v, at: hw.join(r, right(r, f"{k}4", v, at), on={k: f"{k}4"}, how="full"),
    "within": lambda r, k, v, at: hw.join(r, right(r, k, v, at), on=k, how="left", within="1 minute"),
    "as of": lambda r, k, v, at: hw.join(r, right(r, k, v, at), on=k, as_of=hw.EVENT_TIME),
    "now": lambda r, k, v, at: hw.join(r, right(r, k, v, at), on=k, as_of=hw.PROCESSING_TIME),
    "union": lambda r, k, v, at: hw.union(r, r),
    "correct_clocks": lambda r, k, v, at: r.withColumn(f"{at}2", F.lit(START)).transform(
        hw.correct_clocks(device=k, sent=f"{at}2", received=f"{at}2")
    ),
}


def values(rows: Any) -> list[str]:
    return sorted(str(tuple(row)) for row in rows.collect())


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_use_columns_by_their_exact_names(spark: Any, operator: str) -> None:
    make = OPERATORS[operator]
    expected = values(make(frame_of(spark, *PLAIN), *PLAIN))
    assert expected
    for names in NASTY:
        assert values(make(frame_of(spark, *names), *names)) == expected, names


@pytest.mark.parametrize("name", ["_row", "_Seen", "_key0", "_a1_sum", "_mark", "_CHANGE", "*", "^a$", "K"])
def test_names_that_operators_cannot_use_are_refused(spark: Any, name: str) -> None:
    rows = spark.sql("select 1 as k, 2 as K") if name == "K" else frame_of(spark, "k", name, "at")
    with pytest.raises(InvalidError, match="rename"):
        hw.deduplicate(rows)


def test_every_column_that_a_kernel_adds_is_reserved() -> None:
    names: set[str] = set()
    for file in Path(process.__file__).parent.rglob("*.py"):
        names |= set(re.findall(r"[\"'](_[a-z][a-z_0-9]*)[\"']", file.read_text()))
    assert {"_row", "_seen", "_time"} <= names
    assert {name for name in names if not RESERVED.fullmatch(name) and not name.startswith("__")} == set()
    check_names(["_id", "_rows_read", "at", *METADATA_COLUMNS])
