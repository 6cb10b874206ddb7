"""A burst of fifty times the usual rate: its memory, its batches, and what the pipeline says of it.

./dev bench burst [RATE] [--write]

`headwater run` keeps a view of windows over a topic. Events come at RATE a second (2,000), then for a while fifty
times as many, then at RATE again until nothing is left to read. `--write` writes docs/benchmarks/burst.md.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the repository root, for `support`

from _loads import producing
from _report import machine

from support.brokers import create_topic, start_headwater
from support.processes import descendants, free_port

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "burst.md"
TIMES = 50
WARM_UP_S, USUAL_S, BURST_S, PATIENCE_S = 40.0, 20.0, 20.0, 600.0
UP_TO_DATE = 3
"""Seconds behind within which a pipeline that reads in batches is up to date."""
APP = """
import headwater as hw

app = hw.App("burst")
events = app.topic("events", schema="key string, sent double, at timestamp", event_time="at")


@app.view(events, key=["key", "window"])
def totals(rows):
    windows = hw.windowed(
        what={"n": hw.count(), "newest": hw.max("sent")}, where=hw.Tumbling("1 minute"), when=hw.EveryBatch(),
        how=hw.RETRACTING, by=["key"], lateness="1 minute",
    )
    return rows.transform(windows).select("key", "window", "n", "newest", "_change")
"""


@dataclass
class Seen:
    """What was seen of the pipeline in one part of the run."""

    memory_mb: float = 0.0
    batch_rows: int = 0
    behind: int = 0
    told: list[tuple[float, float | None]] = field(default_factory=list)
    """When, and how long it said that it would take."""

    def look(self, process: int, pipeline: dict[str, Any]) -> None:
        processes = (process, *(pid for pid, _ in descendants(process)))
        self.memory_mb = max(self.memory_mb, sum(map(memory_mb, processes)))
        self.batch_rows = max(self.batch_rows, pipeline["numInputRows"] or 0)
        self.behind = max(self.behind, pipeline["behindRecords"] or 0)
        self.told.append((time.monotonic(), pipeline["catchUpSeconds"]))


def memory_mb(process: int) -> float:
    """Its share of memory: what several have together counts once."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0  # It has ended meanwhile.
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def pipeline_at(http: str) -> dict[str, Any] | None:
    """What the app says of its one pipeline; None while it does not."""
    try:
        with urllib.request.urlopen(f"http://{http}/api/v1/pipelines", timeout=10) as answer:
            found = json.load(answer)["pipelines"]
    except OSError:
        return None
    return next((p for p in found if p["name"] == "totals" and p["batchId"] is not None), None)


def watch(process: int, http: str, seconds: float, *, until_done: bool = False) -> Seen:
    seen, began = Seen(), time.monotonic()
    while time.monotonic() < began + seconds:
        pipeline = pipeline_at(http)
        if pipeline is not None:
            seen.look(process, pipeline)
            if until_done and pipeline["catchUpSeconds"] is not None and pipeline["catchUpSeconds"] < UP_TO_DATE:
                return seen
        time.sleep(0.2)
    assert not until_done, f"it was not up to date after {seconds:.0f} s"
    return seen


def measure(folder: Path, rate: int) -> tuple[Seen, Seen, Seen]:
    """The usual, the burst, and until nothing is left of it."""
    (folder / "app.py").write_text(APP)
    (folder / "broker").mkdir()
    broker = start_headwater(folder / "broker", "interval")
    create_topic(broker.servers, "events", 2)
    http = f"127.0.0.1:{free_port()}"
    options = ["-b", broker.servers, "--data", str(folder / "data"), "--http", http]
    with (folder / "output.txt").open("wb") as output:
        program = [sys.executable, "-m", "headwater", "run", str(folder / "app.py"), *options]
        app = subprocess.Popen(program, stdout=output, stderr=output)
    try:
        with producing(broker.servers, "events", rate):
            watch(app.pid, http, WARM_UP_S)
            usual = watch(app.pid, http, USUAL_S)
            with producing(broker.servers, "events", (TIMES - 1) * rate):
                burst = watch(app.pid, http, BURST_S)
            return usual, burst, watch(app.pid, http, PATIENCE_S, until_done=True)
    except AssertionError:
        print((folder / "output.txt").read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        app.terminate()
        app.wait(60)
        broker.stop()


def table(usual: Seen, burst: Seen, after: Seen) -> Iterator[str]:
    yield "| | memory at most, MB | largest batch, rows | behind at most, records |"
    yield "|---|--:|--:|--:|"
    for name, seen in (("usual", usual), ("burst", burst), ("until it is worked off", after)):
        yield f"| {name} | {seen.memory_mb:,.0f} | {seen.batch_rows:,} | {seen.behind:,} |"
    peak = max(burst.memory_mb, after.memory_mb)
    yield ""
    yield f"Memory with the burst against without: {peak / usual.memory_mb:.2f}."
    done = after.told[-1][0]
    errors = [(done - at, said) for at, said in after.told if said is not None]
    shown = [errors[len(errors) * part // 4] for part in range(4)] if errors else []
    said = "; ".join(f"{left:.0f} s before the end it said {seconds:.0f} s" for left, seconds in shown)
    yield f"Worked off {done - after.told[0][0]:.0f} s after its end. {said}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rate", nargs="?", type=int, default=2_000)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = list(table(*measure(Path(folder), arguments.rate)))
    print("\n".join(lines))
    if arguments.write:
        REPORT.write_text(
            "\n".join([INTRODUCTION.format(machine=machine(), rate=arguments.rate, burst_s=BURST_S), *lines, ""])
        )


INTRODUCTION = """# A burst of fifty times the usual rate

By `./dev bench burst` on {machine}. A view of windows of a minute, with changes in every batch, at {rate:,}
events a second; then {burst_s:.0f} seconds of fifty times as many; then as before. Memory is that of the app
and all its processes, Java included; broker and producer have the same two cores.
"""


if __name__ == "__main__":
    main()
