"""Topics and their partitions while the broker runs: appending, reading, and waiting for either.

A partition's high watermark follows its log as the broker's durability says: when the disk has it (`fsync`), or
at once. Readers see what is below it, producers that asked for every acknowledgement wait for it to pass them.
Everything here happens in the broker's loop; only the waiting for the disk does not.
"""

import asyncio
import logging
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import ConflictError, InvalidError, UnavailableError
from headwater.record import TopicPartition
from headwater.transmit import configs
from headwater.transmit.configs import ConfigResource, ConfigValue, TopicConfig
from headwater.transmit.log.disk_reserve import DiskReserve
from headwater.transmit.log.partition import LogSettings, PartitionLog
from headwater.transmit.log.pool import FilePool
from headwater.transmit.log.producer_snapshot import load_snapshots, save_snapshot
from headwater.transmit.log.segment import delete_segment
from headwater.transmit.records.batch import BatchHeader, check_batches
from headwater.transmit.records.control import Marker, encode_marker, read_marker
from headwater.transmit.topics.admission import admit, stored_as
from headwater.transmit.topics.catalog import Catalog, TopicEntry, check_topic_name
from headwater.transmit.topics.conditional_append import Expectations
from headwater.transmit.topics.group_commit import Durability, GroupCommit
from headwater.transmit.topics.producers import NO_TIME, ProducerStates, Refusal

logger = logging.getLogger(__name__)

PARTITIONS_MAX = 10_000
_FOLDER_NAME_MAX = 200  # of a topic's name: file systems end at 255 bytes, Kafka's names at 249

Wake = Callable[[], None]


class RefusedBatch(InvalidError):
    """An idempotent producer's batch that does not follow the last one."""

    def __init__(self, message: str, refusal: Refusal) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """Where records went: from `base_offset` up to before `next_offset`."""

    base_offset: int
    next_offset: int
    log_append_time_ms: int = NO_TIME


_DEFAULT_CONFIG = configs.topic_config(configs.topic_values({}, configs.broker_values({}, {})))


