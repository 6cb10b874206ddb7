"""Random queries give the result of SQL over the final rows; `./dev differential` runs many more."""

import random
from pathlib import Path
from typing import Any

import pytest

from differential.check import check_app, check_batch, check_simulated
from differential.on_spark import Setting
from differential.overflow import MESSAGE, may_overflow
from differential.queries import random_queries, random_query
from differential.run import SPARK_BASES
from differential.simulated import SimulatedQuery
from headwater.errors import HeadwaterError

SEEDS = 100
OVERFLOWING = (983, 6578, 6773, 9565)
"""Seeds in which a sum overflows before the end, and the final result fits."""
ON_SPARK_SEED = 3
"""A seed whose queries retract rows and have unusual values."""


@pytest.mark.parametrize("first", range(0, SEEDS, 25))
def test_random_queries_in_the_simulator(first: int) -> None:
    problems = {seed: found for seed in range(first, first + 25) if (found := check_simulated(random_query(seed)))}
    assert problems == {}


@pytest.mark.parametrize("seed", OVERFLOWING)
def test_a_sum_may_overflow_before_the_end(seed: int) -> None:
    query = random_query(seed)
    assert check_simulated(query) == []
    with pytest.raises(HeadwaterError, match=MESSAGE):
        SimulatedQuery(query).run()
    assert may_overflow(query)


def test_random_queries_on_spark(spark: Any, tmp_path: Path) -> None:
    queries = random_queries(ON_SPARK_SEED, 5, SPARK_BASES)
    problems = {query.name: found for query in queries if (found := check_batch(spark, query))}
    assert problems == {}
    assert check_app(spark, queries, tmp_path, Setting.random(random.Random(ON_SPARK_SEED))) == []
