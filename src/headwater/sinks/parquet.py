"""Parquet: a folder of Parquet files with a manifest, exactly once. What the newest manifest names is the table.

    hw.Parquet("out/orders")

Without a key each batch is a file more, and small files are merged in a commit of their own. With a key, files
share the keys out among them by hash, some 64 000 rows each; a batch rewrites the files that hold a key of it.
Rows and the batch's number are in one manifest, so they are there together (see `manifests`).

Any reader of Parquet reads the files that `parquet_files` gives.
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
from headwater.sinks.manifests import (
    DataFile,
    Manifest,
    ManifestChain,
    Superseded,
    disk_errors,
    new_file,
)
from headwater.sinks.net_changes import check_changes_have_key, fold
from headwater.sinks.progress import BatchAction, advance, judge
from headwater.transmit.records.from_arrow import Ints, hashes_of_keys

RANGE_ROWS = 1 << 16
"""Of a file of keyed rows, about: a batch of few keys rewrites so many rows for each of them."""
MERGED_FILES = 16
"""So many files of about one size become one; hence there are at most so many of each size."""
LARGE_BYTES = 64 << 20
"""Files beyond this are not merged."""
_SIZE_STEP = 16
_SMALLEST_BYTES = 64 << 10
_CLEAN_EVERY = 100
_OPEN_TRIES_MAX = 100


@dataclass(frozen=True, slots=True)
class Parquet:
    """A folder, made if it is not there; it belongs to one query."""

    folder: str | Path

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def open(self, stream: Stream) -> Writer:
        """Make the folder ready, and fence every writer opened before."""
        attempt = f"cannot write {stream.query!r} to {str(self.folder)!r}"
        check_changes_have_key(stream, attempt)
        for name in stream.key:
            if name not in stream.schema.names:
                raise InvalidError(f"{attempt}: no column {name!r}")
        with disk_errors(f"open {str(self.folder)!r}"):
            chain = ManifestChain(Path(self.folder))
            chain.make()
            manifest = _take_over(chain, stream)
            return _ParquetWriter(chain, stream, manifest)


def parquet_files(folder: str | Path) -> list[str]:
    """The Parquet files that are the table now; they stay for ten minutes after they no longer are."""
    chain = ManifestChain(Path(folder))
    manifest = chain.newest()
    if manifest is None:
        raise InvalidError(f"cannot read {str(folder)!r}: no sink has written there")
    return [str(chain.data / file.name) for file in manifest.files]


def read_parquet(folder: str | Path) -> pa.Table:
    """The whole table as it is now."""
    chain = ManifestChain(Path(folder))
    manifest = chain.newest()
    if manifest is None:
        raise InvalidError(f"cannot read {str(folder)!r}: no sink has written there")
    return pa.concat_tables([manifest.schema.empty_table(), *(_read(chain, file) for file in manifest.files)])


def _take_over(chain: ManifestChain, stream: Stream) -> Manifest:
    """Check that the stream fits, and fence who was here before by a manifest of the next epoch."""
    for _ in range(_OPEN_TRIES_MAX):
        before = chain.newest()
        if before is None:
            before_ours = Manifest(query=stream.query, schema=stream.schema, key=stream.key)
        else:
            _check_fit(chain.folder, before, stream)
            before_ours = before
        try:
            return chain.commit(before, replace(before_ours, epoch=before_ours.epoch + 1))
        except Superseded:
            continue  # Two open it at the same time; who comes second fences the other.
    raise ConflictError(f"cannot open {str(chain.folder)!r}: others open it over and over")


def _check_fit(folder: Path, there: Manifest, stream: Stream) -> None:
    attempt = f"cannot write {stream.query!r} to {str(folder)!r}"
    hint = "name another folder, or delete this one"
    if there.query != stream.query:
        raise ConflictError(f"{attempt}: it belongs to {there.query!r}", hint=hint)
    if there.key != stream.key:
        raise InvalidError(f"{attempt}: its key is {', '.join(there.key) or 'none'}", hint=hint)
    known = {field.name: field.type for field in there.schema}
    given = {field.name: field.type for field in stream.schema}
    for name in [*known, *given]:
        if known.get(name) != given.get(name):
            found, offered = (str(columns.get(name, "missing")) for columns in (known, given))
            raise InvalidError(f"{attempt}: column {name!r} there is {found}, the rows' is {offered}", hint=hint)


class _ParquetWriter:
    def __init__(self, chain: ManifestChain, stream: Stream, manifest: Manifest) -> None:
        self._chain = chain
        self._stream = stream
        self._manifest = manifest
        self._clock = SystemClock()
        chain.clean(manifest, self._clock.now_ms())

    def write(self, batch: Batch) -> bool:
        with disk_errors(f"write to {str(self._chain.folder)!r}"):
            return self._write(batch)

    def close(self) -> None:
        pass

    def _write(self, batch: Batch) -> bool:
        before = self._manifest
        self._chain.check(before)
        step = judge(before.progress, batch, self._stream, repr(str(self._chain.folder)))
        if step is BatchAction.SKIP:
            return False
        there = before.files if step is BatchAction.ADD else ()
        files = self._rewritten(there, batch) if self._stream.key else self._appended(there, batch)
        self._commit(replace(before, files=tuple(files), progress=advance(before.progress, batch)))
        self._merge()
        if self._manifest.version % _CLEAN_EVERY == 0:
            self._chain.clean(self._manifest, self._clock.now_ms())
        return True

    def _commit(self, after: Manifest) -> None:
        self._manifest = self._chain.commit(self._manifest, after)

    # -- without a key ----------------------------------------------------------------------------------------

    def _appended(self, there: Sequence[DataFile], batch: Batch) -> list[DataFile]:
        rows = batch.rows.cast(self._stream.schema)
        return [*there, new_file(self._chain, partial(_write_table, rows))] if rows.num_rows else [*there]

    def _merge(self) -> None:
        """Make one file of many small ones, in a commit of its own."""
        while not self._stream.key:
            files = self._manifest.files
            small = _to_merge(files)
            if not small:
                return
            merged = new_file(self._chain, partial(self._copy, small))
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

    def _rewritten(self, there: Sequence[DataFile], batch: Batch) -> list[DataFile]:
        """The files with those replaced that hold a key of the batch."""
        folded = fold(replace(batch, rows=batch.rows.cast(self._stream.schema)), self._stream.key)
        put_keys, gone_keys = self._texts(folded.puts), self._texts(folded.deletes)
        touched = pa.concat_arrays([put_keys, gone_keys])
        lows = np.array([file.low for file in there], np.int64)
        ranges, put_ranges = _ranges(lows, touched), _ranges(lows, put_keys)
        files = list(there)
        for number in np.unique(ranges):
            old = there[number] if there else None
            rows = folded.puts.filter(pa.array(put_ranges == number))
            if old is not None:
                rows = pa.concat_tables([self._without(old, touched.filter(pa.array(ranges == number))), rows])
                files.remove(old)
            files += self._cut(rows, old.low if old else 0)
        return sorted(files, key=lambda file: file.low)

    def _without(self, file: DataFile, keys: pa.Array) -> pa.Table:
        rows = _read(self._chain, file)
        return rows.filter(pc.invert(pc.is_in(self._texts(rows), value_set=keys)))

    def _cut(self, rows: pa.Table, low: int) -> Iterable[DataFile]:
        """Rows of one range as files, of several ranges if they have become too many."""
        if rows.num_rows <= 2 * RANGE_ROWS:
            return [self._file(rows, low)] if rows.num_rows else []
        hashes = hashes_of_keys(self._texts(rows))
        ordered = np.sort(hashes)
        lows = np.unique([low, *(int(ordered[at]) for at in range(RANGE_ROWS, rows.num_rows, RANGE_ROWS))])
        ranges = np.maximum(np.searchsorted(lows, hashes, side="right") - 1, 0)
        parts = [(rows.filter(pa.array(ranges == n)), int(low)) for n, low in enumerate(lows)]
        return [self._file(part, low) for part, low in parts if part.num_rows]

    def _file(self, rows: pa.Table, low: int) -> DataFile:
        return new_file(self._chain, partial(_write_table, rows), low=low)

    def _texts(self, rows: pa.Table) -> pa.Array:
        """Keys in one form for all their types, by which they are compared and hashed."""
        return json_objects(rows.select(list(self._stream.key)))


def _ranges(lows: Ints, keys: pa.Array) -> Ints:
    """Which file each key belongs to; keys below the first file's belong to it too."""
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
    path = chain.data / file.name
    try:
        return pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError) and error.errno:
            raise
        raise CorruptError(f"cannot read {str(path)!r}, which the newest manifest names: {error}") from error
