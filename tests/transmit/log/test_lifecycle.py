"""A log against a list in memory: appends, rolls, deletions, archiving, compactions and crashes.

The model keeps every record ever appended. After each step, the log must return records of the model at their
offsets, in order, including the last one of each key and all records that were never compacted.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headwater.clock import ManualClock
from headwater.record import Record, TopicPartition
from headwater.transmit.configs import DEFAULT_TOPIC_CONFIG, TopicConfig
from headwater.transmit.log.partition import LogSettings, PartitionLog
from headwater.transmit.records.attributes import Compression
from headwater.transmit.records.batch import decode_batch, encode_batch
from headwater.transmit.records.batch_header import check_batches, walk
from headwater.transmit.topics.partition import Partition
from headwater.transmit.topics.upkeep import Upkeep

DELETE_RETENTION_MS = 1000
CONFIG: TopicConfig = replace(
    DEFAULT_TOPIC_CONFIG,
    compact=True,
    retention_ms=-1,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=DELETE_RETENTION_MS,
)


class Crash(Exception):
    """The process dies here."""


class NoTopics:
    def partitions(self) -> list[Any]:
        return []


@contextmanager
def crash_at(step: int) -> Iterator[None]:
    """Crash before the n-th rename or deletion of a file."""
    left = step

    def dying(change: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Crash
            left -= 1
            return change(*args, **kwargs)

        return call

    with (
        mock.patch.object(Path, "rename", dying(Path.rename)),
        mock.patch.object(Path, "replace", dying(Path.replace)),
        mock.patch.object(Path, "unlink", dying(Path.unlink)),
        mock.patch.object(os, "replace", dying(os.replace)),
    ):
        yield


class LifeMachine(RuleBasedStateMachine):
    """One partition of a topic with cleanup.policy=compact,delete."""

    @initialize(segment_bytes=st.sampled_from([200, 600, 5000]))
    def start(self, segment_bytes: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="headwater-life-"))
        self.settings = LogSettings(segment_bytes=segment_bytes)
        self.config = replace(CONFIG, segment_bytes=segment_bytes)
        self.clock = ManualClock(start_ms=10_000)
        self.records: list[Record] = []
        self.start_offset = 0
        self.compacted_to = 0
        self.tombstones_gone_ms: dict[int, int] = {}
        self.open()

    def open(self) -> None:
        log = PartitionLog(self.directory / "orders-0", self.settings)
        self.partition = Partition(TopicPartition("orders", 0), log, self.config)
        self.upkeep = Upkeep(NoTopics(), self.clock, retention_every_s=1, clean_every_s=1)

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    def shut(self) -> None:
        self.upkeep.close()
        self.log.close()

    def teardown(self) -> None:
        if hasattr(self, "partition"):
            self.shut()
            shutil.rmtree(self.directory)

    def read(self) -> list[Record]:
        found: list[Record] = []
        offset = self.log.start_offset
        while data := self.log.read(offset, 700):
            for at, header in walk(data):
                found += [record for record in decode_batch(data, at) if record.offset >= self.log.start_offset]
                offset = header.next_offset
        return found

    # -- rules ------------------------------------------------------------------------------------------------

    @rule(
        keys=st.lists(st.integers(0, 6), min_size=1, max_size=5),
        deletes=st.lists(st.booleans(), min_size=5, max_size=5),
        compression=st.sampled_from([Compression.NONE, Compression.ZSTD, Compression.SNAPPY]),
    )
    def append(self, keys: list[int], deletes: list[bool], compression: Compression) -> None:
        base = len(self.records)
        records = [
            Record(
                key=b"k%d" % key,
                value=None if gone else b"v%d" % (base + n),
                headers=(("n", b"%d" % n),),
                timestamp_ms=self.clock.now_ms(),
                offset=base + n,
            )
            for n, (key, gone) in enumerate(zip(keys, deletes, strict=False))
        ]
        data = bytearray(encode_batch(records, compression=compression))
        assert self.log.append(data, check_batches(data)) == base
        self.records += records
        self.log.high_watermark = self.log.sync()

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start_offset, len(self.records)), label="offset")
        self.log.delete_before(offset)
        self.start_offset = offset

    @rule(archives=st.booleans())
    def expire(self, archives: bool) -> None:
        """Delete or archive segments whose records are all older than three seconds."""
        archive = str(self.directory / "archive") if archives else ""
        self.partition.config = replace(self.config, retention_ms=3000, archive_dir=archive)
        asyncio.run(self.upkeep.expire(self.partition, self.clock.now_ms()))
        self.partition.config = self.config
        if archives:
            assert self.log.start_offset == self.start_offset
        else:
            gone = [r for r in self.records[self.start_offset :] if r.offset < self.log.start_offset]
            assert all(self.clock.now_ms() - record.timestamp_ms > 3000 for record in gone)
            self.start_offset = self.log.start_offset

    @rule(keys_max=st.sampled_from([2, 1000]), crash=st.none() | st.integers(0, 12))
    def compact(self, keys_max: int, crash: int | None) -> None:
        end = self.log.segments[-1].base_offset
        self.note_compaction(end)
        if crash is None:
            asyncio.run(self.upkeep.clean(self.partition, self.clock.now_ms(), keys_max))
            return
        try:
            with crash_at(crash):
                asyncio.run(self.upkeep.clean(self.partition, self.clock.now_ms(), keys_max))
        except Crash:
            self.shut()
            self.open()

    def note_compaction(self, end: int) -> None:
        """From the second pass on, a tombstone may be removed after its retention."""
        self.compacted_to = max(self.compacted_to, end)
        for record in self.records[:end]:
            if record.value is None:
                self.tombstones_gone_ms.setdefault(record.offset, self.clock.now_ms() + DELETE_RETENTION_MS)

    @rule()
    def reopen(self) -> None:
        self.shut()
        self.open()
        assert self.log.recovered_bytes == 0

    @rule(garbage=st.binary(min_size=1, max_size=100))
    def crash_with_a_torn_tail(self, garbage: bytes) -> None:
        path = self.log.segments[-1].path
        self.shut()
        path.with_suffix(".index").unlink(missing_ok=True)
        with path.open("ab") as file:
            file.write(garbage)
        self.open()
        assert self.log.recovered_bytes == len(garbage)

    # -- invariants -------------------------------------------------------------------------------------------

    @invariant()
    def reads_return_the_log_without_replaced_records(self) -> None:
        if not hasattr(self, "partition"):
            return
        assert (self.log.start_offset, self.log.end_offset) == (self.start_offset, len(self.records))
        found = self.read()
        assert found == [self.records[record.offset] for record in found]
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        there = set(offsets)
        last = {record.key: record for record in self.records}
        for record in self.records[self.start_offset :]:
            gone_from = self.tombstones_gone_ms.get(record.offset)
            may_be_gone = gone_from is not None and self.clock.now_ms() > gone_from
            must_be_there = record.offset >= self.compacted_to or last[record.key] is record
            assert record.offset in there or may_be_gone or not must_be_there


TestLifeMachine = LifeMachine.TestCase
TestLifeMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
