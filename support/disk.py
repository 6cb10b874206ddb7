"""A simulated disk that loses power: it records the changes to files in a folder and keeps what a crash may leave.

The model is a journaling file system with two guarantees: data written to a file is durable after fsync or
fdatasync of the file, and a created, renamed or removed name is durable after fsync of its folder. Without these
calls, a crash keeps a file's changes up to some point, the last of them partly or as zeros, and a folder's name
changes up to some point, independently of the files' contents.

Functions of `os` and `io` are replaced while a disk is watching, so only one disk can watch at a time. It is
thread-safe.
"""

import io
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock


class PowerLoss(BaseException):
    """The simulated machine loses power."""


@dataclass(slots=True)
class Inode:
    """A file: its durable content, and the changes since."""

    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Position and written data; None instead of data for a truncation to that position."""

    def sync(self) -> None:
        for change in self.pending:
            self.durable = _changed(self.durable, change)
        self.pending.clear()

    def after_crash(self, chance: random.Random) -> bytes:
        """Return a content that a crash may leave: some of the changes, the last perhaps partly or as zeros."""
        content = self.durable
        kept = chance.randint(0, len(self.pending))
        for change in self.pending[:kept]:
            content = _changed(content, change)
        if kept < len(self.pending) and chance.random() < 0.7:
            position, data = self.pending[kept]
            if data is not None:
                torn = data[: chance.randint(0, len(data))]
                if chance.random() < 0.3:
                    torn += bytes(len(data) - len(torn))  # the new size was stored, the end of the data was not
                content = _changed(content, (position, torn))
        return content


def _changed(content: bytes, change: tuple[int, bytes | None]) -> bytes:
    position, data = change
    if data is None:
        return content[:position] + bytes(max(0, position - len(content)))
    before = content[:position] + bytes(max(0, position - len(content)))
    return before + data + content[position + len(data) :]


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    target: str


Names = dict[str, Inode | Link]
NameChange = Callable[[Names], None]


class Disk:
    """All files in `root`, an existing folder; their current contents count as durable."""

    def __init__(self, root: Path, chance: random.Random, crash_after: int | None = None) -> None:
        self.operations = 0
        self._root = os.path.realpath(root)
        self._chance = chance
        self._crash_after = crash_after
        self._is_dead = False
        self._lock = threading.RLock()
        self._names: Names = {}
        self._pending: dict[str, list[NameChange]] = {}
        self._files: dict[int, Inode] = {}
        self._folders: dict[int, str] = {}
        self._durable: Names = {}
        self._take_stock()

    def _take_stock(self) -> None:
        """Take the current files as the durable ones."""
        self._names.clear()
        self._pending.clear()
        for folder, _, files in os.walk(self._root):
            for name in files:
                path = os.path.join(folder, name)
                is_link = os.path.islink(path)
                self._names[path] = Link(os.readlink(path)) if is_link else Inode(durable=Path(path).read_bytes())
        self._durable = dict(self._names)

    @contextmanager
    def watching(self) -> Iterator["Disk"]:
        """Route every change of files through this disk."""
        real = {name: getattr(os, name) for name in _PATCHED}
        self._real = real
        patches = [mock.patch.object(os, name, getattr(self, f"_{name}")) for name in _PATCHED]
        self._real_open = io.open
        patches.append(mock.patch.object(io, "open", self._io_open))
        for patch in patches:
            patch.start()
        try:
            yield self
        finally:
            for patch in reversed(patches):
                patch.stop()
            for fd in [*self._files, *self._folders]:
                os.close(fd)  # a dead process has no open files
            self._files.clear()
            self._folders.clear()

    def revive(self, crash_after: int | None) -> None:
        """Continue after a crash of the process alone: unsynced changes remain, but are still not durable."""
        self._crash_after, self._is_dead, self.operations = crash_after, False, 0

    def lose_power(self) -> None:
        """Replace the files with what a crash may leave. Call it outside of `watching`."""
        names = dict(self._durable)
        for changes in self._pending.values():
            for change in changes[: self._chance.randint(0, len(changes))]:
                change(names)
        shutil.rmtree(self._root)
        os.makedirs(self._root)
        for path, what in names.items():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if isinstance(what, Link):
                os.symlink(what.target, path)
            else:
                Path(path).write_bytes(what.after_crash(self._chance))
        self._take_stock()

    # -- internals --------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Count an operation, and crash before it if its turn has come."""
        if self._is_dead:
            raise PowerLoss
        self.operations += 1
        if self._crash_after is not None and self.operations > self._crash_after:
            self._is_dead = True
            raise PowerLoss

    def _path_inside(self, path: Any) -> str | None:
        if isinstance(path, int):
            return None
        text = os.path.join(os.path.realpath(os.path.dirname(os.fspath(path)) or "."), os.path.basename(path))
        return text if text == self._root or text.startswith(self._root + os.sep) else None

    def _rename_later(self, path: str, change: NameChange) -> None:
        change(self._names)
        self._pending.setdefault(os.path.dirname(path), []).append(change)

    def _inode(self, path: str) -> Inode:
        found = self._names[path]
        while isinstance(found, Link):
            found = self._names[found.target]
        return found

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        full_path = self._path_inside(path)
        if full_path is None:
            return int(self._real["open"](path, flags, mode, dir_fd=dir_fd))
        with self._lock:
            if os.path.isdir(full_path):
                fd = self._real["open"](path, flags, mode)
                self._folders[fd] = full_path
                return int(fd)
            if flags & os.O_CREAT and full_path not in self._names:
                self._step()
                made = Inode()
                self._rename_later(full_path, lambda names: names.__setitem__(full_path, made))
            elif flags & os.O_TRUNC:
                self._step()
                self._inode(full_path).pending.append((0, None))
            fd = self._real["open"](path, flags, mode)
            self._files[fd] = self._inode(full_path)
            return int(fd)

    def _close(self, fd: int) -> None:
        with self._lock:
            self._files.pop(fd, None)
            self._folders.pop(fd, None)
            self._real["close"](fd)

    def _pwrite(self, fd: int, data: Any, position: int) -> int:
        with self._lock:
            if fd in self._files:
                self._step()
                self._files[fd].pending.append((position, bytes(data)))
            return int(self._real["pwrite"](fd, data, position))

    def _ftruncate(self, fd: int, size: int) -> None:
        with self._lock:
            if fd in self._files:
                self._step()
                self._files[fd].pending.append((size, None))
            self._real["ftruncate"](fd, size)

    def _fsync(self, fd: int) -> None:
        with self._lock:
            if fd in self._files:
                self._step()
                self._files[fd].sync()
            elif fd in self._folders:
                self._step()
                for change in self._pending.pop(self._folders[fd], []):
                    change(self._durable)

    _fdatasync = _fsync

    def _replace(self, source: Any, target: Any) -> None:
        old, new = self._path_inside(source), self._path_inside(target)
        if old is None or new is None:
            self._real["replace"](source, target)
            return
        with self._lock:
            self._step()

            def move(names: Names) -> None:
                if old in names:
                    names[new] = names.pop(old)

            assert os.path.dirname(old) == os.path.dirname(new)
            self._rename_later(new, move)
            self._real["replace"](source, target)

    _rename = _replace

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        full_path = self._path_inside(path) if dir_fd is None else None
        with self._lock:
            if full_path is not None and full_path in self._names:
                self._step()
                self._rename_later(full_path, lambda names: names.pop(full_path, None) and None)
            self._real["unlink"](path, dir_fd=dir_fd)

    def _symlink(self, source: Any, target: Any, target_is_directory: bool = False) -> None:
        full_path = self._path_inside(target)
        with self._lock:
            if full_path is not None:
                self._step()
                link = Link(os.path.realpath(source))
                self._rename_later(full_path, lambda names: names.__setitem__(full_path, link))
            self._real["symlink"](source, target)

    def _io_open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        full_path = None if mode != "wb" else self._path_inside(file)
        if full_path is None:
            return self._real_open(file, mode, *args, **kwargs)
        return _Writer(self, self._open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))


_PATCHED = (
    "open", "close", "pwrite", "ftruncate", "fsync", "fdatasync", "replace", "rename", "unlink", "symlink"
)  # fmt: skip


class _Writer(io.RawIOBase):
    """A file opened with mode "wb"."""

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk, self._fd, self._at = disk, fd, 0

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any) -> int:
        written = self._disk._pwrite(self._fd, data, self._at)
        self._at += written
        return written

    def close(self) -> None:
        if not self.closed:
            self._disk._close(self._fd)
        super().close()


def die_after(operations: int) -> None:
    """Let this process kill itself with SIGKILL after this many changes to files."""
    left = operations
    lock = threading.Lock()

    def dying(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            with lock:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return change(*args, **kwargs)

        return call

    for name in _PATCHED[2:]:
        setattr(os, name, dying(getattr(os, name)))
