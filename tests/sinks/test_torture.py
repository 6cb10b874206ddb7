"""Short runs of `./dev torture --sink`: things are killed under way, and nothing is lost and nothing twice.

The driver is killed once, before the last run; the JVM, each time a start of Spark, is left to the command.
"""

import pytest

from torture import sinks

QUICKLY_BACK = ("worker", "broker", "database")


@pytest.mark.parametrize(("seed", "places"), [(0, ("sqlite", "postgres")), (1, ("topic", "parquet", "delta"))])
def test_nothing_is_lost_and_nothing_twice(seed: int, places: tuple[str, ...]) -> None:
    report = sinks.run(seed, places, kills=1, victims=QUICKLY_BACK)
    assert report.kills.total() == 1
    assert report.windows > 0
