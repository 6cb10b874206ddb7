"""One partition while the broker runs: its log, its producers, and the tasks that wait for it to grow.

The high watermark follows the log according to the topic's durability: after a disk sync (`fsync`), or at once.
Readers see records below it. Producers that requested all acknowledgements wait until it passes their records.
Everything here runs in the broker's loop, except for the sync itself.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headwater.errors import InvalidError, UnavailableError
from headwater.record import TopicPartition
from headwater.transmit.configs import DEFAULT_TOPIC_CONFIG, TopicConfig
from headwater.transmit.log.partition import PartitionLog
from headwater.transmit.log.producer_snapshot import load_snapshots, save_snapshot
from headwater.transmit.records.batch_header import BatchHeader, check_batches
from headwater.transmit.records.control import Marker, encode_marker, read_marker
from headwater.transmit.topics.admission import admit, recompress_batches
from headwater.transmit.topics.conditional_append import Expectations
from headwater.transmit.topics.producers import NO_TIME, ProducerStates, Refusal

logger = logging.getLogger(__name__)

Wake = Callable[[], None]


class RefusedBatch(InvalidError):
    """An idempotent producer's batch was rejected for its epoch, sequence number or transaction."""

    def __init__(self, message: str, refusal: Refusal) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """The offsets of appended records, [base_offset, next_offset)."""

    base_offset: int
    next_offset: int
    log_append_time_ms: int = NO_TIME


class Partition:
    """One partition: its log, its producers, and the readers and producers that wait for its high watermark."""

    def __init__(
        self, name: TopicPartition, log: PartitionLog, config: TopicConfig = DEFAULT_TOPIC_CONFIG
    ) -> None:
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
        """The end of what readers of committed records see: no transaction below it is undecided."""
        return self.producers.last_stable_offset(self.log.high_watermark)

    def append(self, records: memoryview, *, now_ms: int = NO_TIME, transactional: bool = False) -> AppendResult:
        """Check record batches and write them; a duplicate is not written again."""
        self._check_disk()
        headers = check_batches(records)
        if not headers:
            raise InvalidError(f"cannot append to {self.name}: the request has no record batch")
        for header in headers:
            _check_produced(self.name, header)
            verdict = self.producers.check(header)
            if verdict is None and header.is_transactional and not transactional:
                verdict = Refusal.NOT_IN_TRANSACTION
            if isinstance(verdict, Refusal):
                raise RefusedBatch(
                    f"cannot append to {self.name}: producer {header.producer_id} sent sequence "
                    f"{header.base_sequence}: {verdict.value}",
                    verdict,
                )
            if verdict is not None:  # the offset of a duplicate
                return AppendResult(base_offset=verdict, next_offset=verdict + header.last_offset_delta + 1)
        headers = admit(self.name, records, headers, self.config, now_ms)
        if self.config.compression is not None:
            records, headers = recompress_batches(self.name, records, headers, self.config)
        base_offset = self._write_if_expected(records, headers)
        offset = base_offset
        for header in headers:
            self.producers.note(header, offset, now_ms)
            offset += header.last_offset_delta + 1
        stamped = now_ms if self.config.log_append_time else NO_TIME
        return AppendResult(base_offset=base_offset, next_offset=offset, log_append_time_ms=stamped)

    def append_marker(self, marker: Marker, *, now_ms: int) -> AppendResult:
        """Write the marker that ends a producer's transaction."""
        self._check_disk()
        if self.producers.is_stale(marker):
            raise RefusedBatch(
                f"cannot end the transaction of producer {marker.producer_id} in {self.name}: epoch "
                f"{marker.producer_epoch} is fenced",
                Refusal.STALE_EPOCH,
            )
        batch = encode_marker(marker, timestamp_ms=now_ms)
        offset = self._write(batch, check_batches(batch))
        self.producers.note_marker(marker, offset, now_ms)
        return AppendResult(base_offset=offset, next_offset=offset + 1)

    def save_producers(self, offset: int) -> None:
        """Save a snapshot of the producers, so that the next start need not read batches before the offset."""
        self.producers.forget_aborted(self.log.start_offset)
        try:
            save_snapshot(self.log.directory, offset, self.producers.dump())
            self._saved_at = offset
        except OSError as error:
            # The snapshot only saves time at the next start.
            logger.warning("cannot save the producers of %s: %s", self.name, error)

    def delete_before(self, offset: int) -> None:
        """Delete records before an offset; the producers' states in deleted batches are saved first."""
        sealed = [segment for segment in self.log.segments[:-1] if segment.next_offset <= offset]
        if sealed and self._saved_at < sealed[-1].next_offset:
            self.log.sync()  # a snapshot ahead of the log on disk would be discarded at the next start
            self.save_producers(self.log.end_offset)
        self.log.delete_before(offset)

    async def wait_durable(self, offset: int) -> None:
        """Wait until the high watermark reaches the offset."""
        if self.log.high_watermark >= offset:
            return
        if self._broken is not None:
            raise UnavailableError(f"cannot sync {self.name}: {self._broken}")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._acks.append((offset, future))
        await future

    def advance(self, offset: int) -> None:
        """Raise the high watermark, and wake the readers and producers that wait for it."""
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
        """Reject further records: after a failed sync, the disk's content is unknown until it is read again."""
        self._broken = error
        while self._acks:
            _, future = self._acks.popleft()
            if not future.done():
                future.set_exception(UnavailableError(f"cannot sync {self.name}: {error}"))

    def close(self) -> None:
        """Sync, save a snapshot of the producers, and close the files."""
        self.log.sync()
        if self.log.end_offset > self._saved_at:
            self.save_producers(self.log.end_offset)
        if self._expectations is not None:
            self._expectations.close()
        self.log.close()

    def on_advance(self, wake: Wake) -> None:
        """Call `wake` once when the high watermark rises."""
        self._readers.add(wake)

    def forget(self, wake: Wake) -> None:
        self._readers.discard(wake)

    def _check_disk(self) -> None:
        if self._broken is not None:
            raise UnavailableError(f"cannot append to {self.name}: its disk failed: {self._broken}")
        if self.log.damage is not None:
            raise UnavailableError(f"cannot append to {self.name}: {self.log.damage}")

    def _write_if_expected(self, data: memoryview, headers: list[BatchHeader]) -> int:
        """Write batches; with conditional append, only if the conditions of their records are true."""
        if not self.config.conditional_append:
            return self._write(data, headers)
        log = self.log
        expectations = self._expectations = self._expectations or Expectations(
            log.directory, log.end_offset, log.batches_from
        )
        records = expectations.check(data, headers, log.end_offset)
        offset = self._write(data, headers)
        expectations.add(records, offset)
        return offset

    def _write(self, data: bytearray | memoryview, headers: list[BatchHeader]) -> int:
        offset = self.log.append(data, headers)
        if offset == self.log.open_segment_offset > 0:
            self.save_producers(offset)  # the previous segment was sealed: this is the first batch of the next
        return offset


def _open_producers(log: PartitionLog) -> tuple[ProducerStates, int]:
    """Return the producers of a log and the offset of their snapshot: the newest one, and all batches after it."""
    # Without a snapshot, read from the first batch in the files, even if its records count as deleted.
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
    """Raise InvalidError for batches that skip offsets and for control batches, as Kafka does."""
    if header.count < 1 or header.last_offset_delta != header.count - 1:
        raise InvalidError(
            f"cannot append to {name}: a batch of {header.count} records "
            f"has a last offset delta of {header.last_offset_delta}"
        )
    if header.is_control:
        raise InvalidError(f"cannot append to {name}: only the broker may write control batches")
