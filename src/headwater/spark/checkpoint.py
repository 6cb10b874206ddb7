"""Spark's checkpoint of a query, as far as we look into it: which batch was begun and not finished, and of what.

metadata      {"id": ...}: the identity of the checkpoint
offsets/N     how far batch N reads, written before it runs: `v1`, a line of settings, a line for each source
commits/N     that batch N is done
"""

import json
from dataclasses import dataclass
from pathlib import Path

from headwater.spark.offsets import Offsets, from_json

NO_OFFSET = "-"
"""What stands in the place of a source that has given nothing yet."""


@dataclass(frozen=True, slots=True)
class BegunBatch:
    """A batch that was begun and not finished: where it starts and ends, partition by partition.

    A partition that is not among the starts is read from its first record on.
    """

    number: int
    start: Offsets
    end: Offsets


def begun_batch(checkpoint: Path) -> BegunBatch | None:
    """The batch that would be run first if the query were started again; None if it would be a new one."""
    begun, done = _numbers(checkpoint / "offsets"), _numbers(checkpoint / "commits")
    if not begun or max(begun) in done:
        return None
    number = max(begun)
    start = _read_offsets(checkpoint / "offsets" / str(number - 1)) if number - 1 in begun else {}
    return BegunBatch(number, start, _read_offsets(checkpoint / "offsets" / str(number)))


def _numbers(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.glob("*") if path.name.isdecimal()}


def _read_offsets(path: Path) -> Offsets:
    offsets: Offsets = {}
    for line in path.read_text().splitlines()[2:]:
        if line.strip() != NO_OFFSET:
            for partition, offset in from_json(json.loads(line)).items():
                # A topic that a function reads twice has two lines, which go the same way.
                offsets[partition] = max(offset, offsets.get(partition, 0))
    return offsets
