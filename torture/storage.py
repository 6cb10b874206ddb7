"""Compare a partition's storage on a disk that loses power at any operation with a list in memory.

A seed decides everything: the operations (appends of idempotent batches, syncs, reads, rolls, deletions,
retention, archiving, compactions, clean restarts), and the disk operation before which the crash happens, which
may be during recovery. `Storage.check` checks the guarantees afterwards: no acknowledged record and no record that
a reader saw is lost or changed, no record is duplicated or out of order, deleted records do not reappear, the last
value of each key stays, and recovery needs no manual repair.
"""

import asyncio
import random
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crc32c import crc32c

from headwater.clock import ManualClock
from headwater.record import Record, TopicPartition
from headwater.transmit.configs import DEFAULT_TOPIC_CONFIG
from headwater.transmit.log.partition import LogSettings, PartitionLog
from headwater.transmit.records.attributes import Compression
from headwater.transmit.records.batch import decode_batch, encode_batch
from headwater.transmit.records.batch_header import walk
from headwater.transmit.topics.partition import Partition
from headwater.transmit.topics.upkeep import Upkeep
from support.disk import Disk, PowerLoss

PRODUCER_ID = 7
DELETE_RETENTION_MS = 1000
RETENTION_MS = 3000
CRASHES = 10
OPERATIONS_MAX = 60
"""Maximum number of disk operations before a crash."""
NAME = TopicPartition("orders", 0)
CONFIG = replace(
    DEFAULT_TOPIC_CONFIG,
    compact=True,
    retention_ms=-1,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=DELETE_RETENTION_MS,
)


class Violation(AssertionError):
    """A broken guarantee."""


@dataclass(slots=True)
class Report:
    """The counts of a run."""

    crashes: int = 0
    in_recovery: int = 0
    power_losses: int = 0
    operations: int = 0
    records: int = 0
    lost_tail_records: int = 0

    def add(self, other: "Report") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class NoTopics:
    """An empty catalog: each partition is passed to Upkeep directly."""

    def partitions(self) -> list[Any]:
        return []


def run(seed: int, crashes: int = CRASHES) -> Report:
    """Run one seed; raises Violation if a guarantee was broken."""
    folder = Path(tempfile.mkdtemp(prefix="headwater-torture-"))
    try:
        storage = Storage(folder, random.Random(seed))
        for _ in range(crashes):
            storage.run_until_crash()
        return storage.report
    finally:
        shutil.rmtree(folder)