class Partition:
    """One partition: its log, its producers, and who waits for it to grow."""

    def __init__(self, name: TopicPartition, log: PartitionLog, config: TopicConfig = _DEFAULT_CONFIG) -> None:
        self.name = name
        self.log = log
        self.config = config
        self.producers, self._saved_at = _open_producers(log)
        self._readers: set[Wake] = set()
        self._acks: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._broken: OSError | None = None
        self._expectations: Expectations | None = None

    @property
    def last_stable_offset(self) -> int:
        """What readers may see that want only committed records: below it no transaction is undecided."""
        return self.producers.last_stable_offset(self.log.high_watermark)

    def append(self, records: memoryview, *, now_ms: int = NO_TIME, transactional: bool = False) -> AppendResult:
        """Check record batches and write them; a batch that was written before is not written again."""
        self._check_disk()
        headers = check_batches(records)
        if not headers:
            raise InvalidError(f"cannot append to {self.name}: the request has no record batch")
        for header in headers:
            _check_produced(self.name, header)
            known = self.producers.check(header)
            if known is None and header.is_transactional and not transactional:
                known = Refusal.NOT_IN_TRANSACTION
            if isinstance(known, Refusal):
                raise RefusedBatch(
                    f"cannot append to {self.name}: producer {header.producer_id} sent sequence "
                    f"{header.base_sequence}: {known.value}",
                    known,
                )
            if known is not None:
                return AppendResult(base_offset=known, next_offset=known + header.last_offset_delta + 1)
        headers = admit(self.name, records, headers, self.config, now_ms)
        if self.config.compression is not None:
            records, headers = stored_as(self.name, records, headers, self.config)
        base_offset = self._write_if_expected(records, headers)
        offset = base_offset
        for header in headers:
            self.producers.note(header, offset, now_ms)
            offset += header.last_offset_delta + 1
        stamped = now_ms if self.config.log_append_time else NO_TIME
        return AppendResult(base_offset=base_offset, next_offset=offset, log_append_time_ms=stamped)

    def append_marker(self, marker: Marker, *, now_ms: int) -> AppendResult:
        """Write the end of a producer's transaction."""
        self._check_disk()
        if self.producers.is_stale(marker):
            raise RefusedBatch(
                f"cannot end the transaction of producer {marker.producer_id} in {self.name}: epoch "
                f"{marker.producer_epoch} is over",
                Refusal.STALE_EPOCH,
            )
        batch = encode_marker(marker, timestamp_ms=now_ms)
        offset = self._write(batch, check_batches(batch))
        self.producers.note_marker(marker, offset, now_ms)
        return AppendResult(base_offset=offset, next_offset=offset + 1)

    def save_producers(self, offset: int) -> None:
        """Keep what is known of producers, so that the next start need not read what is before the offset."""
        self.producers.forget_aborted(self.log.start_offset)
        try:
            save_snapshot(self.log.directory, offset, self.producers.dump())
            self._saved_at = offset
        except OSError as error:
            # It saves time at the next start and nothing else.
            logger.warning("cannot save the producers of %s: %s", self.name, error)

    def delete_before(self, offset: int) -> None:
        """Let the log start at an offset; what is known of producers by the batches that go with it is kept."""
        sealed = [segment for segment in self.log.segments[:-1] if segment.next_offset <= offset]
        if sealed and self._saved_at < sealed[-1].next_offset:
            self.log.sync()  # a snapshot of what the disk loses would be thrown away
            self.save_producers(self.log.end_offset)
        self.log.delete_before(offset)

    async def wait_durable(self, offset: int) -> None:
        """Wait until everything before the offset is as durable as promised."""
        if self.log.high_watermark >= offset:
            return
        if self._broken is not None:
            raise UnavailableError(f"cannot sync {self.name}: {self._broken}")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._acks.append((offset, future))
        await future

    def advance(self, offset: int) -> None:
        """Raise the high watermark and wake who waited for it."""
        if offset <= self.log.high_watermark:
            return
        self.log.high_watermark = offset
        self.producers.settle(offset)
        while self._acks and self._acks[0][0] <= offset:
            _, future = self._acks.popleft()
            if not future.done():
                future.set_result(None)
        readers, self._readers = self._readers, set()
        for wake in readers:
            wake()

    def fail(self, error: OSError) -> None:
        """Take no more records: after a failed sync nobody knows what the disk holds until it is read again."""
        self._broken = error
        while self._acks:
            _, future = self._acks.popleft()
            if not future.done():
                future.set_exception(UnavailableError(f"cannot sync {self.name}: {error}"))

    def close(self) -> None:
        """Wait for the disk, save what the next start needs, and close the files."""
        self.log.sync()
        if self.log.end_offset > self._saved_at:
            self.save_producers(self.log.end_offset)
        if self._expectations is not None:
            self._expectations.close()
        self.log.close()

    def on_advance(self, wake: Wake) -> None:
        """Call `wake` once when there is more to read."""
        self._readers.add(wake)

    def forget(self, wake: Wake) -> None:
        self._readers.discard(wake)

    def _check_disk(self) -> None:
        if self._broken is not None:
            raise UnavailableError(f"cannot append to {self.name}: its disk failed: {self._broken}")
        if self.log.damage is not None:
            raise UnavailableError(f"cannot append to {self.name}: {self.log.damage}")

    def _write_if_expected(self, data: memoryview, headers: list[BatchHeader]) -> int:
        """Write what arrives, in a topic with conditional append only if what the records expect still holds."""
        if not self.config.conditional_append:
            return self._write(data, headers)
        expectations = self._expectations = self._expectations or Expectations(self.log)
        records = expectations.check(data, headers)
        offset = self._write(data, headers)
        expectations.note(records, offset)
        return offset

    def _write(self, data: bytearray | memoryview, headers: list[BatchHeader]) -> int:
        offset = self.log.append(data, headers)
        if offset == self.log.open_segment_offset > 0:
            self.save_producers(offset)  # a segment was sealed: this is the first batch of the next one
        return offset


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
        self._room = DiskReserve(directory)
        self.commit = GroupCommit(self._on_synced)
        self._partitions: dict[TopicPartition, Partition] = {}
        self._by_log: dict[PartitionLog, Partition] = {}
        for entry in catalog.topics.values():
            self._open(entry)

    # -- what there is ----------------------------------------------------------------------------------------

    def entries(self) -> list[TopicEntry]:
        return sorted(self._catalog.topics.values(), key=lambda entry: entry.name)

    def sizes(self) -> dict[str, int]:
        """How many partitions each topic has."""
        return {entry.name: entry.partitions for entry in self._catalog.topics.values()}

    def entry(self, topic: str | uuid.UUID) -> TopicEntry | None:
        """A topic by its name or its id."""
        if isinstance(topic, str):
            return self._catalog.topics.get(topic)
        return self._catalog.topic_by_id(topic)

    def partition(self, topic: str, partition: int) -> Partition | None:
        return self._partitions.get(TopicPartition(topic, partition))

    def partitions(self) -> list[Partition]:
        return list(self._partitions.values())

    # -- configs ----------------------------------------------------------------------------------------------

    def broker_configs(self) -> dict[str, ConfigValue]:
        """Every config of the broker as it stands."""
        changed: dict[str, str] = {}
        for values in self._catalog.configs(
            ConfigResource.BROKER
        ).values():  # the default for all, then this node's
            changed.update(values)
        return configs.broker_values(self._static_configs, changed)

    def topic_configs(self, entry: TopicEntry) -> dict[str, ConfigValue]:
        """Every config of a topic as it stands."""
        return configs.topic_values(entry.configs, self.broker_configs())

    def apply_configs(self, names: Iterable[str]) -> None:
        """Let the partitions of topics follow configs that were changed in the catalog."""
        broker = self.broker_configs()
        for name in names:
            entry = self._catalog.topics[name]
            config = configs.topic_config(configs.topic_values(entry.configs, broker))
            for number in range(entry.partitions):
                partition = self._partitions.get(TopicPartition(name, number))
                if partition is not None:
                    partition.config = config
                    partition.log.settings = LogSettings(segment_bytes=config.segment_bytes)

    # -- changing it ------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int, values: dict[str, str]) -> TopicEntry:
        """Create a topic."""
        check_topic_name(name)
        if name in self._catalog.topics:
            raise ConflictError(f"cannot create topic {name!r}: it exists")
        _check_partitions(name, partitions)
        configs.check_configs(ConfigResource.TOPIC, values)
        entry = self._catalog.create_topic(name, partitions, values)
        try:
            self._open(entry)
        except OSError as error:
            self.delete(name)  # or the broker would not start again
            raise UnavailableError(f"cannot create topic {name!r}: {error}") from error
        return entry

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions."""
        entry = self._catalog.topics[name]
        _check_partitions(name, partitions)
        if partitions <= entry.partitions:
            raise InvalidError(
                f"cannot give topic {name!r} {partitions} partitions: it has {entry.partitions}, "
                "and partitions cannot be taken away"
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
            partition.advance(partition.log.end_offset)  # so that nobody waits for it any more
            for segment in partition.log.segments:
                if segment.path.is_symlink():
                    delete_segment(segment)  # from the archive
            # Upkeep may be writing a file there; the folder carries the topic's id, so a rest of it is no harm.
            shutil.rmtree(partition.log.directory, ignore_errors=True)

    def append(
        self, partition: Partition, records: memoryview, *, now_ms: int = NO_TIME, transactional: bool = False
    ) -> AppendResult:
        """Append, and see to it that the high watermark follows."""
        self._room.take(len(records))
        return self._follow(partition, partition.append(records, now_ms=now_ms, transactional=transactional))

    def append_marker(self, partition: Partition, marker: Marker, *, now_ms: int) -> AppendResult:
        """End a producer's transaction in a partition."""
        return self._follow(partition, partition.append_marker(marker, now_ms=now_ms))

    def expire_producers(self, now_ms: int, after_ms: int) -> None:
        """Forget producers that have written nothing for so long."""
        for partition in self._partitions.values():
            partition.producers.expire(now_ms, after_ms)

    def sync_all(self) -> None:
        """Have every log synced soon; called at intervals where the durability says so."""
        for partition in self._partitions.values():
            if partition.config.durability == Durability.INTERVAL:
                self.commit.request(partition.log)

    async def close(self) -> None:
        """Wait for the disk and close every file."""
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
                # The topic's id is in the folder's name, so a topic that is deleted and made anew starts empty
                # even if the deletion was cut short.
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


