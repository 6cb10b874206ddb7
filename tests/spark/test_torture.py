"""Short runs of `./dev torture`: things are killed while windows fire and sinks write, and all adds up.

Of sinks the driver is killed once more before each last run. Other seeds, more kills, and those of the JVM are
left to the command: each takes starts of Spark.
"""

import pytest

from torture import sinks, windows


def test_changes_add_up_though_the_driver_is_killed() -> None:
    report = windows.run(13, batches_max=8)
    assert report.crashes >= 1
    assert report.panes > 0


@pytest.mark.parametrize(("seed", "into"), [(0, ("sqlite", "postgres")), (1, ("topic", "parquet", "delta"))])
def test_nothing_is_lost_and_nothing_twice(seed: int, into: tuple[str, ...]) -> None:
    report = sinks.run(seed, into, kills=1, victims=("worker", "broker", "database"))
    assert report.kills.total() == 1
    assert report.windows > 0
