"""Durable files: wait until content and names are on disk, and replace a file in one step.

On POSIX, a file's content survives a power failure after fsync of the file, and its name after fsync of its
directory.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from uuid import uuid4


def sync_file(file: IO[Any]) -> None:
    """Flush a file and wait until its content is on disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until its content is on disk; its name is not synced."""
    with path.open("wb") as file:
        file.write(content)
        sync_file(file)


@contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Yield the path of a temporary file to write, and rename it to `path` when the block ends.

    Readers find the old file or the new one, never a part of it. If the block raises, the temporary file is
    removed. By default it has a unique hidden name next to `path`, so several processes can replace the same file.
    With a fixed name, repeated crashes leave one temporary file at most.
    """
    temporary = temporary or path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_durably(path: Path, content: bytes) -> None:
    """Replace a file in one step; its content and its name are on disk when this returns."""
    with replacing(path, path.with_name(path.name + ".new")) as temporary:
        write_synced(temporary, content)
    sync_directory(path.parent)
