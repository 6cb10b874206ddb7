"""Move sealed segments to an archive directory, where they stay readable.

A link replaces the segment's file, so opening, reading and deleting still work by its path. The copy is complete
and on disk before the link replaces the file: after a crash there is either the file or the link.
"""

import shutil
from pathlib import Path

from headwater.files import replacing, sync_directory, sync_file


def copy_to_archive(path: Path, archive: Path) -> Path:
    """Copy a segment's file into its partition's folder in the archive; return its path. Can take long."""
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
    """Replace a segment's file by a link to its copy."""
    with replacing(path, path.with_suffix(".link")) as link:
        link.unlink(missing_ok=True)
        link.symlink_to(copy)
    sync_directory(path.parent)
    return path
