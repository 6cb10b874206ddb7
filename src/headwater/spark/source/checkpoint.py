"""Reads Spark's checkpoint of a query: its id, its last batch, and a batch that was begun and not finished.

metadata      {"id": ...}: the id of the checkpoint
offsets/N     the end offsets of batch N, written before it runs: `v1`, a line of settings, a line for each source
commits/N     present if batch N is done
"""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import CorruptError
from headwater.spark.source.offsets import Offsets, from_json

NO_OFFSET = "-"
"""The line of a source that has no offset yet."""


_OFFSET_LINES = 3
_CRC_MAGIC = b"crc\0"
_CRC_HEADER = struct.Struct(">4si")


@dataclass(frozen=True, slots=True)
class BegunBatch:
    """A batch that was begun and not finished, with its start and end offsets.

    A partition that is not in `start` is read from its first record.
    """

    number: int
    start: Offsets
    end: Offsets


def begun_batch(checkpoint: Path) -> BegunBatch | None:
    """Return the unfinished batch that a restart would run first; None if it would run a new one."""
    begun, done = _numbers(checkpoint / "offsets"), _numbers(checkpoint / "commits")
    if not begun or max(begun) in done:
        return None
    number = max(begun)
    start = _read_offsets(checkpoint / "offsets" / str(number - 1)) if number - 1 in begun else {}
    return BegunBatch(number, start, _read_offsets(checkpoint / "offsets" / str(number)))


def check_checkpoint(folder: Path, query: str) -> None:
    """Raise a CorruptError that names the file if a query cannot continue from its checkpoint."""
    for path, problem in _damage(folder):
        raise CorruptError(
            f"cannot continue {query!r} from its checkpoint: {str(path)!r} {problem}",
            hint=f"delete the checkpoint, `rm -r {folder}`: everything is then recomputed from the log "
            "and replaces the current results",
        )


def _damage(folder: Path) -> Iterator[tuple[Path, str]]:
    offsets, commits = folder / "offsets", folder / "commits"
    begun, done = _numbers(offsets), _numbers(commits)
    metadata = folder / "metadata"
    if not metadata.exists():
        if begun or done:
            # Spark would create a new one, and the store would take the next batch for the first of a new run.
            yield metadata, "is missing, although batches were run"
        return
    if not _is_json(_read_text(metadata)):
        yield metadata, "is damaged"
    for number in sorted(begun):
        text = _read_text(offsets / str(number))
        lines = text.splitlines()
        if len(lines) < _OFFSET_LINES or not all(line == NO_OFFSET or _is_json(line) for line in lines[1:]):
            yield offsets / str(number), "is empty" if not text else "is truncated"
    for number in sorted(done):
        text = _read_text(commits / str(number))
        if not _is_json("".join(text.splitlines()[1:])):
            yield commits / str(number), "is empty" if not text else "is truncated"
    for path in (metadata, *(offsets / str(n) for n in begun), *(commits / str(n) for n in done)):
        if not _is_whole(path):
            yield path, "does not have the checksum it was written with"
    if done and max(done) not in begun:
        yield offsets / str(max(done)), "is missing, although the batch is done"
    if begun and max(begun) not in done and max(begun) > 0 and max(begun) - 1 not in begun:
        yield offsets / str(max(begun) - 1), "is missing, although the batch after it was begun"


def _read_text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _is_whole(path: Path) -> bool:
    """Return whether a file has the checksums in Hadoop's file next to it; True if there is no such file."""
    checksums = path.with_name(f".{path.name}.crc")
    if not checksums.exists():
        return True
    sums, data = checksums.read_bytes(), path.read_bytes()
    if len(sums) < _CRC_HEADER.size or not sums.startswith(_CRC_MAGIC):
        return False
    _, chunk = _CRC_HEADER.unpack_from(sums)
    found = b"".join(struct.pack(">I", zlib.crc32(data[at : at + chunk])) for at in range(0, len(data), chunk))
    return found == sums[_CRC_HEADER.size :]


def run_of(checkpoint: Path) -> str | None:
    """Return the id of the checkpoint; None if no query was ever started with it."""
    try:
        found: str = json.loads((checkpoint / "metadata").read_text())["id"]
        return found
    except FileNotFoundError:
        return None


def end_offsets(checkpoint: Path, batch: int) -> Offsets:
    """Return the end offsets of a batch; empty before the first batch (-1)."""
    return _read_offsets(checkpoint / "offsets" / str(batch)) if batch >= 0 else {}


def has_begun(checkpoint: Path) -> bool:
    """Return whether a batch was begun with the checkpoint."""
    return bool(_numbers(checkpoint / "offsets"))


def last_done(checkpoint: Path) -> int:
    """Return the number of the last finished batch; -1 before the first."""
    return max(_numbers(checkpoint / "commits"), default=-1)


def _numbers(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.glob("*") if path.name.isdecimal()}


def _read_offsets(path: Path) -> Offsets:
    offsets: Offsets = {}
    for line in path.read_text().splitlines()[2:]:
        found = None if line.strip() == NO_OFFSET else json.loads(line)
        # A function may also read other sources; their lines have other offsets.
        if isinstance(found, dict) and all(isinstance(each, dict) for each in found.values()):
            for partition, offset in from_json(found).items():
                # A topic that a function reads twice has two lines with nearly the same offsets.
                offsets[partition] = max(offset, offsets.get(partition, 0))
    return offsets
