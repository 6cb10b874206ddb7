"""A folder of data files and manifests: the table consists of the files that the newest manifest names.

    folder/kept/<unique>                written and synced before a manifest names them, never changed
    folder/data/<unique>.parquet        links to the files that the newest manifest names, and to no others
    folder/manifests/<version>.json     the whole state after a commit; versions have no gaps

A commit is one new manifest. It is written to a temporary file, synced, and linked to its name, which fails if the
name exists: of two writers that both saw version 7, one creates version 8 and the other gets an error. Readers see
a whole commit or none of it. Files that no manifest of the last ten minutes names are deleted, so a reader has ten
minutes to read its files.

Many readers take all files that match `data/*.parquet` instead. So a file is linked there after the commit that
adds it, and is removed from there after the commit that replaces it; after a crash in between, the next writer
does that. Until then such a reader misses the last commit; readers of the manifest do not.
"""

import base64
import errno
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.errors import ConflictError, CorruptError, HeadwaterError, InvalidError, UnavailableError
from headwater.files import sync_directory, sync_file, write_synced
from headwater.sinks.progress import SinkProgress

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".parquet"
GRACE_MS = 10 * 60 * 1000
_MANIFEST = re.compile(r"(\d{12})\.json")
_TRIES_MAX = 100
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_TRANSIENT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ENOENT, errno.EMFILE, errno.ETIMEDOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of the table. If rows have a key, `low` is the lowest key hash that belongs to the file."""

    name: str
    rows: int
    bytes: int
    low: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The state of the table after a commit."""

    version: int = 0
    query: str
    epoch: int = 0
    schema: "pa.Schema"
    key: tuple[str, ...]
    progress: SinkProgress | None = None
    files: tuple[DataFile, ...] = ()


class Superseded(ConflictError):
    """Another manifest was committed after the one that the commit is based on."""


