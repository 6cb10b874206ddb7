"""Nexmark: q0 to q22 of examples/nexmark compared with Flink SQL over the same files.

./dev bench nexmark [--queries q3,q5] [--events N] [--rounds N] [--flink [PYTHON]] [--write]

Each query runs to the end of its files, once over few events and once over all. A rate is the difference in events
divided by the difference in seconds, so startup time does not count on either side. It counts all events,
whichever kinds a query reads. Results are discarded, except those of q10, which are written to files. The sides
take turns; compare ratios only within one run.

Without `--flink` only Headwater is measured. Flink is installed from PyPI into ~/.cache/headwater unless PYTHON
is a Python that has it. `--write` updates docs/benchmarks/nexmark.md.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from inspect import signature
from pathlib import Path
from statistics import median
from typing import Any

import _flink
from _report import machine

from headwater.spark.session.session import spark_session
from headwater.spark.source.decoding import DELAY_KEY, EVENT_TIME_KEY

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "benchmarks" / "nexmark.md"
FLINK_SIDE = Path(__file__).with_name("_flink_nexmark.py")
sys.path.insert(0, str(ROOT / "examples" / "nexmark"))

import events as house  # noqa: E402
from queries import QUERIES, SIDE_INPUT  # noqa: E402

EVENTS, SMALL_EVENTS = 2_000_000, 20_000
FILES_PER_BATCH = 5
OURS, FLINK = "Headwater", "Flink SQL"
DELAY = 4_000_000
NOT_COMPARED = {
    "q6": "not possible in Flink SQL: its OVER window does not accept retractions",
    "q12": "processing time: Flink may wait for the end of a window",
    "q13": "Flink has no lookup join on files, so it joins two streams and keeps all bids in state",
}
TIMEOUT_S = 300
MORE_S_MIN = 0.3
"""A run over all events must take at least this much longer; startup times differ by nearly as much."""

Seconds = dict[str, float]
"""Seconds of each part: few events, and all events."""


def run(spark: Any, folder: Path, name: str) -> float:
    """Run a query to its end and return the seconds it took."""
    query = QUERIES[name]
    inputs: dict[str, Any] = {
        kind: read(spark, folder, kind) for kind in signature(query).parameters if kind in house.SCHEMAS
    }
    with tempfile.TemporaryDirectory(prefix="bench-nexmark-") as state:
        if name == "q13":
            inputs["values"] = replace(SIDE_INPUT, load=folder / "side_input.csv", copies=Path(state) / "copies")
        writer = query(**inputs).writeStream.option("checkpointLocation", f"{state}/checkpoint")
        if name == "q10":
            writer = writer.format("csv").option("path", f"{state}/out").partitionBy("dt", "hm")
        else:
            writer = writer.format("noop")
        began = time.time()
        writer.trigger(availableNow=True).start().awaitTermination()
        return time.time() - began


def read(spark: Any, folder: Path, kind: str) -> Any:
    stream = spark.readStream.schema(house.SCHEMAS[kind]).option("maxFilesPerTrigger", FILES_PER_BATCH)
    rows = stream.csv(str(folder / kind))
    return rows.withMetadata("date_time", {EVENT_TIME_KEY: True, DELAY_KEY: DELAY})


def run_flink(python: str, folder: Path, small: Path, name: str) -> Seconds | str:
    """Return the seconds of both parts, or the reason why there are none."""
    with tempfile.TemporaryDirectory(prefix="bench-flink-") as state:
        command = [python, str(FLINK_SIDE), str(folder), str(small), name, state]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"not finished after {TIMEOUT_S} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it failed"])[-1][:300]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return found.get("error") or {part: found[part] for part in ("small_s", "all_s")}


def write_files(folder: Path, count: int) -> None:
    house.write_events(folder, count)
    house.side_input().write_csv(folder / "side_input_bare.csv", include_header=False)


def rate(seconds: Seconds, count: int) -> float | None:
    """Return events per second without startup time; None if startup is nearly all of it."""
    more_s = seconds["all_s"] - seconds["small_s"]
    return (count - SMALL_EVENTS) / more_s if more_s > MORE_S_MIN else None


def measure(spark: Any, parts: dict[str, Path], name: str, arguments: Any, python: str | None) -> list[str]:
    """Return the cells of a query's row."""
    rates: dict[str, list[float | None]] = {OURS: [], FLINK: []}
    failure = ""
    for _ in range(arguments.rounds):
        ours = {part: run(spark, folder, name) for part, folder in parts.items()}
        rates[OURS].append(rate(ours, arguments.events))
        if python is None or name == "q6":
            continue
        theirs = run_flink(python, parts["all_s"], parts["small_s"], name)
        if isinstance(theirs, str):
            failure = theirs
        else:
            rates[FLINK].append(rate(theirs, arguments.events))
    ours_rate, flink_rate = (_middle(rates[side]) for side in (OURS, FLINK))
    ratio = "" if ours_rate is None or flink_rate is None else f"{ours_rate / flink_rate:.3g}"
    short = "too few events to measure" if any(None in some for some in rates.values()) else ""
    notes = "; ".join(filter(None, (NOT_COMPARED.get(name), failure, short)))
    return [name, *("" if one is None else f"{one:,.0f}" for one in (ours_rate, flink_rate)), ratio, notes]


