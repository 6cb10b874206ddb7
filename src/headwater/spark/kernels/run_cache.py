"""What the workers of one machine share of an operator: runs of state as mapped files, and the last watermark.

Spark gives a task to any idle worker, so what only one worker remembers is mostly in the wrong place. Files below
Spark's own local directory, which Spark removes with itself, are in reach of all, and mapped they cost memory only
once, which the system can take back. Nothing here is needed: a run that is missing comes from Spark's state store,
and rows can travel without being combined.

A run has a name that is never used twice and never changes, so what is found under a name is right, whatever was
killed, repeated or run twice. Files appear by being renamed, so they are found whole or not at all.
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
"""Below this, asking the state store is as fast as opening a file."""

CACHE_BYTES_MAX = 64 * 1024 * 1024
"""Of runs without a file that a worker keeps."""

CACHE_RUNS_MAX = 1024
"""Mapped files that a worker keeps open."""

_cache: OrderedDict[str, tuple[Run, int]] = OrderedDict()
"""The runs this process knows by their names, and what they take of its memory; the last used ones last."""


@dataclass(frozen=True, slots=True)
class RunCache:
    """The shared things of one operator of one run of a query."""

    operator: str

    def find(self, name: str) -> Run | None:
        """A run, if this process or this machine has it."""
        if name in _cache:
            _cache.move_to_end(name)
            return _cache[name][0]
        path = self._folder() / name
        if not path.exists():
            return None
        return self._map(path, name)

    def keep(self, name: str, run: Run) -> Run:
        """Have a run at hand; the one returned is equal and takes less memory where it could be mapped."""
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
        """A run that is no longer part of the state; if a repeated task needs it, the state store has it."""
        _cache.pop(name, None)
        (self._folder() / name).unlink(missing_ok=True)

    def note_watermark(self, batch: int, watermark: int) -> None:
        """Tell the tasks of the next batch which watermark they will be judged at."""
        with suppress(OSError), replacing(self._folder() / "watermark") as temporary:
            temporary.write_text(f"{batch} {watermark}")

    def watermark_before(self, batch: int) -> int | None:
        """The watermark at which the rows of a batch are judged; None if this machine does not know."""
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
