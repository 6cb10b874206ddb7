"""A side input: a bounded table outside the log, from a file or a function, loaded again when it changes.

For Spark it is a source whose offset is a *version*, named by a hash of its content. The rows of a batch are the
inserts and retractions between two versions, so join results are corrected. Each version is kept as a file: a
batch that is run again after a crash gives the same rows, even if the side input has changed since.

    <folder>/<version>.arrow
"""

import base64
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import polars as pl
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import ByteType, StructField, StructType

from headwater.change import CHANGE
from headwater.errors import CorruptError, InvalidError
from headwater.files import replacing, write_synced
from headwater.process.changes import as_changes, difference
from headwater.process.durations import parse_duration
from headwater.spark.kernels.frames import empty_like, from_bytes, to_arrow, to_bytes
from headwater.spark.kernels.query_context import current_query

FORMAT = "headwater-side-input"

BYTES_MAX = 64 << 20
"""The changes of a version are sent to the tasks in one piece."""

VERSIONS_KEPT = 10
"""A stopped query continues from the version that it had read, which is one of the last few."""

NOTHING = "none"
"""The version before the first one."""

Offset = dict[str, dict[str, int]]
"""A version in the shape of a log's offsets, without partitions: code that reads offsets finds none."""

_READ: dict[str, Callable[[Path, Mapping[str, Any]], pl.DataFrame]] = {
    ".csv": lambda path, texts: pl.read_csv(
        path, schema_overrides=texts, infer_schema_length=None, try_parse_dates=True
    ),
    ".json": lambda path, texts: pl.read_json(path, infer_schema_length=None),
    ".jsonl": lambda path, texts: pl.read_ndjson(path, infer_schema_length=None),
    ".ndjson": lambda path, texts: pl.read_ndjson(path, infer_schema_length=None),
    ".parquet": lambda path, texts: pl.read_parquet(path),
}


@dataclass(frozen=True, slots=True)
class SideInput:
    """A bounded table for `hw.join`: a file (CSV, JSON, Parquet), or a function that returns the rows.

    It is checked at the interval `every`; when it has changed, join results are corrected. A function returns a
    Polars, pandas or Arrow frame, or a list of dictionaries. Each version is kept in the folder `copies`, which
    has a default inside an app.
    """

    load: str | Path | Callable[[], Any]
    schema: str
    every: str = "1 second"
    copies: str | Path | None = None

    def read(self, left: DataFrame) -> DataFrame:
        """Return a DataFrame for a join with `left`: a stream of changes if that is a stream."""
        load: Any = self.load if callable(self.load) else Path(self.load).resolve()
        if isinstance(load, Path):
            _check_file(load)
        session = left.sparkSession
        session.dataSource.register(SideSource)
        pickled = base64.b64encode(cloudpickle.dumps(load)).decode()  # type: ignore[no-untyped-call]
        options = {"load": pickled, "every": self.every, "columns": _parsed(self.schema).json(), "folder": ""}
        if not left.isStreaming:
            return session.read.format(FORMAT).options(**options).load()
        options["folder"] = str(self._folder())
        return session.readStream.format(FORMAT).options(**options).load()

    def _folder(self) -> Path:
        if self.copies is not None:
            return Path(self.copies).resolve()
        spool = current_query().spool
        if spool is None:
            raise InvalidError(
                "join: a side input outside an app needs a folder for its versions; name one next to the query's "
                "checkpoint: hw.SideInput(..., copies='folder')"
            )
        return Path(f"{spool.folder}.sides").resolve()


