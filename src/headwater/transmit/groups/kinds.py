"""The protocol of each group. As in Kafka, a group name belongs to one protocol at a time."""

from headwater.transmit.groups.classic import ClassicGroups
from headwater.transmit.groups.classic_rounds import GroupError
from headwater.transmit.groups.consumer import ConsumerError, ConsumerGroups
from headwater.transmit.groups.store import GroupKind, GroupStore


class GroupKinds:
    """Look up the protocol of a group, and convert empty groups from one protocol to another."""

    def __init__(self, store: GroupStore, classic_groups: ClassicGroups, consumer_groups: ConsumerGroups) -> None:
        self._store = store
        self._classic_groups = classic_groups
        self._consumer_groups = consumer_groups

    def get(self, group: str) -> GroupKind | None:
        """Return the protocol of a group, or None if any protocol may use the name.

        The name is free if there is no such group, or an empty classic one, which a newer protocol takes over.
        """
        kind = self._store.kinds().get(group)
        if kind is not None:
            return kind
        classic = self._classic_groups.get(group)
        return GroupKind.CLASSIC if classic is not None and classic.members else None

    def check_commit(
        self, group: str, member: str, epoch: int, instance: str | None, now: float
    ) -> GroupError | ConsumerError:
        """Return an error unless a member may commit offsets of the group at the monotonic time `now`.

        `epoch` is the generation of a classic group, or the member's epoch in a consumer group.
        """
        consumer_group = self._consumer_groups.get(group)
        if consumer_group is None:
            return self._classic_groups.check_commit(group, member, epoch, now, instance)
        return consumer_group.check_offsets(member, epoch) or GroupError.NONE

    def become_classic(self, group: str) -> bool:
        """Return True if classic members may join; an empty consumer group becomes a classic one."""
        kind = self._store.kinds().get(group)
        if kind is None:
            return True
        consumer_group = self._consumer_groups.get(group)
        if kind is GroupKind.SHARE or (consumer_group is not None and consumer_group.members):
            return False
        self._consumer_groups.delete(group)
        self._store.delete(group)
        return True

    def become_consumer(self, group: str) -> None:
        """Record that a group uses the consumer protocol; an empty classic group of that name is removed."""
        self._classic_groups.delete(group)
        self._store.set_kind(group, GroupKind.CONSUMER)
