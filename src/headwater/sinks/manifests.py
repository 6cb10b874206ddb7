"""A folder of data files of which only some count: those that the newest manifest names.

    folder/data/<unique>.parquet        written and synced before a manifest names them, never changed
    folder/manifests/<version>.json     the whole state after a commit; versions have no gaps

A commit is one new manifest. It is written aside, synced, and linked to its name, which fails if that is taken: of
two writers who both saw version 7 one makes version 8, and the other is told. Readers see a commit whole or not
at all. What no manifest of the last ten minutes names is deleted, so a reader has that long for its files.
"""

import base64
import errno
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.errors import ConflictError, CorruptError, HeadwaterError, InvalidError, UnavailableError
from headwater.files import sync_directory, sync_file, write_synced
from headwater.sinks.progress import SinkProgress

if TYPE_CHECKING:
    import pyarrow as pa

GRACE_MS = 10 * 60 * 1000
_MANIFEST = re.compile(r"(\d{12})\.json")
_TRIES_MAX = 100
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ENOENT, errno.EMFILE, errno.ETIMEDOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file that counts. Where rows have a key, `low` is the least hash of a key that belongs into it."""

    name: str
    rows: int
    bytes: int
    low: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The state after a commit."""

    version: int = 0
    query: str
    epoch: int = 0
    schema: "pa.Schema"
    key: tuple[str, ...]
    progress: SinkProgress | None = None
    files: tuple[DataFile, ...] = ()


class Superseded(ConflictError):
    """Another manifest was committed since the one that was to be followed."""


class ManifestChain:
    """The manifests of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._manifests = folder / "manifests"

    def make(self) -> None:
        """Make the folders."""
        for path in (self.data, self._manifests):
            path.mkdir(parents=True, exist_ok=True)
        sync_directory(self.folder)

    def newest(self) -> Manifest | None:
        """The manifest that counts; None if there is none yet."""
        for _ in range(_TRIES_MAX):
            versions = self._versions()
            if not versions:
                return None
            try:
                return _decode(self._path(versions[-1]))
            except FileNotFoundError:
                continue  # Deleted because it had become old meanwhile.
        raise UnavailableError(f"cannot read {str(self.folder)!r}: its manifests change faster than they are read")

    def commit(self, before: Manifest | None, after: Manifest) -> Manifest:
        """Let `after` be the one that follows `before`; Superseded if another does already."""
        version = before.version + 1 if before else 1
        after = replace(after, version=version)
        aside = self._manifests / f".{uuid.uuid4().hex}.tmp"
        try:
            write_synced(aside, _encode(after))
            try:
                os.link(aside, self._path(version))
            except (FileExistsError, FileNotFoundError):
                raise self._superseded() from None
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise InvalidError(
                    f"cannot write to {str(self.folder)!r}: its file system has no hard links, by which two "
                    "writers are told apart",
                    hint="name a folder on a local disk, or use hw.Delta",
                ) from error
            sync_directory(self._manifests)
        finally:
            aside.unlink(missing_ok=True)
        # A name is free again when its manifest was deleted for its age; who takes it then is late by far.
        if self._versions()[-1] != version:
            raise self._superseded()
        return after

    def check(self, manifest: Manifest) -> None:
        """Raise Superseded unless this manifest is the newest."""
        if self._versions()[-1:] != [manifest.version]:
            raise self._superseded()

    def clean(self, newest: Manifest, now_ms: int) -> None:
        """Delete old manifests, and files that neither the others name nor somebody is about to."""
        named = {file.name for file in newest.files}
        for version in self._versions():
            path = self._path(version)
            if version == newest.version:
                continue
            try:
                if version > newest.version or _age_ms(path, now_ms) < GRACE_MS:
                    named |= {file["name"] for file in json.loads(path.read_bytes())["files"]}
                else:
                    path.unlink(missing_ok=True)
            except FileNotFoundError:
                continue
        for path in [*self.data.iterdir(), *self._manifests.glob(".*.tmp")]:
            try:
                if path.name not in named and _age_ms(path, now_ms) >= GRACE_MS:
                    path.unlink()
            except FileNotFoundError:
                continue

    def _superseded(self) -> Superseded:
        return Superseded(
            f"cannot write to {str(self.folder)!r}: another writer was opened since",
            hint="one of two running pipelines has to stop, or write to another folder",
        )

    def _versions(self) -> list[int]:
        try:
            names = os.listdir(self._manifests)
        except FileNotFoundError:
            return []
        return sorted(int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name)))

    def _path(self, version: int) -> Path:
        return self._manifests / f"{version:012d}.json"


def new_file(chain: ManifestChain, write: Callable[[str], int], *, low: int = 0) -> DataFile:
    """Have a data file written under a name of its own, and synced; `write` gives the number of rows."""
    name = f"{uuid.uuid4().hex}.parquet"
    path = chain.data / name
    try:
        rows = write(str(path))
        with open(path, "rb") as file:
            sync_file(file)
            size = os.fstat(file.fileno()).st_size
        sync_directory(chain.data)
    except BaseException:
        path.unlink(missing_ok=True)  # A full disk should not be fuller for having been full.
        raise
    return DataFile(name=name, rows=rows, bytes=size, low=low)


@contextmanager
def disk_errors(attempt: str) -> Iterator[None]:
    """Tell what the disk has against it: a passing thing, as that it is full, or a lasting one."""
    try:
        yield
    except HeadwaterError:
        raise
    except OSError as error:
        kind = UnavailableError if error.errno in _PASSING else InvalidError
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = "it goes on by itself when there is room" if error.errno == errno.ENOSPC else None
        raise kind(f"cannot {attempt}: {reason}", hint=hint) from error


def _encode(manifest: Manifest) -> bytes:
    told = {
        "version": manifest.version,
        "query": manifest.query,
        "epoch": manifest.epoch,
        "key": list(manifest.key),
        "columns": {field.name: str(field.type) for field in manifest.schema},
        "schema": base64.b64encode(manifest.schema.serialize().to_pybytes()).decode(),
        "progress": None if manifest.progress is None else asdict(manifest.progress),
        "files": [asdict(file) for file in manifest.files],
    }
    return json.dumps(told, indent=1).encode()


def _decode(path: Path) -> Manifest:
    import pyarrow as pa

    data = path.read_bytes()
    try:
        told = json.loads(data)
        return Manifest(
            version=told["version"],
            query=told["query"],
            epoch=told["epoch"],
            schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told["schema"]))),
            key=tuple(told["key"]),
            progress=_progress(told["progress"]),
            files=tuple(DataFile(**file) for file in told["files"]),
        )
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise CorruptError(f"cannot read manifest {str(path)!r}: {error}") from error


def _progress(told: dict[str, Any] | None) -> SinkProgress | None:
    return None if told is None else SinkProgress(**{**told, "past": tuple(told["past"])})


def _age_ms(path: Path, now_ms: int) -> float:
    return now_ms - path.stat().st_mtime * 1000
