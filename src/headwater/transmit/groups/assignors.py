"""The two assignors of KIP-848, by the names that clients request.

`range` gives each member adjacent partitions, the same numbers of every topic, so that topics can be joined.
`uniform` gives all members the same number of partitions, and moves as few as possible.
"""

from collections.abc import Callable, Mapping

from headwater.record import TopicPartition
from headwater.transmit.groups.heartbeats import Assignment

Assignor = Callable[
    [Mapping[str, frozenset[str]], Mapping[str, int], Mapping[str, Assignment]], dict[str, Assignment]
]
"""Takes the topics of each member, the number of partitions of each topic, and the previous assignment."""

RANGE, UNIFORM = "range", "uniform"


def assign_range(
    members: Mapping[str, frozenset[str]], partitions: Mapping[str, int], before: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Split each topic into one range per member; the first members get the remaining partitions."""
    assigned: dict[str, set[TopicPartition]] = {member: set() for member in members}
    for topic, count in partitions.items():
        subscribers = sorted(member for member, topics in members.items() if topic in topics)
        start = 0
        for n, member in enumerate(subscribers):
            size = count // len(subscribers) + (n < count % len(subscribers))
            assigned[member] |= {TopicPartition(topic, p) for p in range(start, start + size)}
            start += size
    return {member: frozenset(tps) for member, tps in assigned.items()}


def assign_uniform(
    members: Mapping[str, frozenset[str]], partitions: Mapping[str, int], before: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Keep what members have, assign free partitions, then move single ones from the most to the least loaded."""
    assigned: dict[str, set[TopicPartition]] = {}
    free = {TopicPartition(topic, p) for topic, count in partitions.items() for p in range(count)}
    for member, topics in sorted(members.items()):
        assigned[member] = {tp for tp in before.get(member, ()) if tp.topic in topics and tp in free}
        free -= assigned[member]

    def least_loaded(topic: str) -> str | None:
        subscribers = (member for member, topics in members.items() if topic in topics)
        return min(subscribers, key=lambda member: (len(assigned[member]), member), default=None)

    for tp in sorted(free):
        chosen = least_loaded(tp.topic)
        if chosen is not None:
            assigned[chosen].add(tp)
    # Each move reduces the sum of squares of the loads, so this terminates.
    while (move := _move(assigned, members)) is not None:
        tp, giver, taker = move
        assigned[giver].remove(tp)
        assigned[taker].add(tp)
    return {member: frozenset(tps) for member, tps in assigned.items()}


def _move(
    assigned: Mapping[str, set[TopicPartition]], members: Mapping[str, frozenset[str]]
) -> tuple[TopicPartition, str, str] | None:
    order = sorted(assigned, key=lambda member: (len(assigned[member]), member))
    for giver in reversed(order):
        for taker in order:
            if len(assigned[giver]) - len(assigned[taker]) < 2:
                break
            for tp in sorted(assigned[giver], reverse=True):
                if tp.topic in members[taker]:
                    return tp, giver, taker
    return None


ASSIGNORS: dict[str, Assignor] = {UNIFORM: assign_uniform, RANGE: assign_range}
