"""Replace several segment files by one, so that a crash at any point leaves the old files or the new one.

    <base>.cleaned            being written; discarded after a crash
    <base>-<end>.swap         complete and on disk; it replaces all segments in its range of offsets

Then the old segments are deleted, and the file is renamed to <base>.log. The next start finishes a swap that a
crash has interrupted.
"""

import os
from pathlib import Path

from headwater.files import sync_directory
from headwater.transmit.log.file_names import index_path, segment_path


def cleaned_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.cleaned"


def swap_in(cleaned: Path, end_offset: int) -> Path:
    """Replace the segments from a written file's base offset up to an end; return the file's new path."""
    swap = cleaned.with_name(f"{cleaned.stem}-{end_offset:020d}.swap")
    cleaned.rename(swap)
    sync_directory(swap.parent)
    return _finish(swap)


def finish_swaps(directory: Path) -> None:
    """After a crash, finish swaps of complete files and discard incomplete files."""
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
