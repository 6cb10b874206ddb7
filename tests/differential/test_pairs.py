"""Every ordered pair of operators gives the result of SQL: in the simulator, in batch, and in an app on Spark."""

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
    "join, left -> aggregate",
    "join within, left -> session",
    "table -> sliding",
    "union -> join as of, left",
    "correct_clocks -> tumbling, accumulating",
    "side input -> global",
)
"""A few pairs; `./dev differential --pairs` runs all of them on Spark."""


def selected() -> list[Query]:
    return [query for query in pairs() if query.name in ON_SPARK]


@pytest.mark.parametrize("first", EXAMPLES)
def test_every_pair_in_the_simulator(first: str) -> None:
    problems = {query.name: found for query in pairs(first) if (found := check_simulated(query))}
    assert problems == {}


def test_most_pairs_are_not_refused() -> None:
    """Otherwise the tests of pairs would show little."""
    refused = [query.name for query in pairs() if query.refusal]
    assert len(refused) < len(EXAMPLES) ** 2 / 5


@pytest.mark.parametrize("query", selected(), ids=lambda query: query.name)
def test_pairs_in_batch(spark: Any, query: Query) -> None:
    assert check_batch(spark, query) == []


def test_pairs_in_an_app(spark: Any, tmp_path: Path) -> None:
    queries = selected()
    assert len(queries) == len(ON_SPARK)
    setting = Setting(time_zone="Europe/Berlin", shuffle_partitions=3, topic_partitions=2)
    assert check_app(spark, queries, tmp_path, setting) == []