class Storage:
    """A partition, and the state it is expected to have."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.report = Report()
        self._folder = folder
        self._chance = chance
        self._clock = ManualClock(start_ms=10_000)
        self._segment_bytes = chance.choice([300, 700, 3000])
        self._config = replace(CONFIG, segment_bytes=self._segment_bytes)
        self._records: list[Record] = []
        self._batches: list[tuple[int, bytes]] = []
        """Base offset and bytes of each batch of the producer."""
        self._durable = 0
        self._starts = {0}
        """The offsets at which the log may start; more than one while a deletion is in progress."""
        self._compacted_to = 0
        self._tombstones_gone_ms: dict[int, int] = {}
        self._partition: Partition | None = None
        self._disk = Disk(folder, chance)

    @property
    def _log(self) -> PartitionLog:
        assert self._partition is not None
        return self._partition.log

    def run_until_crash(self) -> None:
        """Open the partition, check it, and work on it until a crash."""
        while True:
            self._disk.revive(self._chance.randint(0, OPERATIONS_MAX))
            is_open = False
            try:
                with self._disk.watching():
                    self._open()
                    is_open = True
                    self.check()
                    while True:
                        self._work()
            except PowerLoss:
                pass
            self.report.crashes += 1
            self.report.in_recovery += not is_open
            self.report.operations += self._disk.operations
            self._partition = None
            if self._chance.random() < 0.75:
                self.report.power_losses += 1
                self._disk.lose_power()  # otherwise only the process died, and the system keeps its writes
            if is_open:
                return  # otherwise the crash was during recovery

    def _open(self) -> None:
        log = PartitionLog(self._folder / "orders-0", LogSettings(segment_bytes=self._segment_bytes))
        self._partition = Partition(NAME, log, self._config)

    # -- operations -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (40, self._append), (25, self._sync), (10, self._read), (5, self._roll), (4, self._delete_records),
            (4, self._expire), (4, self._archive), (8, self._compact), (4, self._restart), (6, self._wait),
        ]  # fmt: skip
        (step,) = self._chance.choices([step for _, step in steps], [weight for weight, _ in steps])
        step()

    def _append(self) -> None:
        assert self._partition is not None
        chance, base = self._chance, len(self._records)
        records = [
            Record(
                key=b"k%d" % chance.randrange(6),
                value=None if chance.random() < 0.2 else b"v%d " % (base + n) + bytes(chance.randrange(120)),
                timestamp_ms=self._clock.now_ms(),
                offset=base + n,
            )
            for n in range(chance.randint(1, 5))
        ]
        data = bytearray(encode_batch(records, compression=chance.choice([Compression.NONE, Compression.ZSTD])))
        struct.pack_into(">qhi", data, 43, PRODUCER_ID, 0, base)
        struct.pack_into(">I", data, 17, crc32c(data[21:]))
        self._records += records
        self._batches.append((base, bytes(data)))
        self.report.records += len(records)
        appended = self._partition.append(memoryview(data), now_ms=self._clock.now_ms())
        _expect(appended.base_offset == base, f"appended at {appended.base_offset}, expected {base}")

    def _sync(self) -> None:
        assert self._partition is not None
        reached = self._log.sync()
        self._partition.advance(reached)
        self._durable = max(self._durable, reached)

    def _read(self) -> None:
        if self._log.start_offset < self._log.high_watermark:
            at = self._chance.randrange(self._log.start_offset, self._log.high_watermark)
            self._expect_records(self._read_from(at, self._chance.choice([1, 500, 5000])))

    def _roll(self) -> None:
        self._log.roll()
        self._durable = max(self._durable, self._log.open_segment_offset)  # a sealed segment was synced

    def _delete_records(self) -> None:
        assert self._partition is not None
        offset = self._chance.randint(self._log.start_offset, self._log.high_watermark)
        self._starts.add(offset)
        self._partition.delete_before(offset)
        self._starts = {offset}

    def _expire(self) -> None:
        self._run_retention(archive="")

    def _archive(self) -> None:
        self._run_retention(archive=str(self._folder / "archive"))

    def _run_retention(self, *, archive: str) -> None:
        assert self._partition is not None
        self._sync()
        if not archive:
            sealed = [segment.next_offset for segment in self._log.segments]
            self._starts |= {offset for offset in sealed if offset >= self._log.start_offset}
        self._partition.config = replace(self._config, retention_ms=RETENTION_MS, archive_dir=archive)
        self._in_upkeep(lambda upkeep, p: upkeep.expire(p, self._clock.now_ms()))
        self._partition.config = self._config
        gone = self._records[min(self._starts) : self._log.start_offset]
        if not archive and self._log.start_offset not in self._starts:
            raise Violation(f"retention moved the start to {self._log.start_offset}, inside a segment")
        late = [r.offset for r in gone if self._clock.now_ms() - r.timestamp_ms <= RETENTION_MS]
        _expect(archive or not late or self._log.start_offset in self._starts, f"{late} were deleted too early")
        self._starts = {self._log.start_offset}

    def _compact(self) -> None:
        end = self._log.segments[-1].base_offset
        self._compacted_to = max(self._compacted_to, end)
        for record in self._records[:end]:
            if record.value is None:
                due = self._clock.now_ms() + DELETE_RETENTION_MS
                self._tombstones_gone_ms.setdefault(record.offset, due)
        keys_max = self._chance.choice([2, 1000])
        self._in_upkeep(lambda upkeep, p: upkeep.clean(p, self._clock.now_ms(), keys_max))

    def _in_upkeep(self, work: Callable[[Upkeep, Partition], Any]) -> None:
        upkeep = Upkeep(NoTopics(), self._clock, retention_every_s=1, clean_every_s=1)  # type: ignore[arg-type]
        try:
            asyncio.run(work(upkeep, self._partition))  # type: ignore[arg-type]
        finally:
            upkeep.close()

    def _restart(self) -> None:
        assert self._partition is not None
        self._sync()
        self._partition.close()
        self._open()
        _expect(self._log.recovered_bytes == 0, f"{self._log.recovered_bytes} bytes truncated after a clean stop")
        self.check()

    def _wait(self) -> None:
        self._clock.advance(self._chance.randint(1, 3))

    # -- guarantees -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare the log with the list, and remove from the list the records that a crash was allowed to lose."""
        log = self._log
        _expect(log.damage is None, f"the log does not recover by itself: {log.damage}")
        _expect(
            self._durable <= log.end_offset <= len(self._records),
            f"the log ends at {log.end_offset}; {self._durable} were acknowledged, {len(self._records)} written",
        )
        _expect(log.start_offset in self._starts, f"the log starts at {log.start_offset}, not at {self._starts}")
        self.report.lost_tail_records += len(self._records) - log.end_offset
        del self._records[log.end_offset :]
        self._batches = [(base, data) for base, data in self._batches if base < log.end_offset]
        self._durable, self._starts = log.end_offset, {log.start_offset}
        found = self._read_from(log.start_offset, 700)
        self._expect_records(found)
        present = {record.offset for record in found}
        last = {record.key: record for record in self._records}
        for record in self._records[log.start_offset :]:
            gone_from = self._tombstones_gone_ms.get(record.offset)
            may_be_gone = gone_from is not None and self._clock.now_ms() > gone_from
            must_be_present = record.offset >= self._compacted_to or last[record.key] is record
            _expect(record.offset in present or may_be_gone or not must_be_present, f"{record.offset} is lost")
        self._expect_idempotence()

    def _expect_idempotence(self) -> None:
        """Send the producer's last batch again, as if its acknowledgement was lost in the crash."""
        if not self._batches:
            return
        assert self._partition is not None
        base, data = self._batches[-1]
        again = self._partition.append(memoryview(bytearray(data)), now_ms=self._clock.now_ms())
        _expect(again.base_offset == base, f"the resent batch at {base} was acknowledged at {again.base_offset}")
        _expect(self._log.end_offset == len(self._records), "a resent batch was written twice")

    def _read_from(self, offset: int, max_bytes: int) -> list[Record]:
        found: list[Record] = []
        first = offset
        while data := self._log.read(offset, max_bytes):
            for at, header in walk(data):
                found += [record for record in decode_batch(data, at) if record.offset >= first]
                offset = header.next_offset
        return found

    def _expect_records(self, found: list[Record]) -> None:
        offsets = [record.offset for record in found]
        _expect(offsets == sorted(set(offsets)), f"offsets out of order: {offsets}")
        wrong = [r.offset for r in found if r != self._records[r.offset]]
        _expect(not wrong, f"records differ from those written, at {wrong}")


def _expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)
