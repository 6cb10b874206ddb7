"""The cost of more views in an app: 1, 6 and 20 small views over one topic.

./dev bench views-per-app [SECONDS] [--views N,N] [--rates N,N] [--rounds N] [--against PATH] [--quick] [--write]

`headwater run` runs an app of bench/_views_app.py with its embedded log, in a process and a data directory of its
own, while another process sends events. The one view is a tumbling window; the other kinds are keyed rows, hopping
windows with early panes, running totals, the last three rows and the last row of each key. All change in every
batch. A reader looks at the positions of the views in the store, with `hw.Views`.

A round is as many new positions as there are views, so that each view advances once. `--against PATH` measures the
app with the source of another checkout as well, in turns with this one, and prints the ratios. `--quick` measures
1 and 6 views for a short time. `--write` writes docs/benchmarks/views-per-app.md.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

sys.path.append(str(Path(__file__).parents[1]))  # the repository root, for `support`

from _apps import OTHER, THIS, AppRun, BenchError, prepare, running_app, sides
from _process_tree import processor_seconds, tree_memory_mb
from _report import machine

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "benchmarks" / "views-per-app.md"
VIEWS, RATES = (1, 6, 20), (100, 10_000)
SECONDS, WARM_UP_S = 30.0, 10.0
QUICK_SECONDS, QUICK_WARM_UP_S = 10.0, 3.0
ADVANCES_MIN = 3
MEMORY_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The measurements of an app with a number of views."""

    processor_s: float
    between_s: float
    cores: float
    memory_mb: float
    start_s: float
    load: float
    """Load average of the machine at the end; other programs disturb the figures."""


NAMES = {
    "processor_s": "processor seconds per round",
    "between_s": "seconds between results",
    "cores": "cores busy",
    "memory_mb": "memory, MB",
    "start_s": "seconds to the first results",
    "load": "load average",
}
GOALS = (
    ("processor_s", 6, 1.5),
    ("processor_s", 20, 3.0),
    ("start_s", 6, 1.2),
    ("memory_mb", 6, 1.2),
)
"""A figure, a number of views, and how many times the figure of one view it may be."""

Cell = tuple[str, int, int]
"""A side, the events per second and the number of views."""
Results = dict[Cell, Figures]


def measure(run: AppRun, seconds: float, warm_up_s: float) -> Figures:
    """Measure a running app in its steady state."""
    start_s = run.wait_for_first_results()
    time.sleep(warm_up_s)
    began, used = time.monotonic(), processor_seconds(run.pid)
    memory_mb, looked = 0.0, 0.0

    def done() -> bool:
        nonlocal memory_mb, looked
        now = time.monotonic()
        if now > looked + MEMORY_EVERY_S:
            memory_mb, looked = max(memory_mb, tree_memory_mb(run.pid)), now
        fewest = min(len(times) for times in advances_since(run, began).values())
        return now >= began + seconds and fewest >= ADVANCES_MIN

    run.wait(done, f"{ADVANCES_MIN} results of each of {run.views} views")
    elapsed, used = time.monotonic() - began, processor_seconds(run.pid) - used
    advances = advances_since(run, began)
    cores = used / elapsed
    return Figures(
        processor_s=cores / rounds_per_second(advances),
        between_s=median(later - earlier for times in advances.values() for earlier, later in pairwise(times)),
        cores=cores,
        memory_mb=memory_mb,
        start_s=start_s,
        load=os.getloadavg()[0],
    )


def advances_since(run: AppRun, began: float) -> dict[str, list[float]]:
    return {view: [at for at in times if at >= began] for view, times in run.advances.items()}


def rounds_per_second(advances: dict[str, list[float]]) -> float:
    """Return how often a view advances on average, counted from its first to its last new position."""
    return mean((len(times) - 1) / (times[-1] - times[0]) for times in advances.values())


def middle(figures: list[Figures]) -> Figures:
    return Figures(*(median(getattr(each, field.name) for each in figures) for field in fields(Figures)))


def measure_all(options: argparse.Namespace) -> Iterator[tuple[Cell, Figures | str]]:
    """Yield the figures of each cell, or the reason why there are none; the sides take turns."""
    checkouts = sides(options.against)
    for rate in options.rates:
        for views in options.views:
            found: dict[str, list[Figures]] = {side: [] for side in checkouts}
            failures: dict[str, str] = {}
            for _ in range(options.rounds):
                for side, source in checkouts.items():
                    try:
                        with (
                            tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder,
                            running_app(source, Path(folder), views, rate) as run,
                        ):
                            found[side].append(measure(run, options.seconds, options.warm_up_s))
                    except BenchError as error:
                        failures[side] = str(error)
            for side, figures in found.items():
                yield (side, rate, views), failures.get(side) or middle(figures)


def row(cell: Cell, found: Figures | str) -> str:
    side, rate, views = cell
    return f"| {side} | {rate:,} | {views} | {_cells(found)} |"


