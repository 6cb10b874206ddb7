"""A pool of open files of sealed segments, which closes the least recently used ones.

It bounds the number of file descriptors and the memory of indexes, however long a log is. Used from one thread.
"""

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headwater.transmit.log.index import SparseIndex

FILES_MAX = 256
INDEX_ENTRIES_MAX = 1 << 20
"""Of all open files together: 16 MiB, enough for a few segments of Kafka's default size."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A segment's descriptor and its index."""

    fd: int
    index: SparseIndex


class FilePool:
    """Keeps the most recently used files open."""

    def __init__(self, limit: int = FILES_MAX) -> None:
        self._limit = limit
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()
        self._entries = 0

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: Path, open_file: Callable[[], OpenFile]) -> OpenFile:
        """Return the open file of a path; call `open_file` if it is not open."""
        found = self._files.get(path)
        if found is None:
            found = self._files[path] = open_file()
            self._entries += len(found.index)
            while len(self._files) > self._limit or (self._entries > INDEX_ENTRIES_MAX and len(self._files) > 1):
                self.drop(next(iter(self._files)))
        else:
            self._files.move_to_end(path)
        return found

    def drop(self, path: Path) -> None:
        """Close a file if it is open, before it is changed or removed."""
        found = self._files.pop(path, None)
        if found is not None:
            self._entries -= len(found.index)
            os.close(found.fd)
