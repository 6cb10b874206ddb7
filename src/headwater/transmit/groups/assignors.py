"""Who reads which partition: the two ways of KIP-848, by the names that clients ask for them.

`range` gives each member neighbouring partitions, the same numbers of every topic, so that topics can be joined.
`uniform` gives each as many as the others, and lets everyone keep what it has as far as that goes.
"""

from collections.abc import Callable, Mapping

from headwater.record import TopicPartition

Assignment = frozenset[TopicPartition]
Assignor = Callable[
    [Mapping[str, frozenset[str]], Mapping[str, int], Mapping[str, Assignment]], dict[str, Assignment]
]
"""From the topics of each member, the partitions of each topic, and who had what before."""

RANGE, UNIFORM = "range", "uniform"


def assign_range(
    members: Mapping[str, frozenset[str]], partitions: Mapping[str, int], before: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Cut each topic into one piece for each member; what is left over goes to the first ones."""
    given: dict[str, set[TopicPartition]] = {member: set() for member in members}
    for topic, count in partitions.items():
        those = sorted(member for member, topics in members.items() if topic in topics)
        start = 0
        for n, member in enumerate(those):
            size = count // len(those) + (n < count % len(those))
            given[member] |= {TopicPartition(topic, p) for p in range(start, start + size)}
            start += size
    return {member: frozenset(some) for member, some in given.items()}


def assign_uniform(
    members: Mapping[str, frozenset[str]], partitions: Mapping[str, int], before: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Keep, fill up, then move one at a time from who has most to who has least."""
    given: dict[str, set[TopicPartition]] = {}
    free = {TopicPartition(topic, p) for topic, count in partitions.items() for p in range(count)}
    for member, topics in sorted(members.items()):
        given[member] = {tp for tp in before.get(member, ()) if tp.topic in topics and tp in free}
        free -= given[member]

    def least_loaded(topic: str) -> str | None:
        those = (member for member, topics in members.items() if topic in topics)
        return min(those, key=lambda member: (len(given[member]), member), default=None)

    for tp in sorted(free):
        chosen = least_loaded(tp.topic)
        if chosen is not None:
            given[chosen].add(tp)
    # Each move makes the sum of squares smaller, so this ends.
    while (move := _move(given, members)) is not None:
        tp, giver, taker = move
        given[giver].remove(tp)
        given[taker].add(tp)
    return {member: frozenset(some) for member, some in given.items()}


def _move(
    given: Mapping[str, set[TopicPartition]], members: Mapping[str, frozenset[str]]
) -> tuple[TopicPartition, str, str] | None:
    order = sorted(given, key=lambda member: (len(given[member]), member))
    for giver in reversed(order):
        for taker in order:
            if len(given[giver]) - len(given[taker]) < 2:
                break
            for tp in sorted(given[giver], reverse=True):
                if tp.topic in members[taker]:
                    return tp, giver, taker
    return None


ASSIGNORS: dict[str, Assignor] = {UNIFORM: assign_uniform, RANGE: assign_range}
