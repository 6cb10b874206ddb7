"""Groups that will soon lose unread records to retention.

Retention deletes records whether they have been read or not, so a warning comes first. Records count as deleted
soon if retention would delete them now with `retention.ms` or `retention.bytes` reduced by a tenth: with seven
days, most of a day in advance. Archived records stay readable and are not at risk.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headwater.record import TopicPartition
from headwater.transmit.configs import TopicConfig
from headwater.transmit.groups.share.share_groups import ShareGroups
from headwater.transmit.log.partition import PartitionLog
from headwater.transmit.log.retention import NO_LIMIT, expired_by_size, expired_by_time
from headwater.transmit.topics.catalog import Catalog
from headwater.transmit.topics.topics import Topics
from headwater.transmit.topics.upkeep import newest_ms

MARGIN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAtRisk:
    """A group that has not read all records before the offset `before`, which will be deleted soon."""

    group: str
    partition: TopicPartition
    offset: int
    before: int

    @property
    def records(self) -> int:
        return self.before - self.offset

    def __str__(self) -> str:
        return (
            f"group {self.group!r} is at offset {self.offset} of {self.partition}, and {self.records} records "
            f"before offset {self.before} will be deleted soon: let it catch up, or raise the topic's "
            "retention.ms or retention.bytes"
        )


def groups_at_risk(
    catalog: Catalog, topics: Topics, share_groups: ShareGroups, now_ms: int
) -> Iterator[GroupAtRisk]:
    """Yield every group and partition at risk, including share groups."""
    before = {p.name: deleted_soon(p.log, p.config, now_ms) for p in topics.partitions()}
    for group in catalog.groups():
        yield from _at_risk(group, {tp: at.offset for tp, at in catalog.committed_offsets(group).items()}, before)
    for share_group in share_groups.groups():
        starts = {
            TopicPartition(entry.name, number): share.start
            for (topic_id, number), share in share_groups.shares(share_group.id).items()
            if (entry := topics.entry(topic_id)) is not None
        }
        yield from _at_risk(share_group.id, starts, before)


def deleted_soon(log: PartitionLog, config: TopicConfig, now_ms: int) -> int:
    """Return the offset before which records will be deleted soon."""
    if not config.delete or config.archive_dir or log.damage is not None:
        return log.start_offset
    local = [segment for segment in log.segments if segment.size and not segment.path.is_symlink()]
    old = expired_by_time(map(newest_ms, local), now_ms=now_ms, retention_ms=_reduced(config.retention_ms))
    large = expired_by_size(
        (segment.size for segment in local[:-1]),
        total_bytes=sum(segment.size for segment in local),
        retention_bytes=_reduced(config.retention_bytes),
    )
    gone = local[: max(old, large)]
    return gone[-1].next_offset if gone else log.start_offset


def _at_risk(
    group: str, offsets: Mapping[TopicPartition, int], before: Mapping[TopicPartition, int]
) -> Iterator[GroupAtRisk]:
    for partition, offset in sorted(offsets.items()):
        if offset < before.get(partition, 0):
            yield GroupAtRisk(group=group, partition=partition, offset=offset, before=before[partition])


def _reduced(limit: int) -> int:
    return limit if limit == NO_LIMIT else round(limit * (1 - MARGIN))