def _open_producers(log: PartitionLog) -> tuple[ProducerStates, int]:
    """What is known of a partition's producers: the newest snapshot, its offset, and the batches behind it."""
    # Without a snapshot from the first batch on that is left, also if its records count as deleted.
    saved_at, body = next(load_snapshots(log.directory, log.end_offset), (log.segments[0].base_offset, None))
    states = ProducerStates() if body is None else ProducerStates.load(body)
    for header, control in log.batches_since(saved_at):
        marker = None if control is None else read_marker(control)
        if marker is not None:
            states.note_marker(marker, header.base_offset)
        else:
            states.note(header, header.base_offset)
    return states, saved_at


def _check_produced(name: TopicPartition, header: BatchHeader) -> None:
    """What producers may send, as Kafka checks it: offsets must not be skipped, and markers are not theirs."""
    if header.count < 1 or header.last_offset_delta != header.count - 1:
        raise InvalidError(
            f"cannot append to {name}: a batch of {header.count} records "
            f"says that its last offset is {header.last_offset_delta} behind its first"
        )
    if header.is_control:
        raise InvalidError(f"cannot append to {name}: control batches are written by the broker only")


def _check_partitions(name: str, partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidError(
            f"cannot give topic {name!r} {partitions} partitions: between 1 and {PARTITIONS_MAX} are allowed"
        )
