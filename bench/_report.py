"""Markdown tables of measurements: medians of the rounds, each with its ratio and its goal."""

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import median


class Side(StrEnum):
    """A broker and its durability setting."""

    KAFKA = "Kafka"
    OURS = "Headwater"
    FSYNC = "Headwater, fsync"


@dataclass(frozen=True, slots=True)
class Cell:
    """A measurement taken on every side; `goal` is for the ratio of Headwater to Kafka."""

    section: str
    name: str
    unit: str
    goal: float
    more_is_better: bool = True

    def holds(self, ratio: float) -> bool:
        """Return whether the goal is reached, with the ratio rounded as in the table."""
        return round(ratio, 2) >= self.goal if self.more_is_better else round(ratio, 2) <= self.goal


@dataclass(slots=True)
class Results:
    """Samples of each cell and side, in the order of measurement."""

    samples: dict[Cell, dict[Side, list[float]]] = field(default_factory=dict)

    def add(self, cell: Cell, side: Side, value: float) -> None:
        self.samples.setdefault(cell, {}).setdefault(side, []).append(value)

    def ratio(self, cell: Cell, side: Side) -> float | None:
        """Return the ratio of a side's median to Kafka's; None if one of them is missing."""
        found = self.samples[cell]
        if side not in found or not found.get(Side.KAFKA) or not median(found[Side.KAFKA]):
            return None
        return median(found[side]) / median(found[Side.KAFKA])

    def missed_goals(self) -> list[Cell]:
        ratios = {cell: self.ratio(cell, Side.OURS) for cell in self.samples}
        return [cell for cell, ratio in ratios.items() if ratio is not None and not cell.holds(ratio)]


def tables(results: Results) -> Iterator[str]:
    """Yield the lines of a table for each section, and the missed goals."""
    sections = dict.fromkeys(cell.section for cell in results.samples)
    for section in sections:
        yield f"## {section}"
        yield ""
        yield "| | unit | Kafka | Headwater | ratio | goal | | with fsync | ratio | rounds |"
        yield "|---|---|--:|--:|--:|--:|---|--:|--:|--:|"
        for cell, sides in results.samples.items():
            if cell.section == section:
                yield _row(results, cell, sides)
        yield ""
    missed = results.missed_goals()
    with_ratio = sum(results.ratio(cell, Side.OURS) is not None for cell in results.samples)
    yield f"**{with_ratio - len(missed)} of {with_ratio} measurements reach their goal.**"
    if missed:
        yield ""
        yield "Missed goals: " + "; ".join(f"{cell.section}, {cell.name}" for cell in missed) + "."


def _row(results: Results, cell: Cell, sides: dict[Side, list[float]]) -> str:
    middle = {side: median(values) for side, values in sides.items()}
    ratio = results.ratio(cell, Side.OURS)
    verdict = "" if ratio is None else "ok" if cell.holds(ratio) else "**missed**"
    fields = [
        cell.name,
        cell.unit,
        _number(middle.get(Side.KAFKA)),
        _number(middle.get(Side.OURS)),
        _ratio(ratio),
        f"{'≥' if cell.more_is_better else '≤'} {cell.goal:g}",
        verdict,
        _number(middle.get(Side.FSYNC)),
        _ratio(results.ratio(cell, Side.FSYNC)),
        str(max(map(len, sides.values()))),
    ]
    return f"| {' | '.join(fields)} |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def machine() -> str:
    """Describe this machine in one line."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{os.cpu_count()} cores of {_cpu()}, {memory_gb:.0f} GB of memory, {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}"
    )


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
