"""Periodic work on the partitions: roll segments by age, delete or archive expired ones, compact.

The decisions are pure functions in `log.retention` and `log.compaction`; this module applies them. Everything runs
in the broker's loop, in steps of at most one segment. Slow work (copying, compacting, syncing) runs in a thread,
on files that do not change, and the loop swaps in the result.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from headwater.clock import Clock
from headwater.errors import CorruptError
from headwater.transmit.log.archive import copy_to_archive, link_to_archive
from headwater.transmit.log.cleaner import (
    CompactedFile,
    group_segments,
    load_cleaned,
    map_offsets,
    save_cleaned,
    write_cleaned,
)
from headwater.transmit.log.compaction import KEYS_MAX, Cleanable, cleanable_end, is_due
from headwater.transmit.log.partition import PartitionLog
from headwater.transmit.log.retention import expired_by_size, expired_by_time, is_expired
from headwater.transmit.log.segment import Segment, save_index
from headwater.transmit.log.swap import swap_in
from headwater.transmit.records.batch_header import HEADER_BYTES, read_header
from headwater.transmit.topics.partition import Partition
from headwater.transmit.topics.producers import is_in_aborted
from headwater.transmit.topics.topics import Topics

logger = logging.getLogger(__name__)

ROLL_EVERY_S = 1.0
SAVE_INDEX_BYTES = 64 << 20
"""The open segment's index is saved after this many bytes, so a start after a crash scans at most this much."""

P = ParamSpec("P")
R = TypeVar("R")


