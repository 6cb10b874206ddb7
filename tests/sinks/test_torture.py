"""A short run of `./dev torture --sink all`: something is killed under way, and nothing is lost and nothing twice.

The driver is killed before the last run, while windows retract what they refine; the sum of a topic's changes must
be what stands. Other seeds, more kills, those of the JVM and those on a cluster are left to the command, and
`./dev torture windows` too: each takes starts of Spark.
"""

from torture import sinks
from torture.subjects import SUBJECTS


def test_nothing_is_lost_and_nothing_twice() -> None:
    report = sinks.run(0, list(SUBJECTS), kills=1, victims=["worker", "broker", "database"])
    assert report.kills.total() == 1
    assert report.windows > 0
