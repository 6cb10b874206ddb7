"""The state of a query's operators in files: one for each batch, with its new runs and the list of all runs.

    <folder>/<batch>.state     the runs that the batch has made, one after the other (Arrow), then a footer (JSON)
                               that lists the runs of every table, in this file and in older ones, and the notes

A run never changes, so a batch writes only its new runs. The file of a batch is complete before the batch is
committed; a batch that is run again replaces its file. Files that neither the last batch nor the one before it
lists are removed. Each run and each footer has a checksum (CRC-32C), which is verified when it is read.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from crc32c import crc32c

from headwater.errors import CorruptError, InvalidError
from headwater.files import replacing, sync_file
from headwater.process.kernel import State
from headwater.process.table import Run, Table, hash_mark
from headwater.spark.kernels.bucket_state import table_of_runs
from headwater.spark.kernels.frames import from_lean, to_bytes, to_lean

SUFFIX = ".state"
MAPPED_BYTES_MIN = 1 << 20
"""Runs of this size are read from their file, so that the system can reclaim their memory."""

_END = struct.Struct(">QI8s")
"""The length and the checksum of the footer, and the format."""
_MAGIC = b"hwstate1"

States = Mapping[str, State]
"""The tables of each operator, by the operator's name."""


@dataclass(frozen=True, slots=True)
class RunPlace:
    """The place of a run: its file, the bytes in it, and their checksum."""

    file: str
    start: int
    size: int
    crc: int


@dataclass(slots=True)
class StoredState:
    """The state as of a batch: tables of operators, and notes."""

    states: dict[str, State] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


class StateFiles:
    """Reads and writes the state of one query."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[int, tuple[RunPlace, Run]] = {}
        """The places of stored runs by the identity of the run, which is kept so that no other can get its id."""
        self._listed: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        """The files that the last batch lists, and those that the one before it lists."""

    def load(self, batch: int, initial: States) -> StoredState:
        """Return the state after a batch; the initial one before the first (-1)."""
        self._places.clear()
        self._listed = (frozenset(), frozenset())
        if batch < 0:
            return StoredState(dict(initial))
        footer = self._footer(batch)
        if footer["mark"] != hash_mark():
            raise InvalidError(
                f"cannot continue with this state: Polars {pl.__version__} hashes keys differently from the "
                "version that wrote it; install that version, or start with a new checkpoint"
            )
        states: dict[str, State] = {}
        for operator, tables in initial.items():
            known = footer["tables"].get(operator, {})
            states[operator] = {
                name: self._table(name, table, known.get(name, ())) for name, table in tables.items()
            }
        files = frozenset({f"{batch}{SUFFIX}", *(place.file for place, _ in self._places.values())})
        self._listed = files, files
        for path in self._folder.glob(f"*{SUFFIX}"):  # Those of batches that were replaced, or never finished.
            if path.name not in files:
                path.unlink(missing_ok=True)
        return StoredState(states, footer["notes"])

    def save(self, batch: int, states: States, notes: Mapping[str, Any]) -> dict[str, State]:
        """Write the state after a batch, and return it as it is stored."""
        self._folder.mkdir(parents=True, exist_ok=True)
        sealed = {name: {n: table.sealed() for n, table in state.items()} for name, state in states.items()}
        path = self._folder / f"{batch}{SUFFIX}"
        with replacing(path, path.with_name(f".{path.name}")) as part, part.open("wb") as file:
            places = {id(run): self._written(run, file, path.name) for run in _runs(sealed)}
            tables = {
                operator: {name: [_listed(places[id(run)]) for run in table.runs] for name, table in state.items()}
                for operator, state in sealed.items()
            }
            footer = json.dumps({"tables": tables, "notes": notes, "mark": hash_mark()}).encode()
            file.write(footer)
            file.write(_END.pack(len(footer), crc32c(footer), _MAGIC))
            sync_file(file)
        return self._kept(sealed, places)

    def forget(self, batch: int) -> None:
        """Remove the files that a batch, which is committed now, and the one before it do not list."""
        files = frozenset({f"{batch}{SUFFIX}", *(place.file for place, _ in self._places.values())})
        for name in self._listed[1] - files - self._listed[0]:
            (self._folder / name).unlink(missing_ok=True)
        self._listed = files, self._listed[0]

    # -- writing ----------------------------------------------------------------------------------------------

    def _written(self, run: Run, file: Any, name: str) -> RunPlace:
        if id(run) in self._places:
            return self._places[id(run)][0]
        start = file.tell()
        data = to_bytes(to_lean(run.frame))
        file.write(data)
        return RunPlace(name, start, data.size, crc32c(data))

    def _kept(self, sealed: Mapping[str, State], places: Mapping[int, RunPlace]) -> dict[str, State]:
        """Return the state with large new runs replaced by those in the file, and remember all places."""
        known: dict[int, tuple[RunPlace, Run]] = {}
        kept: dict[str, State] = {}
        for operator, state in sealed.items():
            tables: dict[str, Table] = {}
            for name, table in state.items():
                runs = []
                for run in table.runs:
                    place = places[id(run)]
                    is_new = id(run) not in self._places
                    stored = self._read(place) if is_new and place.size >= MAPPED_BYTES_MIN else run
                    known[id(stored)] = place, stored
                    runs.append(stored)
                tables[name] = table.of_runs(runs)
            kept[operator] = tables
        self._places = known
        return kept

    # -- reading ----------------------------------------------------------------------------------------------

    def _footer(self, batch: int) -> dict[str, Any]:
        path = self._folder / f"{batch}{SUFFIX}"
        try:
            with path.open("rb") as file:
                file.seek(-_END.size, 2)
                end = file.tell()
                length, crc, magic = _END.unpack(file.read(_END.size))
                if magic != _MAGIC or length > end:
                    raise ValueError
                file.seek(end - length)
                data = file.read(length)
                if crc32c(data) != crc:
                    raise ValueError
                footer: dict[str, Any] = json.loads(data)
        except (OSError, ValueError) as error:
            raise CorruptError(
                f"cannot continue with this state: the file {str(path)!r} is missing or damaged; use "
                "`headwater rebuild`"
            ) from error
        return footer

    def _table(self, name: str, table: Table, listed: Any) -> Table:
        runs = []
        for found in listed:
            place = RunPlace(*found)
            run = self._read(place)
            self._places[id(run)] = place, run
            runs.append(run)
        return table_of_runs(name, table, runs) if runs else table

    def _read(self, place: RunPlace) -> Run:
        path = self._folder / place.file
        try:
            with pa.memory_map(str(path)) as mapped:
                data = mapped.read_buffer(place.start + place.size).slice(place.start, place.size)
            if crc32c(data) != place.crc:
                raise OSError("its bytes have changed")
            run = Run.ordered(from_lean(pa.ipc.open_stream(data).read_all()).rechunk())
        except (OSError, pa.ArrowException) as error:
            raise CorruptError(
                f"cannot continue with this state: a run in {str(path)!r} is missing or damaged; use "
                "`headwater rebuild`"
            ) from error
        return run


def _runs(states: States) -> Iterator[Run]:
    return (run for state in states.values() for table in state.values() for run in table.runs)


def _listed(place: RunPlace) -> list[Any]:
    return [place.file, place.start, place.size, place.crc]
