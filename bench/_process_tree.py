"""Processor time and memory of a process and all its descendants."""

import os
from pathlib import Path

from support.processes import descendants


def processor_seconds(root: int) -> float:
    """Return the processor time of a process and its descendants, including those that have ended.

    A process that is not waited for by its parent is lost when it ends.
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue  # The process has ended meanwhile.
        fields = stat[stat.rindex(")") + 2 :].split()  # The name in brackets may contain spaces.
        children.setdefault(int(fields[1]), []).append(int(name))
        ticks[int(name)] = sum(map(int, fields[11:15]))  # its own, then that of the children it has waited for
    total, left = 0, [root]
    while left:
        process = left.pop()
        total += ticks.get(process, 0)
        left += children.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


def tree_memory_mb(root: int) -> float:
    """Return the resident memory of a process and its descendants; pages that several share count once."""
    return sum(map(_memory_mb, (root, *(pid for pid, _ in descendants(root)))))


def _memory_mb(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0  # The process has ended meanwhile.
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
