"""Opening a long log: a sparse one of 50 GB against one of 1 GB, each in a process of its own, in turns.

./dev bench open

Sealed segments are holes with a true index beside them. The open one is as large as a crash can leave it without a
saved index. Measured is what the broker does for a partition at its start, and then a look-up by time, which asks
every segment.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from headwater.record import Record
from headwater.transmit.log.index import INTERVAL_BYTES, SparseIndex
from headwater.transmit.records.batch import encode_batch, place
from headwater.transmit.topics.upkeep import SAVE_INDEX_BYTES

GIB = 1 << 30
ROUNDS = 3
BATCH_BYTES = 16 << 10

MEASURE = """
import resource, sys, time
from pathlib import Path
from headwater.transmit.log.partition import LogSettings, PartitionLog
from headwater.record import TopicPartition
from headwater.transmit.topics.partition import Partition
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.perf_counter()
log = PartitionLog(Path(sys.argv[1]), LogSettings())
partition = Partition(TopicPartition("long", 0), log)
seconds = time.perf_counter() - started
log.offset_of_time(1 << 50)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(seconds, after - before, after, log.size_bytes)
"""


def make(directory: Path, segments: int) -> None:
    """Write sealed segments of a GiB that take no room, and an open one."""
    directory.mkdir(parents=True)
    records = GIB // BATCH_BYTES
    for number in range(segments):
        base = number * records
        path = directory / f"{base:020d}.log"
        with path.open("wb") as file:
            file.truncate(GIB)
        index = SparseIndex()
        for batch in range(0, records, max(1, INTERVAL_BYTES // BATCH_BYTES)):
            index.add(batch, batch * BATCH_BYTES, batch)
        index.save(path.with_suffix(".index"), size=GIB, next_offset=base + records, max_timestamp=records)
    value = bytes(BATCH_BYTES - 100)
    batch_data = bytearray(encode_batch([Record(value=value, timestamp_ms=1)]))
    base = segments * records
    with (directory / f"{base:020d}.log").open("wb") as file:
        for offset in range(base, base + SAVE_INDEX_BYTES // len(batch_data)):
            place(batch_data, 0, base_offset=offset, leader_epoch=0)
            file.write(batch_data)


def measure(directory: Path) -> tuple[float, int, int]:
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(directory)], check=True, capture_output=True, text=True
    )
    seconds, grown, peak, _ = result.stdout.split()
    return float(seconds), int(grown), int(peak)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        logs = {size: Path(folder) / f"{size}" for size in (1, 50)}
        for size, directory in logs.items():
            make(directory, size)
        found: dict[int, list[tuple[float, int, int]]] = {size: [] for size in logs}
        for _ in range(ROUNDS):
            for size, directory in logs.items():
                found[size].append(measure(directory))
    for size, rows in found.items():
        seconds, grown, peak = (median(column) for column in zip(*rows, strict=True))
        print(f"{size:3d} GB: opened in {seconds * 1000:.1f} ms, {grown} KiB more memory, {peak} KiB in all")
    seconds = median(row[0] for row in found[50]) / median(row[0] for row in found[1])
    memory = median(row[2] for row in found[50]) / median(row[2] for row in found[1])
    print(f"50 GB / 1 GB: {seconds:.1f} times the time, {memory:.2f} times the memory")


if __name__ == "__main__":
    main()
