"""A short run of `./dev torture --sink`: things are killed under way, and nothing is lost and nothing twice.

The driver is killed once more before the last run. Other seeds, more kills, and those of the JVM are left to the
command: each takes starts of Spark. The other sinks are in tests/spark, on a cluster.
"""

from torture import sinks


def test_nothing_is_lost_and_nothing_twice() -> None:
    into = ["sqlite", "postgres"]
    report = sinks.run(0, into, kills=1, victims=["worker", "broker", "database"])
    assert report.kills.total() == 1
    assert report.windows > 0
