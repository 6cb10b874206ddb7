"""Putting one segment file in the place of several, so that a crash at any point leaves the old or the new.

    <base>.cleaned            being written; worth nothing after a crash
    <base>-<end>.swap         whole and on the disk: from now on it counts, and stands for all offsets in its name

Then the old segments go, the last step renames it to <base>.log. What a crash interrupts is finished at the start.
"""

import os
from pathlib import Path

from headwater.files import sync_directory
from headwater.transmit.log.segment import index_path, segment_path


def cleaned_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.cleaned"


def swap_in(cleaned: Path, end_offset: int) -> Path:
    """Put a written file in the place of the segments from its base offset up to an end; return its new path."""
    swap = cleaned.with_name(f"{cleaned.stem}-{end_offset:020d}.swap")
    cleaned.rename(swap)
    sync_directory(swap.parent)
    return _finish(swap)


def finish_swaps(directory: Path) -> None:
    """After a crash: finish what was whole, throw away what was not."""
    for path in directory.glob("*.cleaned"):
        path.unlink()
    for path in sorted(directory.glob("*.swap")):
        _finish(path)


def _finish(swap: Path) -> Path:
    base, end = (int(part) for part in swap.stem.split("-"))
    target = segment_path(swap.parent, base)
    for path in swap.parent.glob("*.log"):
        if base < int(path.stem) < end:
            index_path(path).unlink(missing_ok=True)
            path.unlink()
    index_path(target).unlink(missing_ok=True)
    os.replace(swap, target)
    sync_directory(swap.parent)
    return target
