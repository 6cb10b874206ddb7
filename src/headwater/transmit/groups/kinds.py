"""Which protocol a group speaks: a name belongs to one at a time, as in Kafka."""

from headwater.transmit.broker.node import Node
from headwater.transmit.groups.store import GroupKind


def kind_of(node: Node, group: str) -> GroupKind | None:
    """The kind of a group; None if there is none, or only an empty classic one that may become another."""
    kind = node.group_store.kinds().get(group)
    if kind is not None:
        return kind
    classic = node.groups.get(group)
    return GroupKind.CLASSIC if classic is not None and classic.members else None


def may_be_classic(node: Node, group: str) -> bool:
    """Whether classic members may join: an empty group of the new protocol becomes a classic one."""
    kind = node.group_store.kinds().get(group)
    if kind is None:
        return True
    known = node.consumers.get(group)
    if kind is GroupKind.SHARE or (known is not None and known.members):
        return False
    node.consumers.delete(group)
    node.group_store.delete(group)
    return True
