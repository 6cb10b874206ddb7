"""Topics and their partitions while the broker runs: appending, reading, and waiting for either.

A partition's high watermark follows its log as the broker's durability says: when the disk has it (`fsync`), or
at once. Readers see what is below it, producers that asked for every acknowledgement wait for it to pass them.
Everything here happens in the broker's loop; only the waiting for the disk does not.
"""

import asyncio
import shutil
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import ConflictError, InvalidError, UnavailableError
from headwater.record import TopicPartition
from headwater.transmit.batch import BatchHeader, check_batches
from headwater.transmit.catalog import Catalog, TopicEntry, check_topic_name
from headwater.transmit.durability import Durability, GroupCommit
from headwater.transmit.log.partition import LogSettings, PartitionLog
from headwater.transmit.producers import ProducerStates, Refusal

PARTITIONS_MAX = 10_000
_FOLDER_NAME_MAX = 200  # of a topic's name: file systems end at 255 bytes, Kafka's names at 249

Wake = Callable[[], None]


class RefusedBatch(InvalidError):
    """An idempotent producer's batch that does not follow the last one."""

    def __init__(self, message: str, refusal: Refusal) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Where records went: from `base_offset` up to before `next_offset`."""

    base_offset: int
    next_offset: int


class Partition:
    """One partition: its log, its producers, and who waits for it to grow."""

    def __init__(self, name: TopicPartition, log: PartitionLog) -> None:
        self.name = name
        self.log = log
        self._producers = ProducerStates(log.recent_headers())
        self._readers: set[Wake] = set()
        self._acks: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._broken: OSError | None = None

    def append(self, records: memoryview) -> Appended:
        """Check record batches and write them; a batch that was written before is not written again."""
        if self._broken is not None:
            raise UnavailableError(f"cannot append to {self.name}: its disk failed: {self._broken}")
        headers = check_batches(records)
        if not headers:
            raise InvalidError(f"cannot append to {self.name}: the request has no record batch")
        for header in headers:
            _check_produced(self.name, header)
            known = self._producers.check(header)
            if isinstance(known, Refusal):
                raise RefusedBatch(
                    f"cannot append to {self.name}: producer {header.producer_id} sent sequence "
                    f"{header.base_sequence}: {known.value}",
                    known,
                )
            if known is not None:
                return Appended(base_offset=known, next_offset=known + header.last_offset_delta + 1)
        base_offset = self.log.append(records, headers)
        offset = base_offset
        for header in headers:
            self._producers.note(header, offset)
            offset += header.last_offset_delta + 1
        return Appended(base_offset=base_offset, next_offset=offset)

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

    def on_advance(self, wake: Wake) -> None:
        """Call `wake` once when there is more to read."""
        self._readers.add(wake)

    def forget(self, wake: Wake) -> None:
        self._readers.discard(wake)


class Topics:
    """Every topic of the broker, opened from `directory`."""

    def __init__(
        self, directory: Path, catalog: Catalog, *, log_settings: LogSettings, durability: Durability
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._log_settings = log_settings
        self._durability = durability
        self.commit = GroupCommit(self._on_synced)
        self._partitions: dict[TopicPartition, Partition] = {}
        self._by_log: dict[PartitionLog, Partition] = {}
        for entry in catalog.topics.values():
            self._open(entry)

    # -- what there is ----------------------------------------------------------------------------------------

    def entries(self) -> list[TopicEntry]:
        return sorted(self._catalog.topics.values(), key=lambda entry: entry.name)

    def entry(self, topic: str | uuid.UUID) -> TopicEntry | None:
        """A topic by its name or its id."""
        if isinstance(topic, str):
            return self._catalog.topics.get(topic)
        return self._catalog.topic_by_id(topic)

    def partition(self, topic: str, partition: int) -> Partition | None:
        return self._partitions.get(TopicPartition(topic, partition))

    def recovered(self) -> list[tuple[TopicPartition, int]]:
        """Partitions whose last segment was cut when it was opened, and by how many bytes."""
        return [(name, p.log.recovered_bytes) for name, p in self._partitions.items() if p.log.recovered_bytes]

    # -- changing it ------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int, configs: dict[str, str]) -> TopicEntry:
        """Create a topic."""
        check_topic_name(name)
        if name in self._catalog.topics:
            raise ConflictError(f"cannot create topic {name!r}: it exists")
        _check_partitions(name, partitions)
        entry = self._catalog.create_topic(name, partitions, configs)
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
            shutil.rmtree(partition.log.directory)

    def append(self, partition: Partition, records: memoryview) -> Appended:
        """Append, and see to it that the high watermark follows."""
        appended = partition.append(records)
        if self._durability is Durability.FSYNC:
            self.commit.request(partition.log)
        else:
            partition.advance(appended.next_offset)
        return appended

    def sync_all(self) -> None:
        """Have every log synced soon; called at intervals where the durability says so."""
        if self._durability is Durability.INTERVAL:
            for partition in self._partitions.values():
                self.commit.request(partition.log)

    async def close(self) -> None:
        """Wait for the disk and close every file."""
        await self.commit.drain()
        self.commit.close()
        for partition in self._partitions.values():
            partition.log.close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _open(self, entry: TopicEntry) -> None:
        for number in range(entry.partitions):
            name = TopicPartition(entry.name, number)
            if name not in self._partitions:
                # The topic's id is in the folder's name, so a topic that is deleted and made anew starts empty
                # even if the deletion was cut short.
                folder = f"{entry.name[:_FOLDER_NAME_MAX]}-{number}-{entry.id.hex[:8]}"
                log = PartitionLog(self._directory / folder, self._log_settings)
                self._partitions[name] = self._by_log[log] = Partition(name, log)

    def _on_synced(self, log: PartitionLog, reached: int | OSError) -> None:
        partition = self._by_log.get(log)
        if partition is None:
            return  # deleted meanwhile
        if isinstance(reached, OSError):
            partition.fail(reached)
        else:
            partition.advance(reached)


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
