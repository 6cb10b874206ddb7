"""A short run of `./dev torture windows`: a driver is killed while windows fire, and the changes add up."""

from torture import windows


def test_changes_add_up_though_the_driver_is_killed() -> None:
    report = windows.run(13, batches_max=8)
    assert report.crashes >= 1
    assert report.panes > 0
