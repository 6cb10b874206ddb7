"""Short runs of `./dev torture`: things are killed while windows fire and sinks write, and all adds up.

Of sinks the driver is killed once more before each last run. Other seeds, more kills, and those of the JVM are
left to the command: each takes starts of Spark.
"""

from torture import sinks, windows


def test_changes_add_up_though_the_driver_is_killed() -> None:
    report = windows.run(13, batches_max=8)
    assert report.crashes >= 1
    assert report.panes > 0


def test_nothing_is_lost_and_nothing_twice() -> None:
    into = ("sqlite", "postgres", "parquet", "delta")
    report = sinks.run(0, into, kills=1, victims=["worker", "broker", "database"])
    assert report.kills.total() == 1
    assert report.windows > 0


def test_nothing_is_lost_and_nothing_twice_on_a_cluster() -> None:
    report = sinks.run(1, ["topic"], kills=1, ground=sinks.Ground(cluster=True), victims=["executor"])
    assert report.kills["executor"] == 1
    assert report.windows > 0