class ManifestChain:
    """The manifests and data files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._kept = folder / "kept"
        self._manifests = folder / "manifests"

    def create(self) -> None:
        """Create the folders."""
        for path in (self.data, self._kept, self._manifests):
            path.mkdir(parents=True, exist_ok=True)
        sync_directory(self.folder)

    def newest(self) -> Manifest | None:
        """Return the newest manifest; None if there is none yet."""
        for _ in range(_TRIES_MAX):
            versions = self._versions()
            if not versions:
                return None
            try:
                return _decode(self._path(versions[-1]))
            except FileNotFoundError:
                continue  # It was superseded and deleted in the meantime.
        raise UnavailableError(f"cannot read {str(self.folder)!r}: its manifests change faster than they are read")

    def commit(self, before: Manifest | None, after: Manifest) -> Manifest:
        """Commit `after` as the successor of `before`; raises Superseded if `before` already has one."""
        version = before.version + 1 if before else 1
        after = replace(after, version=version)
        temporary = self._manifests / f".{uuid.uuid4().hex}.tmp"
        try:
            write_synced(temporary, _encode(after))
            try:
                os.link(temporary, self._path(version))
            except (FileExistsError, FileNotFoundError):
                raise self._superseded() from None
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise InvalidError(
                    f"cannot write to {str(self.folder)!r}: its file system has no hard links, which are "
                    "needed to order the commits of two writers",
                    hint="name a folder on a local disk, or use hw.Delta",
                ) from error
            sync_directory(self._manifests)
        finally:
            temporary.unlink(missing_ok=True)
        # The name of an old manifest is free again once it is deleted; a writer that takes it is far too late.
        if self._versions()[-1] != version:
            raise self._superseded()
        return after

    def path_of(self, file: DataFile) -> Path:
        """Return the path at which a file stays for ten minutes after it was replaced."""
        kept = self._kept / file.name.removesuffix(SUFFIX)
        return kept if kept.exists() else self.data / file.name  # Earlier versions kept no second link.

    def show(self, newest: Manifest) -> None:
        """Make `data` contain exactly the files of the newest manifest, for readers that do not read manifests."""
        if self._versions()[-1:] != [newest.version]:
            return  # A later writer does it.
        named = {file.name for file in newest.files}
        shown = {path.name for path in self.data.iterdir()}
        for name in shown - named:
            kept = self._kept / name.removesuffix(SUFFIX)
            with suppress(FileExistsError, FileNotFoundError):
                os.link(self.data / name, kept)  # Written by an earlier version; a reader may still need it.
            (self.data / name).unlink(missing_ok=True)
        for name in named - shown:
            with suppress(FileExistsError):
                os.link(self._kept / name.removesuffix(SUFFIX), self.data / name)
        if shown != named:
            sync_directory(self.data)

    def check(self, manifest: Manifest) -> None:
        """Raise Superseded unless this manifest is the newest."""
        if self._versions()[-1:] != [manifest.version]:
            raise self._superseded()

    def clean(self, newest: Manifest, now_ms: int) -> None:
        """Delete old manifests, and files that no recent manifest names and no commit in progress may name."""
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
        named |= {name.removesuffix(SUFFIX) for name in named}
        for path in [*self._kept.iterdir(), *self._manifests.glob(".*.tmp")]:
            try:
                if path.name not in named and _age_ms(path, now_ms) >= GRACE_MS:
                    path.unlink()
            except FileNotFoundError:
                continue

    def write_file(self, write: Callable[[str], int], *, low: int = 0) -> DataFile:
        """Write and sync a data file under a unique name; `write` gets its path and returns the number of rows."""
        path = self._kept / uuid.uuid4().hex
        try:
            rows = write(str(path))
            with open(path, "rb") as file:
                sync_file(file)
                size = os.fstat(file.fileno()).st_size
            sync_directory(self._kept)
        except BaseException:
            path.unlink(missing_ok=True)  # A half-written file would take space on a full disk.
            raise
        return DataFile(name=path.name + SUFFIX, rows=rows, bytes=size, low=low)

    def _superseded(self) -> Superseded:
        return Superseded(
            f"cannot write to {str(self.folder)!r}: another writer has opened it since",
            hint="stop one of the two pipelines, or let it write to another folder",
        )

    def _versions(self) -> list[int]:
        try:
            names = os.listdir(self._manifests)
        except FileNotFoundError:
            return []
        return sorted(int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name)))

    def _path(self, version: int) -> Path:
        return self._manifests / f"{version:012d}.json"


@contextmanager
def disk_errors(attempt: str) -> Iterator[None]:
    """Raise errors of the file system as ours: a full disk is transient, a missing permission is not."""
    try:
        yield
    except HeadwaterError:
        raise
    except OSError as error:
        kind = UnavailableError if error.errno in _TRANSIENT else InvalidError
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = "free some space; the query then continues by itself" if error.errno == errno.ENOSPC else None
        raise kind(f"cannot {attempt}: {reason}", hint=hint) from error


def _encode(manifest: Manifest) -> bytes:
    fields = {
        "version": manifest.version,
        "query": manifest.query,
        "epoch": manifest.epoch,
        "key": list(manifest.key),
        "columns": {field.name: str(field.type) for field in manifest.schema},
        "schema": base64.b64encode(manifest.schema.serialize().to_pybytes()).decode(),
        "progress": None if manifest.progress is None else asdict(manifest.progress),
        "files": [asdict(file) for file in manifest.files],
    }
    return json.dumps(fields, indent=1).encode()


def _decode(path: Path) -> Manifest:
    import pyarrow as pa

    data = path.read_bytes()
    try:
        fields = json.loads(data)
        return Manifest(
            version=fields["version"],
            query=fields["query"],
            epoch=fields["epoch"],
            schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(fields["schema"]))),
            key=tuple(fields["key"]),
            progress=_progress(fields["progress"]),
            files=tuple(DataFile(**file) for file in fields["files"]),
        )
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise CorruptError(f"cannot read manifest {str(path)!r}: {error}") from error


def _progress(fields: dict[str, Any] | None) -> SinkProgress | None:
    return None if fields is None else SinkProgress(**{**fields, "past": tuple(fields["past"])})


def _age_ms(path: Path, now_ms: int) -> float:
    return now_ms - path.stat().st_mtime * 1000
