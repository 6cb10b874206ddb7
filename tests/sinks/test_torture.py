"""A short run of `./dev torture --sink all`: a process is killed, and no row is lost or written twice.

The driver is killed before the last run, while windows retract refined results; the changes of a topic must add up
to the current rows. Other seeds, more kills, kills of the JVM and on a cluster, and `./dev torture windows` are
left to the command, because each starts Spark several times.
"""

from torture import sinks
from torture.subjects import SUBJECTS


def test_no_row_is_lost_or_written_twice() -> None:
    report = sinks.run(0, list(SUBJECTS), kills=1, victims=["worker", "broker", "database"])
    assert report.kills.total() == 1
    assert report.windows > 0
