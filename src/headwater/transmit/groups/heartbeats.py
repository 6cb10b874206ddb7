"""The reply to a heartbeat, which consumer groups (KIP-848) and share groups (KIP-932) have in common."""

from dataclasses import dataclass

from headwater.record import TopicPartition

Assignment = frozenset[TopicPartition]
NOTHING: Assignment = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """The reply to a member; `assignment` is None if it has not changed since the last reply."""

    member_id: str
    epoch: int
    assignment: Assignment | None = None
