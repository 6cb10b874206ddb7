"""Moving sealed segments to another directory, from which they are still read.

The log keeps a link in the segment's place, so opening, reading and deleting find it where it was. The copy is
whole and on the disk before the link replaces the file: after a crash one or the other is there.
"""

import shutil
from pathlib import Path

from headwater.files import replacing, sync_directory, sync_file


def copy_to_archive(path: Path, archive: Path) -> Path:
    """Copy a segment's file into the archive's folder for its partition; return the copy. May take long."""
    folder = archive / path.parent.name
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / path.name
    with (
        replacing(target, target.with_suffix(".copying")) as temporary,
        path.open("rb") as original,
        temporary.open("wb") as copy,
    ):
        shutil.copyfileobj(original, copy, 1 << 20)
        sync_file(copy)
    sync_directory(folder)
    return target.resolve()


def link_to_archive(path: Path, copy: Path) -> Path:
    """Put a link to the copy in the place of the segment's file."""
    with replacing(path, path.with_suffix(".link")) as link:
        link.unlink(missing_ok=True)
        link.symlink_to(copy)
    sync_directory(path.parent)
    return path
