"""A short run of `./dev torture --sink`: things are killed under way, and nothing is lost and nothing twice.

The driver is killed once more before the last run. Other seeds and sinks, more kills, those of the JVM and those
on a cluster are left to the command: each takes starts of Spark.
"""

from torture import sinks


def test_nothing_is_lost_and_nothing_twice() -> None:
    report = sinks.run(0, ["sqlite", "postgres"], kills=1, victims=["worker", "broker", "database"])
    assert report.kills.total() == 1
    assert report.windows > 0
