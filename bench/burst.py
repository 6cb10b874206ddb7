"""A burst at 50x the usual rate: memory, batch sizes, and the pipeline's own estimate of its catch-up time.

./dev bench burst [RATE] [--write]

`headwater run` maintains a view of windows over a topic. Events arrive at RATE per second (default: 2,000), then
at 50x RATE for a while, then at RATE again until the pipeline has caught up. `--write` writes
docs/benchmarks/burst.md.
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
from _process_tree import tree_memory_mb
from _report import machine

from support.brokers import create_topic, start_headwater
from support.processes import free_port

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "burst.md"
TIMES = 50
WARM_UP_S, USUAL_S, BURST_S, PATIENCE_S = 40.0, 20.0, 20.0, 600.0
UP_TO_DATE = 3
"""Estimated catch-up time in seconds below which a pipeline, which reads in batches, counts as up to date."""
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
class Phase:
    """The maxima of one phase of the run, and the pipeline's estimates."""

    memory_mb: float = 0.0
    batch_rows: int = 0
    lag: int = 0
    estimates: list[tuple[float, float | None]] = field(default_factory=list)
    """Time, and the catch-up time in seconds that the pipeline estimated then."""

    def look(self, process: int, pipeline: dict[str, Any]) -> None:
        self.memory_mb = max(self.memory_mb, tree_memory_mb(process))
        self.batch_rows = max(self.batch_rows, pipeline["numInputRows"] or 0)
        self.lag = max(self.lag, pipeline["behindRecords"] or 0)
        self.estimates.append((time.monotonic(), pipeline["catchUpSeconds"]))


def pipeline_at(http: str) -> dict[str, Any] | None:
    """Return the status of the app's only pipeline; None until it has run a batch."""
    try:
        with urllib.request.urlopen(f"http://{http}/api/v1/pipelines", timeout=10) as response:
            found = json.load(response)["pipelines"]
    except OSError:
        return None
    return next((p for p in found if p["name"] == "totals" and p["batchId"] is not None), None)


def watch(process: int, http: str, seconds: float, *, until_done: bool = False) -> Phase:
    phase, began = Phase(), time.monotonic()
    while time.monotonic() < began + seconds:
        pipeline = pipeline_at(http)
        if pipeline is not None:
            phase.look(process, pipeline)
            if until_done and pipeline["catchUpSeconds"] is not None and pipeline["catchUpSeconds"] < UP_TO_DATE:
                return phase
        time.sleep(0.2)
    assert not until_done, f"the pipeline has not caught up after {seconds:.0f} s"
    return phase


def measure(folder: Path, rate: int) -> tuple[Phase, Phase, Phase]:
    """Return the phases before, during and after the burst."""
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


def table(usual: Phase, burst: Phase, after: Phase) -> Iterator[str]:
    yield "| | peak memory, MB | largest batch, rows | largest lag, records |"
    yield "|---|--:|--:|--:|"
    for name, phase in (("before the burst", usual), ("burst", burst), ("until it has caught up", after)):
        yield f"| {name} | {phase.memory_mb:,.0f} | {phase.batch_rows:,} | {phase.lag:,} |"
    peak = max(burst.memory_mb, after.memory_mb)
    yield ""
    yield f"With the burst, the app uses {peak / usual.memory_mb:.2f}x its memory without it."
    done = after.estimates[-1][0]
    known = [(done - at, estimate) for at, estimate in after.estimates if estimate is not None]
    shown = [known[len(known) * part // 4] for part in range(4)] if known else []
    estimates = "; ".join(f"{left:.0f} s before that it estimated {seconds:.0f} s" for left, seconds in shown)
    yield f"It caught up {done - after.estimates[0][0]:.0f} s after the end of the burst. {estimates}."


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


INTRODUCTION = """# A burst at 50x the usual rate

Measured by `./dev bench burst` on {machine}. A view of one-minute windows that changes in every batch receives
{rate:,} events/s, then 50x as many for {burst_s:.0f} seconds, then {rate:,} again. Memory is that of the app
and all its processes, including Java; broker and producer share the two cores.
"""


if __name__ == "__main__":
    main()
