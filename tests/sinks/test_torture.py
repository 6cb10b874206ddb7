"""A seed of `./dev torture sinks` for each sink: worker, broker and database die, and in the end the driver."""

import pytest

from torture.sinks import run
from torture.subjects import SUBJECTS


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("sink", SUBJECTS)
def test_nothing_is_lost_and_nothing_twice(sink: str) -> None:
    report = run(1, sink, kills=2, victims=("worker", "broker", "database"))
    assert report.kills.total() == 2
    assert report.windows > 0
