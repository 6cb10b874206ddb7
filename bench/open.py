"""Opening a long log: a sparse log of 50 GB compared with one of 1 GB, each in its own process, in turns.

./dev bench open

Sealed segments are sparse files with a complete index. The open segment is as large as it can get after a crash
without a saved index. The benchmark measures what the broker does for a partition when it starts, then looks up an
offset by time, which checks every segment.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from headwater.record import Record
from headwater.transmit.log.index import INTERVAL_BYTES, SparseIndex
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.batch_header import place
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
    """Write sealed segments of 1 GiB that take no disk space, and an open segment."""
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
    argparse.ArgumentParser(prog="./dev bench open", description=(__doc__ or "").partition("\n")[0]).parse_args()
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
        print(f"{size:3d} GB: opened in {seconds * 1000:.1f} ms, memory grew by {grown} KiB to {peak} KiB")
    seconds = median(row[0] for row in found[50]) / median(row[0] for row in found[1])
    memory = median(row[2] for row in found[50]) / median(row[2] for row in found[1])
    print(f"50 GB takes {seconds:.1f}x the time and {memory:.2f}x the memory of 1 GB")


if __name__ == "__main__":
    main()
