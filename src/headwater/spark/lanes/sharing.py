"""Finds the queries of a batch that share placeholders, because these stand for the same rows in all of them.

Queries read the same rows of a topic unless one of them leaves records out. The output of an operator is the same
if the states are: if both queries have had the same batches since they were new, and the same watermarks.
"""

from collections.abc import Hashable, Mapping, Sequence

from headwater.spark.lanes.member import Member
from headwater.spark.lanes.topic_rows import TopicRows

Known = dict[int, Hashable]


def in_groups(
    members: Sequence[Member], rows: Mapping[str, TopicRows], clock_ms: Mapping[str, int]
) -> list[list[Member]]:
    """Divide queries into groups; in each, a placeholder stands for the same rows in all queries that have it."""
    groups: list[tuple[list[Member], Known]] = []
    for member in members:
        known = _known(member, rows, clock_ms[member.name])
        for group, others in groups:
            if all(others.get(leaf, value) == value for leaf, value in known.items()):
                group.append(member)
                others |= known
                break
        else:
            groups.append(([member], known))
    return [group for group, _ in groups]


def _known(member: Member, rows: Mapping[str, TopicRows], clock_ms: int) -> Known:
    """Return for each placeholder of a query a value that determines its rows."""
    if member.blueprint is None:
        return {}
    known: Known = {}
    for leaf, topic in member.blueprint.topics.items():
        found = rows.get(topic.name)
        known[leaf] = None if found is None else found.part(member.left_out[topic.name])
    for operator in member.blueprint.operators:
        notes = member.notes.get(operator.name, {})
        clocks = [repr(member.clocks[name].notes()) for name in sorted(operator.topics)]
        known[operator.leaf] = (repr(notes), *clocks, clock_ms)
    return known
