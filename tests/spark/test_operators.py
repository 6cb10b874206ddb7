"""What `windowed` computes, in batch, against a computation in plain Python."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.errors import InvalidError
from headwater.spark.rows import EVENT_TIME_KEY

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


@pytest.mark.parametrize("size", ["", "a minute", "1 fortnight", "0 seconds", "1 minute and a bit", "-1 minute"])
def test_wrong_duration_is_refused(size: str) -> None:
    with pytest.raises(InvalidError, match="duration"):
        hw.Tumbling(size)


def test_windowed_checks_what_it_is_given() -> None:
    with pytest.raises(InvalidError, match="nothing to compute"):
        hw.windowed(what={}, where=hw.Tumbling("1 minute"))
    with pytest.raises(InvalidError, match="product would be there twice"):
        hw.windowed(what={"product": hw.count()}, where=hw.Tumbling("1 minute"), by=["product"])
