"""The names of a partition's files."""

from pathlib import Path


def segment_path(directory: Path, base_offset: int) -> Path:
    """Return the path of the segment whose first record has an offset; names sort by offset."""
    return directory / f"{base_offset:020d}.log"


def index_path(segment: Path) -> Path:
    """Return the path of a segment's index."""
    return segment.with_suffix(".index")
