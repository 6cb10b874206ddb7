"""A cache that the workers of one machine share: runs of an operator's state as mapped files, and its watermark.

Spark gives a task to any idle worker, so a cache in one worker is mostly not the one that is needed. All workers
can read files below Spark's local directory, which Spark removes when it stops. Mapped, they take memory only
once, and the system can reclaim it. The cache is optional: a missing run is read from Spark's state store, and
rows can be sent without being combined.

The name of a run is never reused and its content never changes, so a run found by its name is right even after
tasks were killed or run twice. Files are renamed into place, so they are complete or absent.
"""

import os
import tempfile
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headwater.files import replacing
from headwater.process.kernel import BEGINNING
from headwater.process.table import Run
from headwater.spark.kernels.frames import from_lean, to_lean

FILE_BYTES_MIN = 64 * 1024
"""Below this size, reading the state store is as fast as opening a file."""

CACHE_BYTES_MAX = 64 * 1024 * 1024
"""Size of the runs without a file that a worker keeps."""

CACHE_RUNS_MAX = 1024
"""Number of runs that a worker keeps, mapped files included."""

_cache: OrderedDict[str, tuple[Run, int]] = OrderedDict()
"""Runs by name with the memory they take; the most recently used ones last."""


@dataclass(frozen=True, slots=True)
class RunCache:
    """The shared files of one operator of one start of a query."""

    operator: str

    def find(self, name: str) -> Run | None:
        """Return a run if this process or this machine has it."""
        if name in _cache:
            _cache.move_to_end(name)
            return _cache[name][0]
        path = self._folder() / name
        if not path.exists():
            return None
        return self._map(path, name)

    def keep(self, name: str, run: Run) -> Run:
        """Cache a run; return an equal one that takes less memory if it could be mapped."""
        size = int(run.frame.estimated_size())
        if size >= FILE_BYTES_MIN:
            with suppress(OSError):  # A full disk makes it slower, not wrong.
                path = self._folder() / name
                with replacing(path) as temporary:
                    table = to_lean(run.frame)
                    with pa.ipc.new_file(str(temporary), table.schema) as writer:
                        writer.write_table(table)
                return self._map(path, name) or run
        _remember(name, run, size)
        return run

    def forget(self, name: str) -> None:
        """Remove a run that is no longer part of the state; a repeated task finds it in the state store."""
        _cache.pop(name, None)
        (self._folder() / name).unlink(missing_ok=True)

    def note_watermark(self, batch: int, watermark: int) -> None:
        """Save the watermark for the tasks of the next batch, which combine their rows at it."""
        with suppress(OSError), replacing(self._folder() / "watermark") as temporary:
            temporary.write_text(f"{batch} {watermark}")

    def watermark_before(self, batch: int) -> int | None:
        """Return the watermark at which a batch's rows are processed; None if this machine does not have it."""
        if batch == 0:
            return BEGINNING
        try:
            noted, watermark = map(int, (self._folder() / "watermark").read_text().split())
        except (OSError, ValueError):
            return None
        return watermark if noted == batch - 1 else None

    def _map(self, path: Path, name: str) -> Run | None:
        try:
            with pa.memory_map(str(path)) as file:
                run = Run.ordered(from_lean(pa.ipc.open_file(file).read_all()))
        except (OSError, pa.ArrowInvalid):
            return None
        _remember(name, run, 0)
        return run

    def _folder(self) -> Path:
        spark = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
        folder = Path(spark) / "headwater" / self.operator
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _remember(name: str, run: Run, size: int) -> None:
    _cache[name] = (run, size)
    total = sum(bytes_ for _, bytes_ in _cache.values())
    while len(_cache) > CACHE_RUNS_MAX or (total > CACHE_BYTES_MAX and len(_cache) > 1):
        _, (_, freed) = _cache.popitem(last=False)
        total -= freed
