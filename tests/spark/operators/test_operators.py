"""`hw.windowed` in batch, compared with a computation in plain Python."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.errors import InvalidError
from headwater.spark.source.decoding import EVENT_TIME_KEY

START = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
events = st.lists(
    st.tuples(
        st.sampled_from(["tea", "coffee", None]),
        st.none() | st.integers(-1000, 1000).map(lambda n: n / 4),  # sums of quarters are exact in any order
        st.integers(-90_000_000, 90_000_000),
    ),
    min_size=1,
    max_size=60,
)


def frame_of(spark: Any, some: list[tuple[str | None, float | None, int]]) -> Any:
    rows = [(product, amount, START + timedelta(microseconds=at)) for product, amount, at in some]
    frame = spark.createDataFrame(rows, "product string, amount double, at timestamp")
    return frame.withMetadata("at", {EVENT_TIME_KEY: True})


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events)
def test_tumbling_windows_equal_plain_python(spark: Any, some: list[tuple[str | None, float | None, int]]) -> None:
    expected: dict[Any, list[float | None]] = defaultdict(list)
    for product, amount, at in some:
        moment = START + timedelta(microseconds=at)
        expected[product, moment - (moment - EPOCH) % timedelta(seconds=10)].append(amount)
    result = frame_of(spark, some).transform(
        hw.windowed(
            what={
                "rows": hw.count(),
                "amounts": hw.count("amount"),
                "total": hw.sum("amount"),
                "least": hw.min("amount"),
                "most": hw.max("amount"),
            },
            where=hw.Tumbling("10 seconds"),
            by=["product"],
        )
    )
    assert result.columns == ["product", "window", "rows", "amounts", "total", "least", "most"]
    found = {
        (row.product, row.start): tuple(row)[2:]
        for row in result.selectExpr(
            "product", "timestampdiff(MICROSECOND, timestamp'1970-01-01 00:00:00Z', window.start) as start",
            "rows", "amounts", "total", "least", "most",
        ).collect()
    }  # fmt: skip
    for (product, start), amounts in expected.items():
        known = [a for a in amounts if a is not None]
        micros = (start - EPOCH) // timedelta(microseconds=1)
        summary = (sum(known), min(known), max(known)) if known else (None, None, None)
        assert found.pop((product, micros)) == (len(amounts), len(known), *summary)
    assert found == {}


@pytest.mark.parametrize(
    "where",
    [
        hw.Hopping("10 seconds", "4 seconds"),
        hw.Hopping("10 seconds", "5 seconds", offset="1 second"),
        hw.Tumbling("10 seconds", offset="3 seconds"),
        hw.Global(),
    ],
)
def test_sparks_own_windows_equal_those_of_the_kernel(spark: Any, where: Any) -> None:
    some = [("tea", 1.0, 0), ("tea", 2.5, 4_000_000), ("cocoa", None, 9_999_999), ("tea", 4.0, 61_000_000)]
    what = {"n": hw.count(), "total": hw.sum("amount"), "mean": hw.mean("amount")}
    rows = frame_of(spark, some)
    plain = rows.transform(hw.windowed(what=what, where=where, by=["product"]))
    assert plain.columns == ["product", "window", "n", "total", "mean"]
    panes = rows.transform(hw.windowed(what=what, where=where, by=["product"], how=hw.ACCUMULATING))
    assert set(plain.collect()) == set(panes.select(*plain.columns).collect())


def test_any_aggregate_of_spark_in_windows_that_spark_computes(spark: Any) -> None:
    rows = frame_of(spark, [("tea", 1.0, 0), ("tea", 3.0, 1_000_000), ("tea", 100.0, 60_000_000)])
    what = {"sd": F.stddev_pop("amount"), "n": hw.count(), "spread": F.max("amount") - F.min("amount")}
    found = rows.transform(hw.windowed(what=what, where=hw.Tumbling("1 minute"), by=["product"]))
    assert {tuple(row) for row in found.select("sd", "n", "spread").collect()} == {(1.0, 2, 2.0), (0.0, 1, 0.0)}
    with pytest.raises(InvalidError, match="'sd' is a Spark Column, and with `when`, `how` or `lateness` a w"):
        hw.windowed(what=what, where=hw.Tumbling("1 minute"), when=hw.AfterWatermark())
    with pytest.raises(InvalidError, match=r"Spark has no windows such as Session\(gap='1 minute'"):
        hw.windowed(what=what, where=hw.Session("1 minute"))
    with pytest.raises(
        InvalidError, match="'best' cannot be computed by Spark together with it; use Headwater's aggregates"
    ):
        hw.windowed(what={**what, "best": hw.top_k("product", 3)}, where=hw.Tumbling("1 minute"))


@pytest.mark.parametrize("size", ["", "a minute", "1 fortnight", "0 seconds", "1 minute and a bit", "-1 minute"])
def test_wrong_duration_is_refused(size: str) -> None:
    with pytest.raises(InvalidError, match="duration"):
        hw.Tumbling(size)


def test_windowed_checks_its_arguments() -> None:
    with pytest.raises(InvalidError, match="`what` is empty"):
        hw.windowed(what={}, where=hw.Tumbling("1 minute"))
    with pytest.raises(InvalidError, match="would have two columns 'product'"):
        hw.windowed(what={"product": hw.count()}, where=hw.Tumbling("1 minute"), by=["product"])
