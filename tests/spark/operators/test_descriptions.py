"""The descriptions of operators, which are kept with a query's checkpoint.

A changed description stops an app from continuing after an upgrade, so these must stay as they are.
"""

from collections.abc import Callable
from typing import Any

import pytest

import headwater as hw
from headwater.spark.definition.definition import _plain
from headwater.spark.kernels.attach import INPUTS
from headwater.spark.kernels.query_context import query_context
from headwater.spark.source.decoding import EVENT_TIME_KEY

COUNT = {"n": "Aggregate(count)"}


def described(spark: Any, function: Callable[[Any], Any]) -> dict[str, Any]:
    rows = spark.createDataFrame([], "id long, city string, at timestamp, sent timestamp")
    with query_context(None) as context:
        function(rows.withMetadata("at", {EVENT_TIME_KEY: True}))
    (description,) = context.descriptions
    assert all(each.columns for each in description.pop(INPUTS))
    plain: dict[str, Any] = _plain(description)
    return plain


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            hw.windowed(what={"n": hw.count()}, where=hw.Tumbling("1 minute"), by=["city"], lateness="1 hour"),
            {
                "name": "windowed",
                "what": COUNT,
                "where": "Tumbling('1 minute')",
                "when": "Default()",
                "how": "accumulating",
                "by": ["city"],
                "lateness": "1 hour",
            },
        ),
        (
            lambda rows: hw.table(rows, key="id", position="at"),
            {"name": "table", "by": ["id"], "position": ["at"], "deleted": None, "lateness": None},
        ),
        (
            lambda rows: hw.aggregate(rows, what={"n": hw.count()}, by="city"),
            {"name": "aggregate", "by": ["city"], "what": COUNT},
        ),
        (
            lambda rows: hw.top(rows, 2, order="id desc", by="city"),
            {"name": "top", "by": ["city"], "n": 2, "order": ["id desc"], "rank": None},
        ),
        (
            lambda rows: hw.deduplicate(rows, key="id"),
            {"name": "deduplicate", "by": ["id"], "keep": "first", "order": ["at nulls first"]},
        ),
        (
            lambda rows: hw.rolling(rows, last=3, what={"n": hw.count()}, by="city"),
            {
                "name": "rolling",
                "by": ["city"],
                "last": 3,
                "what": COUNT,
                "order": ["at nulls first"],
                "lateness": None,
            },
        ),
        (
            lambda rows: hw.join(rows, rows.selectExpr("id", "city as town"), on="id", how="left"),
            {"name": "join", "on": {"id": "id"}, "how": "left", "within": None, "as of": None, "lateness": None},
        ),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_a_description_names_the_arguments_and_the_state(
    spark: Any, function: Callable[[Any], Any], expected: dict[str, Any]
) -> None:
    found = described(spark, function)
    state = found.pop("state")
    assert found == expected
    assert state
    assert all(schema.startswith("{'") for schema in state.values())


def test_the_description_of_clocks_has_no_state(spark: Any) -> None:
    clocks = hw.correct_clocks(device="id", sent="sent", received="at")
    assert described(spark, clocks) == {"name": "correct_clocks", "by": ["id"], "memory": "1 hour"}
