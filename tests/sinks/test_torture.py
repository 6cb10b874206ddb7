"""A seed of `./dev torture --sink postgres,topic`: a worker, the broker or the database die under one app."""

import pytest

from torture.sinks import run


@pytest.mark.filterwarnings("default")
def test_nothing_is_lost_and_nothing_twice() -> None:
    """In the end the driver is killed too, and another run goes on."""
    report = run(1, ["postgres", "topic"], kills=2, victims=("worker", "broker", "database"))
    assert report.kills.total() == 2
    assert report.windows > 0
