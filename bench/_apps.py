"""Apps that run in processes of their own, with the source of this checkout or another, and a load."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from _loads import producing

from support.processes import free_port

ROOT = Path(__file__).parents[1]
TOPIC = "events"
CORES = 2
PATIENCE_S, STOP_S, LOOK_EVERY_S = 600.0, 60.0, 0.1
THIS, OTHER = "this commit", "the other commit"


class BenchError(Exception):
    """The app did not do what is measured."""


def sides(against: Path | None) -> dict[str, Path]:
    """Return the checkouts to measure by name: this one, and the one to compare it with."""
    if against is None:
        return {THIS: ROOT}
    if not (against / "src" / "headwater").is_dir():
        raise SystemExit(f"--against {against}: it is no checkout of Headwater, src/headwater is missing")
    return {OTHER: against.resolve(), THIS: ROOT}


def prepare() -> None:
    """Restrict this process and those that it starts to two cores; handle SIGTERM like Ctrl-C, to stop the app."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell ignores it in a background job.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


@dataclass
class AppRun:
    """A running app: what it has printed, and when its views advanced."""

    pid: int
    views: int
    began: float
    """Monotonic time of the command."""
    marks: Path
    lines: list[tuple[float, str]] = field(default_factory=list)
    advances: dict[str, list[float]] = field(default_factory=dict)
    """For each view, the monotonic times at which a reader saw a new position."""
    exit_code: Callable[[], int | None] = lambda: None

    def line_at(self, pattern: str) -> float | None:
        """Return the time of the first line that begins with a pattern."""
        return next((at for at, line in list(self.lines) if re.match(pattern, line)), None)

    def mark_at(self, name: str) -> float | None:
        """Return the time of a mark of `_marked.py`."""
        lines = self.marks.read_text().splitlines() if self.marks.exists() else []
        return next((float(at) for mark, at in (line.split("\t") for line in lines) if mark == name), None)

    def wait(self, ready: Callable[[], bool], subject: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a condition holds; raise BenchError with the app's output if it does not."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            ended = self.exit_code() is not None
            if ended or time.monotonic() > deadline:
                reason = "the app ended" if ended else f"not after {timeout_s:.0f} s"
                print("\n".join(line for _, line in self.lines[-20:]), file=sys.stderr)
                raise BenchError(f"{subject}: {reason}")
            time.sleep(LOOK_EVERY_S)

    def wait_for_first_results(self) -> float:
        """Wait until every view has a result; return the seconds from the command to the last of them."""
        self.wait(lambda: len(self.advances) == self.views, f"a first result of {self.views} views")
        return max(times[0] for times in list(self.advances.values())) - self.began


@contextmanager
def running_app(source: Path, folder: Path, views: int, rate: int) -> Iterator[AppRun]:
    """Run an app with a number of views and its embedded log while events arrive at a rate."""
    (folder / "app").mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("_views_app.py"), folder / "app" / "app.py")
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "BENCH_VIEWS": str(views)}
    environment.pop("HEADWATER_STORE", None)
    servers, http = (f"127.0.0.1:{free_port()}" for _ in range(2))
    data, marks = folder / "data", folder / "marks.txt"
    command: list[str | Path] = [Path(__file__).with_name("_marked.py"), marks, "run", folder / "app" / "app.py"]
    command += ["--data", data, "--listen", servers, "--http", http, "--master", f"local[{CORES}]"]
    command += ["--conf", f"spark.sql.shuffle.partitions={CORES}"]
    reader = _start([Path(__file__).with_name("_positions.py"), data, str(views)], environment)
    app: subprocess.Popen[str] | None = None
    try:
        assert reader.stdout is not None and reader.stdout.readline() == "ready\n", "the reader did not start"
        began = time.monotonic()
        app = _start(command, environment)
        run = AppRun(app.pid, views, began, marks, exit_code=app.poll)
        _follow(app.stdout, lambda line: run.lines.append((time.monotonic(), line)))
        _follow(reader.stdout, lambda line: _advanced(run, line))
        run.wait(lambda: run.line_at("console at") is not None, "the start of the log")
        with producing(servers, TOPIC, rate, order):
            yield run
    finally:
        reader.kill()
        reader.wait()
        if app is not None:
            _stop(app)


def order(number: int, rest: str) -> str:
    """Return an event with a hundred keys, 20 cities and 50 devices."""
    return (
        f'{{"key": "{number % 100}", "city": "{number % 20}", "device": "{number % 50}", '
        f'"amount": {number % 997}.5, "quantity": {number % 7}, {rest}'
    )


def _start(command: list[str | Path], environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _follow(stream: IO[str] | None, each: Callable[[str], None]) -> None:
    assert stream is not None

    def follow() -> None:
        for line in stream:
            each(line.rstrip("\n"))

    threading.Thread(target=follow, daemon=True).start()


def _advanced(run: AppRun, line: str) -> None:
    try:
        view, at = json.loads(line)
    except ValueError:
        run.lines.append((time.monotonic(), f"reader: {line}"))  # It failed.
    else:
        run.advances.setdefault(view, []).append(at)


def _stop(app: "subprocess.Popen[str]") -> None:
    """Stop an app as Ctrl-C does; if it takes too long, kill it with all its processes."""
    app.terminate()
    try:
        app.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(app.pid, signal.SIGKILL)
        app.wait()