def _middle(rates: list[float | None]) -> float | None:
    known = [one for one in rates if one is not None]
    return median(known) if known else None


def main() -> None:
    arguments = parse()
    python = arguments.flink if arguments.flink != "" else _flink.environment()
    rows: list[list[str]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        spark_session("bench", master="local[2]", log_file=Path(folder) / "spark.log") as spark,
    ):
        # As in a pipeline that runs once: q12 uses processing time and would run batches without data forever.
        spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        parts = {"small_s": Path(folder) / "small", "all_s": Path(folder) / "all"}
        write_files(parts["small_s"], SMALL_EVENTS)
        write_files(parts["all_s"], arguments.events)
        print("\n".join(HEAD), flush=True)
        for name in arguments.queries:
            run(spark, parts["small_s"], name)  # Let the JVM compile its hot code and start the workers.
            rows.append(measure(spark, parts, name, arguments, python))
            print(_line(rows[-1]), flush=True)
    print("\n".join(verdicts(rows)), flush=True)
    if arguments.write:
        write(rows, arguments.events)


_COLUMNS = ("query", f"{OURS}, events/s", f"{FLINK}, events/s", "ratio", "")
HEAD = [f"| {' | '.join(_COLUMNS)} |", "|---|--:|--:|--:|---|"]


def _line(row: list[str]) -> str:
    return f"| {' | '.join(row)} |"


def verdicts(rows: list[list[str]]) -> list[str]:
    """Return the goals and whether they are reached."""
    ratios = {row[0]: float(row[3]) for row in rows if row[3] and row[0] not in NOT_COMPARED}
    if not ratios:
        return []
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    ahead = sum(ratio > 1 for ratio in ratios.values())
    least = min(ratios, key=lambda name: ratios[name])
    goals = [
        ("geometric mean of the ratios", 1.0, mean),
        ("share of queries faster than Flink SQL", 0.5, ahead / len(ratios)),
        (f"lowest ratio, {least}", 1 / 3, ratios[least]),
    ]
    lines = ["", "| goal | at least | measured | |", "|---|--:|--:|---|"]
    for name, goal, found in goals:
        lines.append(f"| {name} | {goal:.3g} | {found:.3g} | {'ok' if found >= goal else '**missed**'} |")
    return lines


def write(rows: list[list[str]], count: int) -> None:
    """Replace the page's rows of the measured queries, and keep the other rows."""
    known = REPORT.read_text().splitlines() if REPORT.exists() else []
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in known if line.startswith("| q"))
    merged = {row[0]: row for row in cells if row[0] in QUERIES} | {row[0]: row for row in rows}
    ordered = [merged[name] for name in QUERIES if name in merged]
    text = [
        INTRODUCTION.format(machine=machine(), events=count),
        "",
        *HEAD,
        *map(_line, ordered),
        *verdicts(ordered),
    ]
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text("\n".join(text) + "\n")


INTRODUCTION = """# Nexmark

Measured by `./dev bench nexmark` on {machine}. Both sides read {events:,} events (of every 50, one is a person,
three are auctions and 46 are bids) from CSV files to their end, one side after the other, with two cores each.
State is in RocksDB on both sides; Flink uses mini-batches and checkpoints every ten seconds. Rates count all
events and exclude startup time. A ratio above 1 is faster than Flink SQL. The queries are in
`examples/nexmark/queries.py`, Flink's in `bench/_flink_nexmark.sql`."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=lambda text: text.split(","), default=list(QUERIES))
    parser.add_argument("--events", type=int, default=EVENTS, help=f"more than {SMALL_EVENTS:,}")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--flink", metavar="PYTHON", nargs="?", const="")
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
