"""Pairs of operators give the result of SQL: in the simulator, in batch, and in an app on Spark.

`./dev differential --pairs` runs all of them on all three. Here each operator is the first and the second of some.
"""

from pathlib import Path
from typing import Any

import pytest

from differential.check import check_app, check_batch, check_simulated
from differential.on_spark import Setting
from differential.queries import EXAMPLES, Query, pairs

ON_SPARK = (
    "tumbling, retracting -> top",
    "tumbling, retracting -> deduplicate, first",
    "tumbling, native -> top",
    "tumbling, discarding -> rolling",
    "tumbling, discarding -> join now",
    "join, left -> aggregate",
    "join within, left -> session",
    "table -> sliding",
    "union -> join as of, left",
    "correct_clocks -> tumbling, accumulating",
    "side input -> global",
    "plain -> top of a window",
    "join, left -> rolling over windows",
    "union -> aggregate by window",
    "table -> last window",
)
"""The findings of users, and every kind of operator."""

EVERY = 8
"""Of the pairs, one in eight runs in the simulator."""


def selected() -> list[Query]:
    return [query for query in pairs() if query.name in ON_SPARK]


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=list(EXAMPLES))
def test_pairs_in_the_simulator(number: int) -> None:
    queries = list(pairs(list(EXAMPLES)[number]))[number % EVERY :: EVERY]
    assert {query.name: found for query in queries if (found := check_simulated(query))} == {}


def test_most_pairs_are_not_refused() -> None:
    """Otherwise the tests of pairs would show little."""
    refused = [query.name for query in pairs() if query.refusal]
    assert len(refused) < len(EXAMPLES) ** 2 / 5


@pytest.mark.parametrize("query", selected()[::2], ids=lambda query: query.name)
def test_pairs_in_batch(spark: Any, query: Query) -> None:
    assert check_batch(spark, query) == []


def test_pairs_in_an_app(spark: Any, tmp_path: Path) -> None:
    queries = selected()
    assert len(queries) == len(ON_SPARK)
    setting = Setting(time_zone="Europe/Berlin", shuffle_partitions=3, topic_partitions=2)
    assert check_app(spark, queries, tmp_path, setting) == []