def _cells(found: Figures | str) -> str:
    if isinstance(found, str):
        return " | ".join([found, *[""] * (len(NAMES) - 1)])
    return " | ".join(_number(getattr(found, name)) for name in NAMES)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


HEAD = [f"| | events/s | views | {' | '.join(NAMES.values())} |", f"|---|--:|--:|{'--:|' * len(NAMES)}"]


def to_one_view(results: Results) -> Iterator[str]:
    """Yield the ratios of several views to one, and the goals."""
    yield "| | events/s | | 6 views vs. one | 20 views vs. one |"
    yield "|---|--:|---|--:|--:|"
    judged, missed = 0, []
    for side, rate in dict.fromkeys((side, rate) for side, rate, _ in results):
        for name in list(NAMES)[:-1]:
            cells = []
            for views in (6, 20):
                ratio = _ratio(results, (side, rate, views), (side, rate, 1), name)
                goal = next((goal for each, count, goal in GOALS if (each, count) == (name, views)), None)
                cells.append(_verdict(ratio, goal))
                if ratio is None or goal is None or side != THIS:
                    continue
                judged += 1
                if round(ratio, 2) > goal:
                    missed.append(
                        f"{NAMES[name]} of {views} views at {rate:,} events/s ({ratio:.2f}, goal {goal:g})"
                    )
            yield f"| {side} | {rate:,} | {NAMES[name]} | {' | '.join(cells)} |"
    yield ""
    yield f"**{judged - len(missed)} of {judged} goals are reached.**"
    if missed:
        yield ""
        yield f"Missed goals: {'; '.join(missed)}."


def _verdict(ratio: float | None, goal: float | None) -> str:
    if ratio is None:
        return ""
    if goal is None:
        return f"{ratio:.2f}"
    return f"{ratio:.2f}, goal ≤ {goal:g}: {'ok' if round(ratio, 2) <= goal else '**missed**'}"


def to_other_commit(results: Results) -> Iterator[str]:
    """Yield the ratios of this commit to the other one."""
    names = list(NAMES)[:-1]
    yield f"| events/s | views | {' | '.join(NAMES[name] for name in names)} |"
    yield f"|--:|--:|{'--:|' * len(names)}"
    for rate, views in dict.fromkeys((rate, views) for _, rate, views in results):
        ratios = [_ratio(results, (THIS, rate, views), (OTHER, rate, views), name) for name in names]
        yield f"| {rate:,} | {views} | {' | '.join('' if r is None else f'{r:.2f}' for r in ratios)} |"


def _ratio(results: Results, cell: Cell, other: Cell, name: str) -> float | None:
    if cell not in results or other not in results:
        return None
    return float(getattr(results[cell], name) / getattr(results[other], name))


def main() -> None:
    options = parse()
    prepare()
    results: Results = {}
    lines = [*HEAD]
    print("\n".join(lines), flush=True)
    for cell, found in measure_all(options):
        if isinstance(found, Figures):
            results[cell] = found
        lines.append(row(cell, found))
        print(lines[-1], flush=True)
    more = ["", *to_one_view(results)]
    if options.against is not None:
        more += ["", "Ratios of this commit to the other one:", "", *to_other_commit(results)]
    print("\n".join(more), flush=True)
    if options.write:
        introduction = INTRODUCTION.format(machine=machine(), seconds=options.seconds)
        REPORT.write_text("\n".join([introduction, *lines, *more, ""]))


INTRODUCTION = """# The cost of more views in an app

Measured by `./dev bench views-per-app` on {machine}. An app with its embedded log runs on two cores, which it
shares with the producer and a reader. The one view is a tumbling window; the other kinds are keyed rows, hopping
windows with early panes, running totals, the last three rows and the last row of each key. A *round* is as many
new positions as there are views, so that each view advances once. Its processor time is that of all processes of
the app, log and Java included, measured for at least {seconds:.0f} seconds. At more events per second a longer
round has more events. *Memory* is the highest sum of all processes, in which shared pages count once. *Seconds to
the first results* last from the command until every view has a result. The *load average* is that of the machine,
the benchmark included: if it is far above the number of cores, other programs disturbed the figures.
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench views-per-app", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("seconds", type=float, nargs="?", help=f"to measure each app; defaults to {SECONDS:g}")
    parser.add_argument("--views", type=_numbers, help=f"defaults to {','.join(map(str, VIEWS))}")
    parser.add_argument("--rates", type=_numbers, default=RATES, help="events per second; defaults to 100,10000")
    parser.add_argument(
        "--rounds", type=int, default=1, help="measurements of each app, for medians; defaults to 1"
    )
    parser.add_argument("--against", type=Path, metavar="PATH", help="another checkout to compare with")
    parser.add_argument("--quick", action="store_true", help="1 and 6 views, for a short time")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    options = parser.parse_args()
    options.warm_up_s = QUICK_WARM_UP_S if options.quick else WARM_UP_S
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    options.views = options.views or (VIEWS[:2] if options.quick else VIEWS)
    return options


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    main()
