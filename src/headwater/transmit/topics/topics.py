"""The topics of a broker: create, configure and delete them, and append to their partitions.

Everything here runs in the broker's loop, except for syncing the disk (`group_commit`).
"""

import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from headwater.errors import ConflictError, InvalidError, UnavailableError
from headwater.record import TopicPartition
from headwater.transmit import configs
from headwater.transmit.configs import ConfigResource, ConfigValue
from headwater.transmit.log.disk_reserve import DiskReserve
from headwater.transmit.log.partition import LogSettings, PartitionLog
from headwater.transmit.log.pool import FilePool
from headwater.transmit.records.control import Marker
from headwater.transmit.topics.catalog import Catalog, TopicEntry, check_topic_name
from headwater.transmit.topics.group_commit import Durability, GroupCommit
from headwater.transmit.topics.partition import AppendResult, Partition
from headwater.transmit.topics.producers import NO_TIME

PARTITIONS_MAX = 10_000
_FOLDER_NAME_MAX = 200  # of the topic's name: file systems allow 255 bytes, Kafka allows names of 249


class Topics:
    """Every topic of the broker, opened from `directory`."""

    def __init__(
        self,
        directory: Path,
        catalog: Catalog,
        *,
        log_settings: LogSettings,
        durability: Durability,
        static_configs: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._static_configs = {
            "log.segment.bytes": str(log_settings.segment_bytes),
            "headwater.durability": durability.value,
            **(static_configs or {}),
        }
        self._pool = FilePool()
        self._disk_reserve = DiskReserve(directory)
        self.commit = GroupCommit(self._on_synced)
        self._partitions: dict[TopicPartition, Partition] = {}
        self._by_log: dict[PartitionLog, Partition] = {}
        for entry in catalog.topics.values():
            self._open(entry)

    # -- lookup -----------------------------------------------------------------------------------------------

    def entries(self) -> list[TopicEntry]:
        return sorted(self._catalog.topics.values(), key=lambda entry: entry.name)

    def sizes(self) -> dict[str, int]:
        """Return the number of partitions of each topic."""
        return {entry.name: entry.partitions for entry in self._catalog.topics.values()}

    def entry(self, topic: str | uuid.UUID) -> TopicEntry | None:
        """Return a topic by its name or id."""
        if isinstance(topic, str):
            return self._catalog.topics.get(topic)
        return self._catalog.topic_by_id(topic)

    def partition(self, topic: str, partition: int) -> Partition | None:
        return self._partitions.get(TopicPartition(topic, partition))

    def partitions(self) -> list[Partition]:
        return list(self._partitions.values())

    # -- configs ----------------------------------------------------------------------------------------------

    def broker_configs(self) -> dict[str, ConfigValue]:
        """Return every config of the broker with its current value."""
        changed: dict[str, str] = {}
        # In this order: the default for all brokers, then this node's.
        for values in self._catalog.configs(ConfigResource.BROKER).values():
            changed.update(values)
        return configs.broker_values(self._static_configs, changed)

    def topic_configs(self, entry: TopicEntry) -> dict[str, ConfigValue]:
        """Return every config of a topic with its current value."""
        return configs.topic_values(entry.configs, self.broker_configs())

    def apply_configs(self, names: Iterable[str]) -> None:
        """Apply configs that were changed in the catalog to the partitions of topics."""
        broker = self.broker_configs()
        for name in names:
            entry = self._catalog.topics[name]
            config = configs.topic_config(configs.topic_values(entry.configs, broker))
            for number in range(entry.partitions):
                partition = self._partitions.get(TopicPartition(name, number))
                if partition is not None:
                    partition.config = config
                    partition.log.settings = LogSettings(segment_bytes=config.segment_bytes)

    # -- changes ----------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int, values: dict[str, str]) -> TopicEntry:
        """Create a topic."""
        check_topic_name(name)
        if name in self._catalog.topics:
            raise ConflictError(f"cannot create topic {name!r}: it already exists")
        _check_partitions(name, partitions)
        configs.check_configs(ConfigResource.TOPIC, values)
        entry = self._catalog.create_topic(name, partitions, values)
        try:
            self._open(entry)
        except OSError as error:
            self.delete(name)  # or the broker could not start again
            raise UnavailableError(f"cannot create topic {name!r}: {error}") from error
        return entry

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions."""
        entry = self._catalog.topics[name]
        _check_partitions(name, partitions)
        if partitions <= entry.partitions:
            raise InvalidError(
                f"cannot give topic {name!r} {partitions} partitions: it has {entry.partitions}, "
                "and partitions cannot be removed"
            )
        self._open(self._catalog.grow_topic(name, partitions))

    def delete(self, name: str) -> None:
        """Delete a topic and its records."""
        entry = self._catalog.topics[name]
        self._catalog.delete_topic(name)
        for number in range(entry.partitions):
            partition = self._partitions.pop(TopicPartition(name, number), None)
            if partition is None:
                continue  # its creation failed
            del self._by_log[partition.log]
            partition.log.close()
            partition.advance(partition.log.end_offset)  # wakes everything that waits for it
            for segment in partition.log.segments:
                if segment.path.is_symlink():
                    segment.delete()  # also deletes the copy in the archive
            # Upkeep may be writing a file there. The folder's name contains the topic's id, so leftovers do no
            # harm.
            shutil.rmtree(partition.log.directory, ignore_errors=True)

    def append(
        self, partition: Partition, records: memoryview, *, now_ms: int = NO_TIME, transactional: bool = False
    ) -> AppendResult:
        """Append record batches, and raise the high watermark when they are durable."""
        self._disk_reserve.take(len(records))
        return self._follow(partition, partition.append(records, now_ms=now_ms, transactional=transactional))

    def append_marker(self, partition: Partition, marker: Marker, *, now_ms: int) -> AppendResult:
        """Write the marker that ends a producer's transaction in a partition."""
        return self._follow(partition, partition.append_marker(marker, now_ms=now_ms))

    def expire_producers(self, now_ms: int, after_ms: int) -> None:
        """Remove producers that have written nothing for `after_ms`."""
        for partition in self._partitions.values():
            partition.producers.expire(now_ms, after_ms)

    def sync_all(self) -> None:
        """Queue the logs with interval durability for a sync; called periodically."""
        for partition in self._partitions.values():
            if partition.config.durability == Durability.INTERVAL:
                self.commit.request(partition.log)

    async def close(self) -> None:
        """Sync and close all partitions."""
        await self.commit.drain()
        self.commit.close()
        for partition in self._partitions.values():
            partition.close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _open(self, entry: TopicEntry) -> None:
        config = configs.topic_config(self.topic_configs(entry))
        for number in range(entry.partitions):
            name = TopicPartition(entry.name, number)
            if name not in self._partitions:
                # The topic's id is in the folder's name, so a topic that is deleted and created again starts empty
                # even if the deletion was interrupted.
                folder = f"{entry.name[:_FOLDER_NAME_MAX]}-{number}-{entry.id.hex[:8]}"
                settings = LogSettings(segment_bytes=config.segment_bytes)
                log = PartitionLog(self._directory / folder, settings, self._pool)
                self._partitions[name] = self._by_log[log] = Partition(name, log, config)

    def _follow(self, partition: Partition, appended: AppendResult) -> AppendResult:
        if partition.config.durability == Durability.FSYNC:
            self.commit.request(partition.log)
        else:
            partition.advance(appended.next_offset)
        return appended

    def _on_synced(self, log: PartitionLog, reached: int | OSError) -> None:
        partition = self._by_log.get(log)
        if partition is None:
            return  # deleted meanwhile
        if isinstance(reached, OSError):
            partition.fail(reached)
        else:
            partition.advance(reached)


def _check_partitions(name: str, partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidError(
            f"cannot give topic {name!r} {partitions} partitions: between 1 and {PARTITIONS_MAX} are allowed"
        )
