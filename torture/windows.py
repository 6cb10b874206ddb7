"""Crash a windowed aggregation on Spark: the driver is killed at random points while windows fire.

./dev torture windows --seeds 20
./dev torture windows --first 7 --seeds 1

Each seed chooses out-of-order events, a window, a trigger, and the times of the kills. Each pane retracts the one
it refines, so after any number of kills and restarts the sum of all changes must be what plain Python computes
over all events. No trigger here ever finishes, and no event is too late, so every event counts.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.processes import SHORT_LIVED

KEYS = ("tea", "coffee", "cocoa", "milk", "maté")
WINDOWS = ("Tumbling('1 minute')", "Hopping('2 minutes', '1 minute')", "Session('20 seconds')")
TRIGGERS = (
    "Default()",
    "AfterWatermark(late=hw.AfterCount(1))",
    "AfterWatermark(early=hw.AfterCount(2), late=hw.AfterCount(3))",
    "Repeatedly(hw.AfterCount(4))",
)
BATCHES, ROWS = 24, 40
PATIENCE_S = 300.0
"""Time limit for a new batch; Spark takes long to start on a busy machine."""
SECOND = 1_000_000
END = 10**6
"""Seconds: an event at this time closes every window before it."""

PROGRAM = """
import json
from pathlib import Path

import headwater as hw
from headwater.spark.session.session import spark_session

folder = Path({folder!r})
with spark_session("torture", master="local[2]", log_file=folder / "spark.log") as spark:
    rows = spark.readStream.schema("key string, amount long, at timestamp").option("maxFilesPerTrigger", 1)
    events = rows.json(str(folder / "in")).withMetadata("at", {{"headwater.eventTime": True}})
    changes = events.transform(
        hw.windowed(
            what={{"n": hw.count(), "amount": hw.sum("amount")}},
            where=hw.{where},
            when=hw.{when},
            how=hw.RETRACTING,
            by=["key"],
            lateness="1 day",
        )
    ).selectExpr("key", "unix_micros(window.start)", "unix_micros(window.end)", "n", "amount", "_change")

    def write_batch(batch, number):
        found = [list(row) for row in batch.collect()]
        (folder / "part").write_text(json.dumps(found))
        (folder / "part").rename(folder / "out" / f"{{number:05}}.json")

    writer = changes.writeStream.foreachBatch(write_batch).option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
"""

Event = tuple[str, int, int]
Row = tuple[str, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Report:
    """The counts of a run."""

    crashes: int
    panes: int


def run(seed: int, batches_max: int = BATCHES) -> Report:
    """Run one seed; raises AssertionError if the changes do not add up to the expected windows."""
    chance = random.Random(seed)
    where, when = chance.choice(WINDOWS), chance.choice(TRIGGERS)
    batches = [_batch(chance, number) for number in range(batches_max)]
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        folder = Path(name)
        _write(folder, [*batches, [("the end", 0, END)]])
        (folder / "program.py").write_text(PROGRAM.format(folder=name, where=where, when=when))
        crashes = _run_to_end(folder, chance)
        changes = [row for path in sorted((folder / "out").iterdir()) for row in json.loads(path.read_text())]
    total: Counter[Row] = Counter()
    for *row, sign in changes:
        total[tuple(row)] += sign  # type: ignore[index]
    found = {row: count for row, count in total.items() if count and row[0] != "the end"}
    expected = dict.fromkeys(windows_of(where, [event for batch in batches for event in batch]), 1)
    assert found == expected, f"{where}, {when}: {_difference(found, expected)}"
    return Report(crashes, len(changes))


def _batch(chance: random.Random, number: int) -> list[Event]:
    """Return events around a time that advances with each batch; some are far behind it."""
    late = 600 if chance.random() < 0.2 else 30
    times = (number * 25 - chance.expovariate(1 / late) for _ in range(ROWS))
    return [(chance.choice(KEYS), chance.randrange(100), max(0, round(at))) for at in times]


def _write(folder: Path, batches: list[list[Event]]) -> None:
    for name in ("in", "out"):
        (folder / name).mkdir()
    for number, batch in enumerate(batches):
        path = folder / "in" / f"{number:05}.json"
        stamp = "%Y-%m-%dT%H:%M:%SZ"
        rows = (
            {"key": key, "amount": amount, "at": time.strftime(stamp, time.gmtime(at))}
            for key, amount, at in batch
        )
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_000_000_000 + number,) * 2)  # Spark reads files in the order of their age.


def _run_to_end(folder: Path, chance: random.Random) -> int:
    """Run the program until it ends by itself, killing it after every few batches; return the number of kills."""
    crashes, goal = 0, chance.randrange(1, 5)
    while True:
        deadline = time.monotonic() + PATIENCE_S
        with (folder / "output.txt").open("ab") as output:
            program = subprocess.Popen(
                [sys.executable, str(folder / "program.py")], stdout=output, stderr=output, start_new_session=True
            )
        while program.poll() is None and _done(folder) < goal:
            if time.monotonic() > deadline:
                os.killpg(program.pid, signal.SIGKILL)
                raise AssertionError(f"no new batch in {PATIENCE_S} s: {_program_error(folder)}")
            time.sleep(0.01)
        if program.poll() is not None:
            assert program.returncode == 0, _program_error(folder)
            return crashes
        time.sleep(chance.random() / 2)  # so that the kill hits the next batch at a random point
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        crashes += 1
        goal = _done(folder) + chance.randrange(1, 9)


def _program_error(folder: Path) -> str:
    """Return the last traceback in the program's output, without the query plan that Spark adds."""
    output = (folder / "output.txt").read_text()
    return output[max(0, output.rfind("Traceback")) :].partition("Logical Plan:")[0][-4000:]


def _done(folder: Path) -> int:
    return len(list((folder / "out").iterdir()))


def windows_of(where: str, events: list[Event]) -> Iterator[Row]:
    """Yield every window with its count and sum, computed in plain Python."""
    by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, amount, at in events:
        by_key[key].append((at, amount))
    for key, pairs in by_key.items():
        for start, end in _spans(where, sorted(at for at, _ in pairs)):
            inside = [amount for at, amount in pairs if start <= at < end]
            yield key, start * SECOND, end * SECOND, len(inside), sum(inside)


def _spans(where: str, times: list[int]) -> Iterator[tuple[int, int]]:
    if where.startswith("Session"):
        start, end = times[0], times[0] + 20
        for at in times:
            if at >= end:  # the gap is as long as the session's
                yield start, end
                start = at
            end = max(end, at + 20)
        yield start, end
        return
    size = 60 if where.startswith("Tumbling") else 120
    starts = {start for at in times for start in range((at - size) // 60 * 60 + 60, at + 1, 60)}
    yield from ((start, start + size) for start in starts)


def _difference(found: dict[Row, int], expected: dict[Row, int]) -> str:
    wrong = {row: count for row, count in found.items() if expected.get(row) != count}
    missing = [row for row in expected if row not in found]
    return f"{len(wrong)} wrong, such as {list(wrong.items())[:3]}; {len(missing)} missing, such as {missing[:3]}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev torture windows", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="number of runs (default: 20)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    options = parser.parse_args(arguments)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED)
    crashes = 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            report = run(seed)
        except AssertionError as error:
            print(f"seed {seed}: {error}\nto repeat: ./dev torture windows --first {seed} --seeds 1", flush=True)
            return 1
        crashes += report.crashes
        print(f"seed {seed}: {report.panes} changes over {report.crashes} kills add up", flush=True)
    print(f"all changes add up: {crashes} kills")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
