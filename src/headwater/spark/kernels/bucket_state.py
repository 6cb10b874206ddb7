"""A kernel's tables in Spark's state store: one manifest for each bucket, and the pieces of the runs it lists.

The manifest lists the runs of each table. It is a value of the state store like the runs, so both belong to the
same version. A step writes only its new runs, and removes runs that were merged into others.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa

from headwater.errors import CorruptError, InvalidError
from headwater.process.kernel import State
from headwater.process.table import GONE, HASH, Run, Table, hash_mark
from headwater.spark.kernels.frames import from_lean, slices, to_bytes, to_lean
from headwater.spark.kernels.run_cache import RunCache

PIECE_ROWS = 100_000
"""Limits a value in the store to some megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketManifest:
    """The contents of a bucket's state: names and lengths of runs by table, and the runner's notes."""

    tables: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    mark: int | None = None

    def to_bytes(self) -> bytes:
        return json.dumps({"tables": self.tables, "notes": self.notes, "mark": self.mark}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "BucketManifest":
        return cls(**json.loads(data))


class BucketState:
    """Reads and writes the state of the current bucket; `manifest` and `pieces` are Spark's state variables."""

    def __init__(self, manifest: Any, pieces: Any, shared: RunCache) -> None:
        self._manifest = manifest
        self._pieces = pieces
        self._shared = shared
        self._names: dict[int, tuple[str, Run]] = {}
        self._loaded = BucketManifest()

    def load(self, initial: State) -> tuple[State, dict[str, Any]]:
        """Return the tables as of the last batch, and the notes."""
        stored = self._manifest.get()
        if stored is None:
            self._loaded = BucketManifest()
            return initial, {}
        manifest = self._loaded = BucketManifest.from_bytes(bytes(stored[0]))
        if manifest.mark != hash_mark():
            raise InvalidError(
                f"cannot continue with this state: Polars {pl.__version__} hashes keys differently from the "
                "version that wrote it; install that version, or start with a new checkpoint"
            )
        self._names.clear()
        state: dict[str, Table] = {}
        for name, table in initial.items():
            runs = [self._run(run, length, table) for run, length in manifest.tables.get(name, ())]
            state[name] = table_of_runs(name, table, runs) if runs else table
        return state, dict(manifest.notes)

    def save(self, state: State, notes: Mapping[str, Any]) -> State:
        """Write the new runs, remove those no longer used, and return the state as it is stored."""
        state = {name: table.sealed() for name, table in state.items()}
        tables = {name: [self._name(run) for run in table.runs] for name, table in state.items()}
        kept = {name for runs in tables.values() for name, _ in runs}
        for runs in self._loaded.tables.values():
            for name, length in runs:
                if name not in kept:
                    self._remove(name, length)
        self._manifest.update((BucketManifest(tables=tables, notes=notes, mark=hash_mark()).to_bytes(),))
        return state

    def _name(self, run: Run) -> tuple[str, int]:
        """Return the name and length of a stored run; store it first if it is new."""
        if id(run) in self._names:
            return self._names[id(run)][0], len(run)
        name = uuid.uuid4().hex
        # Recomputing the hashes is faster than sending them to the store.
        for number, piece in enumerate(slices(run.frame.drop(HASH), PIECE_ROWS)):
            self._pieces.updateValue((name, number), (to_bytes(to_lean(piece)).to_pybytes(),))
        self._shared.keep(name, run)
        return name, len(run)

    def _run(self, name: str, length: int, table: Table) -> Run:
        run = self._shared.find(name)
        if run is None:
            pieces = [self._pieces.getValue((name, number)) for number in range(_count(length))]
            if None in pieces:
                raise CorruptError(
                    f"cannot continue with this state: run {name} of {length} rows is incomplete; "
                    "start with a new checkpoint, or use `headwater rebuild`"
                )
            frames = [from_lean(pa.ipc.open_stream(bytes(piece[0])).read_all()) for piece in pieces]
            rows = pl.concat(frames, rechunk=True).drop(HASH, strict=False)
            run = self._shared.keep(name, Run.of(rows, table.by, table.rest))
        # The run is kept too, so that no other run can get its id before `save`.
        self._names[id(run)] = name, run
        return run

    def _remove(self, name: str, length: int) -> None:
        for number in range(_count(length)):
            self._pieces.removeKey((name, number))
        self._shared.forget(name)


def table_of_runs(name: str, table: Table, runs: Sequence[Run]) -> Table:
    """Return the table with its runs; raise InvalidError if they have other columns."""
    stored = {column: kind for column, kind in runs[0].frame.schema.items() if column not in (HASH, GONE)}
    if stored != dict(table.schema):
        raise InvalidError(
            f"cannot continue with this state: table {name!r} was written with columns {stored}, now it has "
            f"{dict(table.schema)}; a changed computation needs a new checkpoint"
        )
    return table.of_runs(runs)


def _count(length: int) -> int:
    """Return the number of pieces of a run; a run without rows has none."""
    return -(-length // PIECE_ROWS)
