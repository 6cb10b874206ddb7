"""Reports of stateful operators, passed to the driver in small files: late rows and facts.

An operator's rows go through the rest of the user's function, so nothing else can be sent along with them. Each
bucket's step writes a file instead, named by batch, operator and bucket; a step that is run again writes the same
file again. The sink commits the late rows of a batch to the store along with its rows, then removes its files.

    <folder>/<run>/<batch>/<operator>-<bucket>.late     late rows, Arrow
    <folder>/<run>/<batch>/<operator>-<bucket>.facts    facts, JSON

`run` is the id of the query's checkpoint; with a new checkpoint the batch numbers start from 0. On a cluster, all
machines must see the folder, like that of the checkpoint.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from headwater.files import replacing
from headwater.store.late import LateRow

PANES_KEPT = 100
"""Panes of each batch to keep: a sample of bounded size, however many fire at once."""

_ADDED = ("stateRows", "stateBytes", "rows", "firedPanes", "lateRows", "evicted", "ignoredRows")
_LEDGER_COLUMNS = ("window_start", "window_end", "event_time", "late_by", "reason", "last_pane", "row")


@dataclass(frozen=True, slots=True)
class StepName:
    """The name of a bucket's step; a step that is run again has the same name."""

    run: str
    batch: int
    operator: str
    bucket: int


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that one bucket's step reported."""

    operator: str
    body: Mapping[str, Any]
    step: str = ""
    """Name of the operator and of the bucket."""


@dataclass(frozen=True, slots=True)
class Spool:
    """The files of one query, below `folder`; a value that is sent to the workers."""

    folder: str

    def put(self, step: StepName, late: pl.DataFrame | None, facts: Mapping[str, Any]) -> None:
        """Write the report of a step, replacing what an earlier attempt at the same step wrote."""
        folder = self._folder(step.run, step.batch)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{step.operator}-{step.bucket}"
        if late is not None and late.height:
            with replacing(folder / f"{name}.late") as part:
                late.write_ipc(part, compression="lz4")
        with replacing(folder / f"{name}.facts") as part:
            part.write_text(json.dumps(facts, default=str))

    def late(self, run: str, batch: int) -> list[LateRow]:
        """Return the late rows of a batch, in the same order each time."""
        files = sorted(self._folder(run, batch).glob("*.late"))
        return [row for file in files for row in _late_rows(file)]

    def facts(self, run: str, batch: int) -> list[Facts]:
        """Return the facts that the buckets reported for a batch."""
        files = sorted(self._folder(run, batch).glob("*.facts"))
        return [Facts(_operator(file), json.loads(file.read_text()), file.stem) for file in files]

    def clear(self, run: str, *, through: int) -> None:
        """Remove the files of a run's batches up to `through`, which are in the store, and those of other runs."""
        for folder in Path(self.folder).glob("*/*"):
            if folder.parent.name != run or int(folder.name) <= through:
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, run: str, batch: int) -> Path:
        return Path(self.folder) / run / str(batch)


def summarize_operators(facts: Sequence[Facts]) -> dict[str, dict[str, Any]]:
    """Merge the facts of each operator's buckets: add up the counts, concatenate the panes, first wake-up.

    Everything else is taken from one bucket: all buckets of an operator have the same watermark.
    """
    operators: dict[str, dict[str, Any]] = {}
    for fact in facts:
        summary = operators.setdefault(fact.operator, {**fact.body, **dict.fromkeys(_ADDED, 0), "panes": []})
        for name in _ADDED:
            summary[name] += fact.body.get(name, 0)
        wake_ups = (at for at in (summary.get("wakeUpMs"), fact.body.get("wakeUpMs")) if at is not None)
        summary["wakeUpMs"] = min(wake_ups, default=None)
        summary["panes"] = [*summary["panes"], *fact.body.get("panes", ())][-PANES_KEPT:]
    return operators


def _operator(file: Path) -> str:
    return file.stem.rpartition("-")[0]


def _late_rows(file: Path) -> list[LateRow]:
    return late_rows_of(_operator(file), pl.read_ipc(file))


def late_rows_of(operator: str, rows: pl.DataFrame) -> list[LateRow]:
    """Return the late rows of an operator's step as entries of the late ledger."""
    return [
        LateRow(
            operator=operator,
            key=_plain({name: value for name, value in row.items() if name not in _LEDGER_COLUMNS}),
            row=_plain(row["row"]),
            **{name: row[name] for name in _LEDGER_COLUMNS if name != "row"},
        )
        for row in rows.iter_rows(named=True)
    ]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values to JSON's types; times and decimals become text."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=_text))
    return plain


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
