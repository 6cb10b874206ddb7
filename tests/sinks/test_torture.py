"""Short runs of `./dev torture --sink`: things are killed under way, and nothing is lost and nothing twice."""

import pytest

from torture import sinks


@pytest.mark.parametrize(("seed", "places"), [(0, ("sqlite", "postgres")), (1, ("topic", "parquet", "delta"))])
def test_nothing_is_lost_and_nothing_twice(seed: int, places: tuple[str, ...]) -> None:
    report = sinks.run(seed, places, kills=2)
    assert report.kills.total() == 2
    assert report.windows > 0
