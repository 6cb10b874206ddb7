"""A seed of `./dev torture --sink all`: worker, broker and database die under one app that writes everywhere."""

import pytest

from torture.sinks import run
from torture.subjects import SUBJECTS


@pytest.mark.filterwarnings("default")
def test_nothing_is_lost_and_nothing_twice() -> None:
    """In the end the driver is killed too, and another run goes on."""
    report = run(1, list(SUBJECTS), kills=2, victims=("worker", "broker", "database"))
    assert report.kills.total() == 2
    assert report.windows > 0
