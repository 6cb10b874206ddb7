"""Short runs of `./dev torture windows`, and of `./dev torture sinks` on a cluster: all adds up."""

from torture import sinks, windows


def test_changes_add_up_though_the_driver_is_killed() -> None:
    report = windows.run(13, batches_max=8)
    assert report.crashes >= 1
    assert report.panes > 0


def test_nothing_is_lost_and_nothing_twice_on_a_cluster() -> None:
    into = ["topic", "parquet", "delta"]
    report = sinks.run(1, into, kills=1, ground=sinks.Ground(cluster=True), victims=["executor"])
    assert report.kills["executor"] == 1
    assert report.windows > 0