class SideSource(DataSource):
    """A side input, for `spark.read` and `spark.readStream`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return StructType([*_columns(self.options).fields, StructField(CHANGE, ByteType())])

    def reader(self, schema: StructType) -> "SideReader":
        return SideReader(_loader(self.options))

    def streamReader(self, schema: StructType) -> "SideStreamReader":  # noqa: N802
        every_s = parse_duration(self.options["every"]).total_seconds()
        return SideStreamReader(_loader(self.options), Versions(Path(self.options["folder"])), every_s)


# -- loading --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loader:
    """The origin of the rows, and their schema."""

    load: Path | Callable[[], Any]
    schema: StructType

    @property
    def name(self) -> str:
        return repr(str(self.load)) if isinstance(self.load, Path) else getattr(self.load, "__name__", "function")

    def mark(self) -> Any:
        """Return a value that differs if the file may have changed; None for a function."""
        if not isinstance(self.load, Path):
            return None
        _check_file(self.load)
        found = self.load.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def rows(self) -> pl.DataFrame:
        """Load all rows, with the declared columns."""
        wanted = empty_like(self.schema).schema
        try:
            rows = self._load(wanted)
        except (OSError, pl.exceptions.PolarsError, ValueError) as error:
            raise InvalidError(f"cannot load side input {self.name}: {error}") from error
        if missing := [name for name in wanted if name not in rows.columns]:
            raise InvalidError(
                f"cannot load side input {self.name}: there is no column {', '.join(map(repr, missing))}; it has: "
                f"{', '.join(rows.columns)}"
            )
        rows = _cast(rows.select(list(wanted)), wanted, self.name)
        if rows.estimated_size() > BYTES_MAX:
            raise InvalidError(
                f"cannot load side input {self.name}: it has {rows.estimated_size():,} bytes, but at most "
                f"{BYTES_MAX:,} are allowed; write the rows to a topic, and join with an hw.table of that topic"
            )
        return rows

    def _load(self, wanted: pl.Schema) -> pl.DataFrame:
        if isinstance(self.load, Path):
            # A number that is declared as a string keeps its leading zeros.
            texts = {name: kind for name, kind in wanted.items() if kind == pl.String}
            return _READ[self.load.suffix.lower()](self.load, texts)
        found = self.load()
        rows = found if isinstance(found, pl.DataFrame) else pl.DataFrame(found)
        return rows if rows.width else wanted.to_frame()  # An empty list has no columns.


def _loader(options: Mapping[str, str]) -> Loader:
    return Loader(cloudpickle.loads(base64.b64decode(options["load"])), _columns(options))


def _columns(options: Mapping[str, str]) -> StructType:
    return StructType.fromJson(json.loads(options["columns"]))


def _parsed(schema: str) -> StructType:
    try:
        return cast(StructType, StructType.fromDDL(schema))
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidError(f"cannot read the schema of a side input, {schema!r}: {reason}") from error


def _check_file(path: Path) -> None:
    if path.suffix.lower() not in _READ:
        raise InvalidError(
            f"cannot load side input {str(path)!r}: its name does not end with {', '.join(_READ)}; pass a "
            "function that loads it"
        )
    if not path.exists():
        raise InvalidError(f"cannot load side input {str(path)!r}: the file does not exist")


def _cast(rows: pl.DataFrame, wanted: pl.Schema, name: str) -> pl.DataFrame:
    # Times without a zone are in UTC.
    zoneless = [n for n, kind in rows.schema.items() if isinstance(kind, pl.Datetime) and kind.time_zone is None]
    times = [n for n in zoneless if isinstance(wanted[n], pl.Datetime)]
    try:
        return rows.with_columns(pl.col(times).dt.replace_time_zone("UTC")).cast(wanted)
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise InvalidError(f"cannot load side input {name}: it does not match its schema: {reason}") from error


# -- versions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of a side input, by name; several queries may share a folder."""

    folder: Path

    def put(self, rows: pl.DataFrame) -> str:
        """Save these rows and return their version; a crash leaves no partial file."""
        data = to_bytes(to_arrow(rows)).to_pybytes()
        version = hashlib.sha256(data).hexdigest()[:32]
        path = self._path(version)
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                write_synced(temporary, data)
        return version

    def get(self, version: str, schema: StructType) -> pl.DataFrame:
        if version == NOTHING:
            return empty_like(schema)
        try:
            data = self._path(version).read_bytes()
        except FileNotFoundError:
            raise CorruptError(
                f"cannot continue with the side input: its version {version} is no longer in "
                f"{str(self.folder)!r}, so the changes since then are unknown; rebuild the views that join it "
                "(headwater rebuild), or start with a new checkpoint"
            ) from None
        return from_bytes(data)

    def forget(self, used: str) -> None:
        """Delete old versions, except the one in use and some before it."""
        if used != NOTHING and self._path(used).exists():
            os.utime(self._path(used))
        by_age = sorted(self.folder.glob("*.arrow"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in by_age[VERSIONS_KEPT:]:
            path.unlink(missing_ok=True)

    def _path(self, version: str) -> Path:
        return self.folder / f"{version}.arrow"


# -- readers --------------------------------------------------------------------------------------------------


@dataclass
class ChangesPartition(InputPartition):
    """The input of one task: changes, as one Arrow stream."""

    data: bytes


class SideReader(DataSourceReader):
    """Reads the current rows, for a batch query."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def partitions(self) -> Sequence[InputPartition]:
        return [_partition(self._loader.rows().with_columns(pl.lit(1, pl.Int8).alias(CHANGE)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._loader.schema)


class SideStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes. Runs in a process on the driver, which alone reads the side input."""

    def __init__(self, loader: Loader, versions: Versions, every_s: float) -> None:
        self._loader, self._versions, self._every_s = loader, versions, every_s
        self._latest: str | None = None
        self._mark: Any = None
        self._looked_at = 0.0
        self._stops = False

    def initialOffset(self) -> Offset:  # noqa: N802
        return {NOTHING: {}}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._look()
        self._stops = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        is_due = self._latest is None or time.monotonic() - self._looked_at >= self._every_s
        if is_due and not self._stops:
            self._look()
        assert self._latest is not None
        return {self._latest: {}}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start == end:
            return []
        schema = self._loader.schema
        before, after = (self._versions.get(_version(offset), schema) for offset in (start, end))
        weight = pl.lit(1, pl.Int64).alias(CHANGE)
        return [_partition(as_changes(difference(after.with_columns(weight), before.with_columns(weight))))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._loader.schema)

    def commit(self, end: Offset) -> None:
        self._versions.forget(_version(end))

    def stop(self) -> None:
        pass

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        mark = self._loader.mark()
        if mark is None or mark != self._mark or self._latest is None:
            self._latest = self._versions.put(self._loader.rows())
            self._mark = mark


def _version(offset: Offset) -> str:
    (version,) = offset
    return version


def _partition(changes: pl.DataFrame) -> ChangesPartition:
    return ChangesPartition(to_bytes(to_arrow(changes)).to_pybytes())


def _read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    # Where there are no partitions, Spark reads one: None.
    if isinstance(partition, ChangesPartition):
        kinds = to_arrow_schema(StructType([*schema.fields, StructField(CHANGE, ByteType())]), timezone="UTC")
        yield from pa.ipc.open_stream(partition.data).read_all().cast(kinds).to_batches()
