"""Lag of groups, and unread records that retention will soon delete."""

from collections.abc import Iterable
from dataclasses import dataclass

from headwater.errors import UnavailableError
from headwater.record import LATEST, TopicPartition
from headwater.transmit.client import groups as group_client
from headwater.transmit.client.client import Client
from headwater.transmit.client.groups import GroupInfo
from headwater.transmit.wire.list_offsets import DELETED_SOON


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """The position of a group in a partition."""

    offset: int
    """The offset of the next record to read."""
    end: int
    """The end of the partition."""
    lag_records: int
    at_risk_records: int | None
    """Number of unread records that retention will soon delete; None if the broker does not report it."""


def positions(client: Client, info: GroupInfo) -> dict[TopicPartition, GroupPosition]:
    """Return the position in every partition that a group has started."""
    if info.kind == group_client.SHARE:
        shares = group_client.share_starts(client, info.id)
        offsets = {tp: share.start for tp, share in shares.items()}
        lags = {tp: share.lag_records for tp, share in shares.items()}
    else:
        offsets = group_client.committed(client, info.id)
        lags = {}
    ends = client.offsets(offsets, LATEST)
    before = _deleted_soon(client, offsets)
    return {
        tp: GroupPosition(
            offset=offset,
            end=ends[tp],
            lag_records=lags.get(tp, max(ends[tp] - offset, 0)),
            at_risk_records=None if before is None else max(before[tp] - offset, 0),
        )
        for tp, offset in offsets.items()
    }


def _deleted_soon(client: Client, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int] | None:
    try:
        return client.offsets(partitions, DELETED_SOON)
    except UnavailableError:  # Apache Kafka does not support this timestamp
        return None
