"""What a stateful operator has to tell beside its rows: late rows and facts, by way of small files.

An operator's rows go through whatever the user's function does behind it, so nothing else can travel with them.
Each bucket's step leaves a file instead, named by batch, operator and bucket; a step that is run again leaves the
same file again. The sink takes a batch's files into the store together with the batch's rows, then removes them.

    <folder>/<run>/<batch>/<operator>-<bucket>.late     late rows, Arrow
    <folder>/<run>/<batch>/<operator>-<bucket>.facts    facts, JSON

`run` is the identity of the query's checkpoint, with which the numbers of batches start anew. On a cluster the
folder must be one that all machines see, like the checkpoint's.
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
"""Of each batch: enough to see what happens, and bounded whatever fires at once."""

_ADDED = ("stateRows", "stateBytes", "rows", "firedPanes", "lateRows", "evicted", "ignoredRows")
_LEDGER_COLUMNS = ("window_start", "window_end", "event_time", "late_by", "reason", "last_pane", "row")


@dataclass(frozen=True, slots=True)
class StepName:
    """Which step of which bucket it was; a step that is run again has the same name."""

    run: str
    batch: int
    operator: str
    bucket: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What one bucket's step said of itself."""

    operator: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spool:
    """The files of one query, below `folder`; a value that travels to the workers."""

    folder: str

    def put(self, step: StepName, late: pl.DataFrame | None, facts: Mapping[str, Any]) -> None:
        """Leave what a step has to tell, in the place of what the same step may have left before."""
        folder = self._folder(step.run, step.batch)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{step.operator}-{step.bucket}"
        if late is not None and late.height:
            with replacing(folder / f"{name}.late") as part:
                late.write_ipc(part, compression="lz4")
        with replacing(folder / f"{name}.facts") as part:
            part.write_text(json.dumps(facts, default=str))

    def late(self, run: str, batch: int) -> list[LateRow]:
        """The late rows of a batch, in an order that is the same each time."""
        files = sorted(self._folder(run, batch).glob("*.late"))
        return [row for file in files for row in _late_rows(file)]

    def facts(self, run: str, batch: int) -> list[Facts]:
        """What the buckets said of a batch."""
        files = sorted(self._folder(run, batch).glob("*.facts"))
        return [Facts(_operator(file), json.loads(file.read_text())) for file in files]

    def clear(self, run: str, *, through: int) -> None:
        """Remove the files of a run's batches up to one, which are in the store, and those of other runs."""
        for folder in Path(self.folder).glob("*/*"):
            if folder.parent.name != run or int(folder.name) <= through:
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, run: str, batch: int) -> Path:
        return Path(self.folder) / run / str(batch)


def summarize_operators(facts: Sequence[Facts]) -> dict[str, dict[str, Any]]:
    """What the buckets of each operator said, as one: numbers added up, panes put together, the rest from any.

    All buckets of an operator come to the same watermark, so any of them can speak for it.
    """
    operators: dict[str, dict[str, Any]] = {}
    for fact in facts:
        told = operators.setdefault(fact.operator, {**fact.body, **dict.fromkeys(_ADDED, 0), "panes": []})
        for name in _ADDED:
            told[name] += fact.body.get(name, 0)
        told["panes"] = [*told["panes"], *fact.body.get("panes", ())][-PANES_KEPT:]
    return operators


def _operator(file: Path) -> str:
    return file.stem.rpartition("-")[0]


def _late_rows(file: Path) -> list[LateRow]:
    operator = _operator(file)
    rows = pl.read_ipc(file)
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
    """As JSON has it; times and decimals become text."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=_text))
    return plain


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