class Upkeep:
    """Runs the periodic work on the partitions of `topics`."""

    def __init__(self, topics: Topics, clock: Clock, *, retention_every_s: float, clean_every_s: float) -> None:
        self._topics = topics
        self._clock = clock
        self._retention_every_s = retention_every_s
        self._clean_every_s = clean_every_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headwater-upkeep")
        self._started: dict[Path, tuple[int, int]] = {}
        """By log, of the open segment: base offset, and the time of its first record."""
        self._saved: dict[Path, tuple[int, int]] = {}
        """By log, of the open segment: base offset, and the number of bytes that the saved index covers."""
        self._uncleanable: set[Path] = set()
        for partition in topics.partitions():
            open_segment = partition.log.segments[-1]
            if open_segment.size:
                started = min(clock.now_ms(), _started_ms(open_segment))
                self._started[partition.log.directory] = (open_segment.base_offset, started)
                self._saved[partition.log.directory] = (open_segment.base_offset, open_segment.size)

    async def run(self) -> None:
        """Run each task at its interval until cancelled."""
        await asyncio.gather(
            self._repeat(ROLL_EVERY_S, self.roll),
            self._repeat(self._retention_every_s, self.expire),
            self._repeat(self._clean_every_s, self.clean),
        )

    def close(self) -> None:
        """Wait for the work in the thread."""
        self._thread.shutdown()

    async def _repeat(self, every_s: float, work: Callable[[Partition, int], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(every_s)
            for partition in self._topics.partitions():
                try:
                    await work(partition, self._clock.now_ms())
                except (OSError, CorruptError) as error:
                    # The next round retries; a topic that was deleted meanwhile is not an error.
                    if partition.log.directory.exists():
                        logger.error("upkeep of %s failed: %s", partition.name, error)
                await asyncio.sleep(0)  # let other tasks run

    # -- rolling ----------------------------------------------------------------------------------------------

    async def roll(self, partition: Partition, now_ms: int) -> None:
        """Start a new segment if the open one is older than segment.ms; else save its index if it is due."""
        log, config = partition.log, partition.config
        open_segment = log.segments[-1]
        if not open_segment.size or log.damage is not None:
            return
        base, started = self._started.get(log.directory, (-1, 0))
        if base != open_segment.base_offset:
            self._started[log.directory] = (open_segment.base_offset, now_ms)
            return
        limit = min(config.segment_ms, config.max_compaction_lag_ms) if config.compact else config.segment_ms
        if now_ms - started >= limit:
            await self._in_thread(open_segment.sync)  # or sealing would block the loop until the disk is done
            if log.segments[-1] is open_segment and not log.is_closed:
                log.roll()
        else:
            await self._save_index(log, open_segment)

    async def _save_index(self, log: PartitionLog, segment: Segment) -> None:
        base, size = self._saved.get(log.directory, (-1, 0))
        if segment.size - (size if base == segment.base_offset else 0) < SAVE_INDEX_BYTES:
            return
        saved = segment.copy_index()
        await self._in_thread(segment.sync)
        if log.segments[-1] is segment and not log.is_closed:  # else it was sealed meanwhile, with a longer index
            save_index(segment.path, saved)
            self._saved[log.directory] = (segment.base_offset, saved.size)

    # -- retention --------------------------------------------------------------------------------------------

    async def expire(self, partition: Partition, now_ms: int) -> None:
        """Delete or archive segments beyond retention.ms or retention.bytes."""
        log, config = partition.log, partition.config
        if not config.delete or log.damage is not None:
            return
        open_segment = log.segments[-1]
        if open_segment.size and is_expired(
            newest_ms(open_segment), now_ms=now_ms, retention_ms=config.retention_ms
        ):
            try:
                log.roll()
            except OSError as error:
                # Delete sealed segments nevertheless: they may be what fills the disk.
                logger.warning("cannot start another segment of %s: %s", partition.name, error)
        local = [segment for segment in log.segments[:-1] if not segment.path.is_symlink()]
        old = expired_by_time(map(newest_ms, local), now_ms=now_ms, retention_ms=config.retention_ms)
        total = sum(segment.size for segment in local) + log.segments[-1].size
        sizes = (segment.size for segment in local)
        large = expired_by_size(sizes, total_bytes=total, retention_bytes=config.retention_bytes)
        expired = local[: max(old, large)]
        if not expired:
            return
        reason = "retention.ms" if old >= large else "retention.bytes"
        if config.archive_dir:
            await self._archive(partition, expired, Path(config.archive_dir), reason)
            return
        before = expired[-1].next_offset
        partition.delete_before(before)
        logger.info("%s: deleted %d segments before offset %d by %s", partition.name, len(expired), before, reason)

    async def _archive(self, partition: Partition, expired: Iterable[Segment], archive: Path, reason: str) -> None:
        log = partition.log
        for segment in expired:
            copy = await self._in_thread(copy_to_archive, segment.path, archive)
            if segment in log.segments and not log.is_closed:
                log.replace([segment], partial(link_to_archive, segment.path, copy))
                logger.info("%s: archived %s by %s", partition.name, copy, reason)
            else:
                copy.unlink(missing_ok=True)  # deleted meanwhile

    # -- compaction -------------------------------------------------------------------------------------------

    async def clean(self, partition: Partition, now_ms: int, keys_max: int = KEYS_MAX) -> None:
        """Compact the partition if its topic is compacted and enough is dirty."""
        log, config = partition.log, partition.config
        if not config.compact or log.damage is not None or log.directory in self._uncleanable:
            return
        sealed = [segment for segment in log.segments[:-1] if not segment.path.is_symlink()]
        facts = list(map(_cleanable, sealed))
        dirty_from = max(load_cleaned(log.directory), log.start_offset)
        end = cleanable_end(
            facts, dirty_from=dirty_from, bound=partition.last_stable_offset, now_ms=now_ms,
            min_lag_ms=config.min_compaction_lag_ms,
        )  # fmt: skip
        if not is_due(
            facts, dirty_from=dirty_from, end=end, now_ms=now_ms, ratio=config.min_cleanable_dirty_ratio,
            max_lag_ms=config.max_compaction_lag_ms,
        ):  # fmt: skip
            return
        try:
            await self._clean(partition, sealed, (dirty_from, end, keys_max), now_ms)
        except CorruptError as error:
            self._uncleanable.add(log.directory)
            logger.error("cannot compact %s, it is not compacted until the next start: %s", partition.name, error)

    async def _clean(
        self, partition: Partition, sealed: list[Segment], dirty: tuple[int, int, int], now_ms: int
    ) -> None:
        log, config = partition.log, partition.config
        start, end, keys_max = dirty
        unread = [segment.path for segment in sealed if start < segment.next_offset <= end]
        is_aborted = partial(is_in_aborted, aborted=partition.producers.aborted(log.start_offset, end))
        latest = await self._in_thread(
            map_offsets, unread, start=start, end=end, keys_max=keys_max, is_aborted=is_aborted
        )
        before = log.size_bytes
        touched = [segment for segment in sealed if segment.base_offset < latest.end]
        for group in group_segments(touched, config.segment_bytes):
            cleaned = await self._in_thread(
                write_cleaned, [segment.path for segment in group], latest, end_offset=group[-1].next_offset,
                now_ms=now_ms, delete_retention_ms=config.delete_retention_ms, is_aborted=is_aborted,
            )  # fmt: skip
            if log.is_closed or not set(group) <= set(log.segments):
                cleaned.path.unlink(missing_ok=True)  # its records were deleted meanwhile
                return
            log.replace(group, partial(_swap_in, cleaned))
        save_cleaned(log.directory, latest.end)
        logger.info(
            "%s: compacted up to offset %d, %d of %d bytes are left",
            partition.name,
            latest.end,
            log.size_bytes,
            before,
        )

    async def _in_thread(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args, **kwargs))


def _swap_in(cleaned: CompactedFile) -> Path:
    path = swap_in(cleaned.path, cleaned.end_offset)
    save_index(path, cleaned.saved)
    return path


def _cleanable(segment: Segment) -> Cleanable:
    return Cleanable(
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size=segment.size,
        oldest_ms=_started_ms(segment),
        newest_ms=newest_ms(segment),
    )


def newest_ms(segment: Segment) -> int:
    """Return the time of the newest record; of the file if records have none."""
    return segment.max_timestamp if segment.max_timestamp >= 0 else _written_ms(segment)


def _started_ms(segment: Segment) -> int:
    """Return the time of the segment's first batch; of the file if it has none."""
    if not segment.size:
        return _written_ms(segment)
    first = read_header(segment.read(0, HEADER_BYTES)).max_timestamp
    return first if first >= 0 else _written_ms(segment)


def _written_ms(segment: Segment) -> int:
    return os.stat(segment.path).st_mtime_ns // 1_000_000
