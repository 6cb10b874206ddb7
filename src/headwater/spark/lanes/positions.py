"""Finds the queries of a lane that can run a batch together, by their positions."""

from collections.abc import Callable, Iterable, Sequence

from headwater.record import TopicPartition
from headwater.spark.lanes.member import Member
from headwater.spark.source.offsets import Offsets


def furthest(members: Iterable[Member]) -> Offsets:
    """Return the highest offset of each partition that one of the queries has read."""
    found: Offsets = {}
    for member in members:
        for tp, at in member.position.items():
            found[tp] = max(at, found.get(tp, at))
    return found


def interrupted(members: Sequence[Member]) -> list[Member]:
    """Return queries that have to finish the same batch; none if no query has to finish one."""
    return _together([member for member in members if member.unfinished is not None], _same_batch)


def behind(members: Sequence[Member], front: Offsets) -> list[Member]:
    """Return queries at the same position that have not read up to the front; none if all have."""
    found = [m for m in members if any(at < front.get(tp, at) for tp, at in m.position.items())]
    return _together(found, lambda one, other: _same(one.position, other.position))


def distance(one: Offsets, other: Offsets) -> int:
    """Return how many records of the topics of both only one has read."""
    return sum(abs(one.get(tp, 0) - other.get(tp, 0)) for tp in _of_both(one, other))


def _together(members: Sequence[Member], fits: Callable[[Member, Member], bool]) -> list[Member]:
    """Return the first query and all that fit it and each other."""
    found: list[Member] = []
    for member in members:
        if all(fits(member, other) for other in found):
            found.append(member)
    return found


def _same_batch(one: Member, other: Member) -> bool:
    assert one.unfinished is not None and other.unfinished is not None
    is_same = _same(one.position, other.position) and _same(one.unfinished.end, other.unfinished.end)
    return is_same and one.unfinished.clock_ms == other.unfinished.clock_ms


def _same(one: Offsets, other: Offsets) -> bool:
    """Return whether two positions are the same. A partition that only one of them knows is new to the other."""
    return all(one.get(tp) == other.get(tp) for tp in _of_both(one, other))


def _of_both(one: Offsets, other: Offsets) -> list[TopicPartition]:
    """Return the partitions of the topics that are in both."""
    topics = {tp.topic for tp in one} & {tp.topic for tp in other}
    return [tp for tp in one.keys() | other.keys() if tp.topic in topics]
