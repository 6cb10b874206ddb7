"""The batches of a query in a lane, in its checkpoint: which offsets each one reads, and whether it is done.

The files are those of a Spark query (`source.checkpoint`), so everything that reads a checkpoint reads these, too.
`lane.json` marks the checkpoint of a lane: its state is in files of our own (`state_files`), which Spark's
operators cannot read.

A batch is begun before it runs, and finished after its results are committed. A restart runs a batch that was
begun and not finished again, with the same offsets and the same processing time.
"""

import json
import uuid
from dataclasses import dataclass
from pathlib import Path

from headwater.files import replacing
from headwater.spark.source.checkpoint import begun_batch, end_offsets, has_begun, last_done, run_of
from headwater.spark.source.offsets import Offsets, to_json

MARK = "lane.json"
BATCHES_KEPT = 10

_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class BeganBatch:
    """A batch: its number, its end offsets and its processing time in milliseconds."""

    number: int
    end: Offsets
    clock_ms: int


class BatchLog:
    """The checkpoint of one query in a lane; creates it if there is none."""

    def __init__(self, folder: Path, topics: tuple[str, ...]) -> None:
        self._folder = folder
        self._topics = topics
        if not (folder / MARK).exists():
            for name in ("offsets", "commits"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            with replacing(folder / "metadata") as part:
                part.write_text(json.dumps({"id": str(uuid.uuid4())}))
            with replacing(folder / MARK) as part:
                part.write_text(json.dumps({"version": 1}))
        run = run_of(folder)
        assert run is not None
        self.run = run
        self.done = last_done(folder)
        """The number of the last finished batch; -1 before the first."""

    @property
    def position(self) -> Offsets:
        """The offsets after the last finished batch; empty before the first."""
        return end_offsets(self._folder, self.done)

    def unfinished(self) -> BeganBatch | None:
        """Return the batch that was begun and not finished."""
        begun = begun_batch(self._folder)
        if begun is None:
            return None
        settings = json.loads((self._folder / "offsets" / str(begun.number)).read_text().splitlines()[1])
        return BeganBatch(begun.number, begun.end, int(settings["batchTimestampMs"]))

    def begin(self, batch: BeganBatch) -> None:
        """Record a batch before it runs."""
        settings = {"batchWatermarkMs": 0, "batchTimestampMs": batch.clock_ms, "conf": {}}
        offsets = to_json(batch.end)
        lines = [json.dumps({topic: offsets.get(topic, {})}) for topic in self._topics]
        self._write("offsets", batch.number, [json.dumps(settings), *lines])

    def finish(self, number: int) -> None:
        """Record that the results of a batch are committed, and remove the files of old batches."""
        self._write("commits", number, [json.dumps({"nextBatchWatermarkMs": 0})])
        self.done = number
        for name in ("offsets", "commits"):
            (self._folder / name / str(number - BATCHES_KEPT)).unlink(missing_ok=True)

    def _write(self, kind: str, number: int, lines: list[str]) -> None:
        path = self._folder / kind / str(number)
        with replacing(path, path.with_name(f".{number}")) as part:
            part.write_text("\n".join([_VERSION, *lines]))


def is_lane(folder: Path) -> bool:
    """Return whether a checkpoint is one of a lane; True for one that no query has used."""
    return (folder / MARK).exists() or not has_begun(folder)
