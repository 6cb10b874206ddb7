"""From the command to the first results of an app, with one view and with six, and the time of each part.

./dev bench start [--rounds N] [--against PATH] [--quick] [--write]

`headwater run` starts an app of bench/_views_app.py in a new data directory, on two cores, while another process
sends 100 events per second. The parts:

    imports      from the command until Spark is started: Python, its modules, and the log, store and console
    JVM          from the start of Java until PySpark can connect to it
    session      from then on until the Spark session is ready
    planning     from then on until all queries are planned and started
    first batch  from then on until every view has a result that a reader sees

`--against PATH` starts the app with the source of another checkout as well, in turns with this one, and prints the
ratios. `--quick` measures once. `--write` writes docs/benchmarks/start.md.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[1]))  # the repository root, for `support`

from _apps import OTHER, THIS, AppRun, prepare, running_app, sides
from _report import machine

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "benchmarks" / "start.md"
VIEWS, RATE, ROUNDS = (1, 6), 100, 3
PARTS = ("imports", "JVM", "session", "planning", "first batch")
TOTAL, LOAD = "total", "load average"
GOAL = 0.6
"""Of the time of the commit before this benchmark."""

Seconds = dict[str, float]
"""Seconds by part; a part is missing if its beginning or end was not seen."""
Cell = tuple[str, int]
"""A side and the number of views."""


def measure(run: AppRun) -> Seconds:
    """Wait for the first results; return the seconds of each part."""
    total = run.wait_for_first_results()
    spark, ready, started = (run.line_at(line) for line in ("starting Spark", "Spark is ready", "running "))
    java, connected = (run.mark_at(mark) for mark in ("java started", "java ready"))
    spans = {
        "imports": (run.began, spark),
        "JVM": (java, connected),
        "session": (connected, ready),
        "planning": (ready, started),
        "first batch": (started, run.began + total),
    }
    known = {name: end - begin for name, (begin, end) in spans.items() if begin is not None and end is not None}
    return {**known, TOTAL: total, LOAD: os.getloadavg()[0]}


def measure_all(options: argparse.Namespace) -> Iterator[tuple[Cell, Seconds]]:
    """Yield the median of each part for each side and number of views; the sides take turns."""
    checkouts = sides(options.against)
    for views in VIEWS:
        found: dict[str, list[Seconds]] = {side: [] for side in checkouts}
        for _ in range(options.rounds):
            for side, source in checkouts.items():
                with (
                    tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder,
                    running_app(source, Path(folder), views, RATE) as run,
                ):
                    found[side].append(measure(run))
        for side, rounds in found.items():
            names = [name for name in (*PARTS, TOTAL, LOAD) if all(name in each for each in rounds)]
            yield (side, views), {name: median(each[name] for each in rounds) for name in names}


def row(cell: Cell, seconds: Seconds) -> str:
    side, views = cell
    return f"| {side} | {views} | {' | '.join(_numbers(seconds, (*PARTS, TOTAL, LOAD)))} |"


def _numbers(values: Seconds, names: tuple[str, ...]) -> list[str]:
    return [f"{values[name]:.2f}" if name in values else "" for name in names]


HEAD = [
    f"| | views | {' | '.join(f'{name}, s' for name in (*PARTS, TOTAL))} | {LOAD} |",
    f"|---|--:|{'--:|' * (len(PARTS) + 2)}",
]


def ratios(results: dict[Cell, Seconds]) -> Iterator[str]:
    """Yield the ratios of six views to one, and of this commit to the other one."""
    names = (*PARTS, TOTAL)
    yield f"| ratio | {' | '.join(names)} |"
    yield f"|---|{'--:|' * len(names)}"
    pairs = [(f"6 views vs. one, {side}", (side, 6), (side, 1)) for side in (OTHER, THIS)]
    pairs += [(f"{THIS} vs. {OTHER}, views: {views}", (THIS, views), (OTHER, views)) for views in VIEWS]
    for name, cell, other in pairs:
        if cell in results and other in results:
            yield f"| {name} | {' | '.join(_numbers(_divide(results[cell], results[other]), names))} |"
    for views in VIEWS:
        if (OTHER, views) in results:
            ratio = _divide(results[THIS, views], results[OTHER, views])[TOTAL]
            verdict = "ok" if round(ratio, 2) <= GOAL else "**missed**"
            yield ""
            yield f"Goal for an app with views: {views}, at most {GOAL:g} of {OTHER}: {ratio:.2f}, {verdict}."


def _divide(seconds: Seconds, other: Seconds) -> Seconds:
    return {name: each / other[name] for name, each in seconds.items() if other.get(name)}


def main() -> None:
    options = parse()
    prepare()
    lines = [*HEAD]
    print("\n".join(lines), flush=True)
    results: dict[Cell, Seconds] = {}
    for cell, seconds in measure_all(options):
        results[cell] = seconds
        lines.append(row(cell, seconds))
        print(lines[-1], flush=True)
    more = ["", *ratios(results)]
    print("\n".join(more), flush=True)
    if options.write:
        introduction = INTRODUCTION.format(machine=machine(), rate=RATE, rounds=options.rounds)
        REPORT.write_text("\n".join([introduction, *lines, *more, ""]))


INTRODUCTION = """# From the command to the first results

Measured by `./dev bench start` on {machine}. `headwater run` starts an app with its embedded log in a new data
directory, on two cores, while {rate} events per second arrive; the figures are medians of {rounds} starts.
*Imports* last until Spark is started: Python, its modules, and the log, store and console. *JVM* is the time from
the start of Java until PySpark can connect to it, *session* from then on until the Spark session is ready,
*planning* until all queries are planned and started, *first batch* until every view has a result that a reader
sees. The views are the first of those of [views-per-app](views-per-app.md). If the load average is far above the
number of cores, other programs disturbed the figures.
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench start", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, help=f"starts of each app, for medians; defaults to {ROUNDS}")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another checkout to compare with")
    parser.add_argument("--quick", action="store_true", help="start each app once")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else ROUNDS)
    return options


if __name__ == "__main__":
    main()
