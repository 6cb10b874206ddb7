"""Parquet: a folder of Parquet files, exactly once. The table consists of the files in the newest manifest.

    hw.Parquet("out/orders")

Without a key each batch adds a file, and small files are merged in a commit of their own. With a key, the keys are
divided among files by hash, about 64,000 rows each; a batch rewrites the files that hold one of its keys. Rows and
batch number are committed in one manifest (see `manifests`).

Any Parquet reader can read the files that `parquet_files` returns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.clock import SystemClock
from headwater.errors import ConflictError, CorruptError, InvalidError
from headwater.sink import Batch, Guarantee, Stream, Writer
from headwater.sinks.json_rows import json_objects
from headwater.sinks.manifests import DataFile, Manifest, ManifestChain, Superseded, disk_errors
from headwater.sinks.net_changes import net_changes
from headwater.sinks.progress import next_step
from headwater.sinks.stream_checks import check_changes_have_key, check_key_in_schema, check_same_columns
from headwater.transmit.records.from_arrow import Ints, hashes_of_keys

RANGE_ROWS = 1 << 16
"""Approximate number of rows in a file of keyed rows: a batch of few keys rewrites this many rows for each key."""
MERGED_FILES = 16
"""Number of files of similar size that are merged into one, and so the limit of files of each size."""
LARGE_BYTES = 64 << 20
"""Larger files are not merged."""
_SIZE_STEP = 16
_SMALLEST_BYTES = 64 << 10
_CLEAN_EVERY = 100
_OPEN_TRIES_MAX = 100


@dataclass(frozen=True, slots=True)
class Parquet:
    """A folder, created if missing; it belongs to one query."""

    folder: str | Path

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def open(self, stream: Stream) -> Writer:
        """Create or check the folder, and fence every writer opened before."""
        attempt = f"cannot write {stream.query!r} to {str(self.folder)!r}"
        check_changes_have_key(stream, attempt)
        check_key_in_schema(stream, attempt)
        with disk_errors(f"open {str(self.folder)!r}"):
            chain = ManifestChain(Path(self.folder))
            chain.create()
            manifest = _open_chain(chain, stream)
            return _ParquetWriter(chain, stream, manifest)


def parquet_files(folder: str | Path) -> list[str]:
    """Return the Parquet files of the table as it is now; they stay for ten minutes after they are replaced."""
    chain = ManifestChain(Path(folder))
    manifest = chain.newest()
    if manifest is None:
        raise InvalidError(f"cannot read {str(folder)!r}: no sink has written there")
    return [str(chain.path_of(file)) for file in manifest.files]


def read_parquet(folder: str | Path) -> pa.Table:
    """Return the whole table as it is now."""
    chain = ManifestChain(Path(folder))
    manifest = chain.newest()
    if manifest is None:
        raise InvalidError(f"cannot read {str(folder)!r}: no sink has written there")
    return pa.concat_tables([manifest.schema.empty_table(), *(_read(chain, file) for file in manifest.files)])


def _open_chain(chain: ManifestChain, stream: Stream) -> Manifest:
    """Check that the stream fits, and fence earlier writers with a manifest of the next epoch."""
    for _ in range(_OPEN_TRIES_MAX):
        before = chain.newest()
        if before is None:
            base = Manifest(query=stream.query, schema=stream.schema, key=stream.key)
        else:
            _check_fit(chain.folder, before, stream)
            base = before
        try:
            return chain.commit(before, replace(base, epoch=base.epoch + 1))
        except Superseded:
            continue  # Two writers open it at the same time; the second one fences the first.
    raise ConflictError(
        f"cannot open {str(chain.folder)!r}: other writers opened it before each of {_OPEN_TRIES_MAX} attempts",
        hint="run only one pipeline that writes to this folder",
    )


def _check_fit(folder: Path, manifest: Manifest, stream: Stream) -> None:
    attempt = f"cannot write {stream.query!r} to {str(folder)!r}"
    hint = "name another folder, or delete this one"
    if manifest.query != stream.query:
        raise ConflictError(f"{attempt}: it belongs to {manifest.query!r}", hint=hint)
    if manifest.key != stream.key:
        raise InvalidError(f"{attempt}: its key is {', '.join(manifest.key) or 'none'}", hint=hint)
    known = {field.name: field.type for field in manifest.schema}
    given = {field.name: field.type for field in stream.schema}
    check_same_columns(known, given, attempt, hint)


class _ParquetWriter:
    def __init__(self, chain: ManifestChain, stream: Stream, manifest: Manifest) -> None:
        self._chain = chain
        self._stream = stream
        self._manifest = manifest
        self._clock = SystemClock()
        chain.show(manifest)
        chain.clean(manifest, self._clock.now_ms())

    def write(self, batch: Batch) -> bool:
        with disk_errors(f"write to {str(self._chain.folder)!r}"):
            return self._write(batch)

    def close(self) -> None:
        pass

    def _write(self, batch: Batch) -> bool:
        before = self._manifest
        self._chain.check(before)
        step = next_step(before.progress, batch, self._stream, repr(str(self._chain.folder)))
        if step is None:
            return False
        old = () if step.replaces else before.files
        new = self._rewrite(old, batch) if self._stream.key else self._append(old, batch)
        self._commit(replace(before, files=tuple(new), progress=step.progress))
        self._merge()
        self._chain.show(self._manifest)
        if self._manifest.version % _CLEAN_EVERY == 0:
            self._chain.clean(self._manifest, self._clock.now_ms())
        return True

    def _commit(self, after: Manifest) -> None:
        self._manifest = self._chain.commit(self._manifest, after)

    # -- without a key ----------------------------------------------------------------------------------------

    def _append(self, files: Sequence[DataFile], batch: Batch) -> list[DataFile]:
        rows = batch.rows.cast(self._stream.schema)
        return [*files, self._chain.write_file(partial(_write_table, rows))] if rows.num_rows else [*files]

    def _merge(self) -> None:
        """Merge small files into one, in a commit of its own."""
        while not self._stream.key:
            files = self._manifest.files
            small = _to_merge(files)
            if not small:
                return
            merged = self._chain.write_file(partial(self._copy, small))
            at = files.index(small[0])
            left = [file for file in files if file not in small]
            self._commit(replace(self._manifest, files=(*left[:at], merged, *left[at:])))

    def _copy(self, files: Sequence[DataFile], path: str) -> int:
        rows = 0
        with pq.ParquetWriter(path, self._stream.schema) as writer:
            for file in files:
                table = _read(self._chain, file)
                writer.write_table(table)
                rows += table.num_rows
        return rows

    # -- with a key -------------------------------------------------------------------------------------------

    def _rewrite(self, files: Sequence[DataFile], batch: Batch) -> list[DataFile]:
        """Return the files, with those that hold a key of the batch rewritten."""
        net = net_changes(replace(batch, rows=batch.rows.cast(self._stream.schema)), self._stream.key)
        put_keys, deleted_keys = self._key_texts(net.puts), self._key_texts(net.deletes)
        touched = pa.concat_arrays([put_keys, deleted_keys])
        lows = np.array([file.low for file in files], np.int64)
        ranges, put_ranges = _ranges(lows, touched), _ranges(lows, put_keys)
        result = list(files)
        for number in np.unique(ranges):
            old = files[number] if files else None
            rows = net.puts.filter(pa.array(put_ranges == number))
            if old is not None:
                rows = pa.concat_tables([self._without(old, touched.filter(pa.array(ranges == number))), rows])
                result.remove(old)
            result += self._split(rows, old.low if old else 0)
        return sorted(result, key=lambda file: file.low)

    def _without(self, file: DataFile, keys: pa.Array) -> pa.Table:
        rows = _read(self._chain, file)
        return rows.filter(pc.invert(pc.is_in(self._key_texts(rows), value_set=keys)))

    def _split(self, rows: pa.Table, low: int) -> Iterable[DataFile]:
        """Write the rows of one range as files, splitting the range if it has become too large."""
        if rows.num_rows <= 2 * RANGE_ROWS:
            return [self._file(rows, low)] if rows.num_rows else []
        hashes = hashes_of_keys(self._key_texts(rows))
        ordered = np.sort(hashes)
        lows = np.unique([low, *(int(ordered[at]) for at in range(RANGE_ROWS, rows.num_rows, RANGE_ROWS))])
        ranges = np.maximum(np.searchsorted(lows, hashes, side="right") - 1, 0)
        parts = [(rows.filter(pa.array(ranges == n)), int(low)) for n, low in enumerate(lows)]
        return [self._file(part, low) for part, low in parts if part.num_rows]

    def _file(self, rows: pa.Table, low: int) -> DataFile:
        return self._chain.write_file(partial(_write_table, rows), low=low)

    def _key_texts(self, rows: pa.Table) -> pa.Array:
        """Return the keys as JSON text, which is compared and hashed the same for all types."""
        return json_objects(rows.select(list(self._stream.key)))


def _ranges(lows: Ints, keys: pa.Array) -> Ints:
    """Return the index of each key's file; keys below the first file's range belong to it too."""
    found = np.searchsorted(lows, hashes_of_keys(keys), side="right") - 1
    return cast(Ints, np.maximum(found, 0))


def _to_merge(files: Sequence[DataFile]) -> list[DataFile]:
    sizes: dict[int, list[DataFile]] = {}
    for file in files:
        step, limit = 0, _SMALLEST_BYTES
        while file.bytes >= limit:
            step, limit = step + 1, limit * _SIZE_STEP
        if file.bytes < LARGE_BYTES:
            sizes.setdefault(step, []).append(file)
    return next((found for found in sizes.values() if len(found) >= MERGED_FILES), [])


def _write_table(rows: pa.Table, path: str) -> int:
    pq.write_table(rows, path)
    return int(rows.num_rows)


def _read(chain: ManifestChain, file: DataFile) -> pa.Table:
    path = chain.path_of(file)
    try:
        return pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError) and error.errno:
            raise
        raise CorruptError(f"cannot read {str(path)!r}, which the newest manifest names: {error}") from error
