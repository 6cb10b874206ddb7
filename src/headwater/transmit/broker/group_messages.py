"""Response fields that consumer groups and share groups have in common."""

from typing import Any

from headwater.transmit.groups.consumer import Assignment, ConsumerReply
from headwater.transmit.groups.share.members import ShareReply
from headwater.transmit.topics.topics import Topics
from headwater.transmit.wire.codes import Code


def heartbeat_error(shape: Any, code: Code, interval_ms: int) -> Any:
    """Return a heartbeat response with an error."""
    return shape(error_code=code, error_message=code.name, member_epoch=0, heartbeat_interval_ms=interval_ms)


def heartbeat_response(topics: Topics, shape: Any, reply: ConsumerReply | ShareReply, interval_ms: int) -> Any:
    """Return a heartbeat response with the member's epoch, and its assignment if that has changed."""
    assignment = None
    if reply.assignment is not None:
        assigned = topic_partitions(topics, reply.assignment, shape.Assignment.TopicPartitions)
        assignment = shape.Assignment(topic_partitions=assigned)
    return shape(
        error_code=Code.NONE,
        member_id=reply.member_id,
        member_epoch=reply.epoch,
        heartbeat_interval_ms=interval_ms,
        assignment=assignment,
    )


def topic_partitions(topics: Topics, assignment: Assignment, shape: Any, *, named: bool = False) -> list[Any]:
    """Return an assignment as a list of `shape`, one for each topic: by id, and by name as well if `named`."""
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(assignment):
        numbers.setdefault(topic, []).append(partition)
    found = []
    for topic, partitions in numbers.items():
        entry = topics.entry(topic)
        if entry is not None:
            names = {"topic_name": topic} if named else {}
            found.append(shape(topic_id=entry.id, partitions=partitions, **names))
    return found
