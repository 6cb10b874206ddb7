"""Compare random queries and all pairs of operators with SQL over the final rows.

./dev differential                        # 10,000 queries in the simulator, 200 on Spark
./dev differential --pairs                # all pairs of operators in the simulator, in an app and in batch
./dev differential --pairs --on app       # in an app only
./dev differential --first 4711 --simulated 1 --on-spark 0
./dev differential --record               # and write the numbers to docs/compatibility.md
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from differential.check import Problems, check_app, check_batch, check_simulated
from differential.on_spark import Setting
from differential.queries import Query, pairs, random_queries, random_query
from differential.rows import BASES
from headwater.spark.session.session import spark_session

ROOT = Path(__file__).parents[1]
QUERIES_PER_APP, PAIRS_PER_APP = 8, 24
SPARK_BASES = BASES[:3]
"""Times that Python's datetime has."""

PLACES = ("simulator", "app", "batch")
CheckOnSpark = Callable[[SparkSession, Sequence[Query], Path, Setting], Problems]


def simulated_seed(seed: int) -> Problems:
    """Check one random query in the simulator."""
    return _described(random_query(seed), _caught(random_query(seed)))


def _caught(query: Query) -> Problems:
    try:
        return check_simulated(query)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def _described(query: Query, problems: Problems) -> Problems:
    if not problems:
        return []
    chain = " -> ".join(map(str, query.operators))
    return [f"{query.name}: {chain}", *(f"    {problem}" for problem in problems[:5])]


def check_batches(spark: SparkSession, queries: Sequence[Query], folder: Path, setting: Setting) -> Problems:
    """Check queries on Spark in batch."""
    return [problem for query in queries for problem in _described(query, check_batch(spark, query))]


def check_on_spark(spark: SparkSession, queries: Sequence[Query], folder: Path, setting: Setting) -> Problems:
    """Check queries over the same data on Spark, in batch and in an app."""
    return check_batches(spark, queries, folder, setting) + check_app(spark, queries, folder, setting)


class Progress:
    """Counts the queries and prints the problems."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self._total = what, total
        self._started = self._shown = time.monotonic()
        self.done = self.failed = 0

    def add(self, problems: Problems, number: int = 1) -> None:
        self.done += number
        self.failed += bool(problems)
        for problem in problems:
            print(problem, flush=True)
        now = time.monotonic()
        if self.done == self._total or now > self._shown + 10:
            self._shown = now
            print(
                f"{self.what}: {self.done} of {self._total} in {now - self._started:.0f} s, "
                f"{self.failed} with problems",
                flush=True,
            )


def run_simulated(first: int, number: int) -> Progress:
    progress = Progress("random queries in the simulator", number)
    with ProcessPoolExecutor() as pool:
        for problems in pool.map(simulated_seed, range(first, first + number), chunksize=20):
            progress.add(problems)
    return progress


def run_simulated_pairs() -> Progress:
    queries = list(pairs())
    progress = Progress("pairs of operators in the simulator", len(queries))
    with ProcessPoolExecutor() as pool:
        for query, problems in zip(queries, pool.map(_caught, queries, chunksize=20), strict=True):
            progress.add(_described(query, problems))
    return progress


def run_on_spark(
    chunks: Iterable[tuple[list[Query], Setting]], what: str, total: int, check: CheckOnSpark = check_on_spark
) -> Progress:
    progress = Progress(what, total)
    with tempfile.TemporaryDirectory(prefix="differential-") as name:
        log_file = Path(name) / "spark.log"
        with spark_session("differential", master="local[2]", log_file=log_file) as spark:
            for number, (queries, setting) in enumerate(chunks):
                problems = check(spark, queries, Path(name) / str(number), setting)
                progress.add(problems, len(queries))
    return progress


def run_pairs(place: str) -> Progress:
    """Run all pairs of operators in the simulator, in apps, or in batch."""
    if place == "simulator":
        return run_simulated_pairs()
    name, check = ("an app", check_app) if place == "app" else ("batch", check_batches)
    return run_on_spark(_pair_chunks(), f"pairs of operators on Spark in {name}", len(list(pairs())), check)


def record(runs: Iterable[Progress]) -> None:
    """Write the numbers of runs to docs/compatibility.json and its page."""
    results = ROOT / "docs" / "compatibility.json"
    known = json.loads(results.read_text())
    ran = datetime.now(UTC).date().isoformat()
    for run in runs:
        known.setdefault("differential", {})[run.what] = {"queries": run.done, "wrong": run.failed, "ran": ran}
    results.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    subprocess.run([sys.executable, ROOT / "tools" / "compatibility.py", "page"], check=True)


def _random_chunks(first: int, number: int) -> Iterator[tuple[list[Query], Setting]]:
    for seed in range(first, first + number, QUERIES_PER_APP):
        size = min(QUERIES_PER_APP, first + number - seed)
        yield random_queries(seed, size, SPARK_BASES), Setting.random(random.Random(seed))


def _pair_chunks() -> Iterator[tuple[list[Query], Setting]]:
    queries = list(pairs())
    for start in range(0, len(queries), PAIRS_PER_APP):
        yield queries[start : start + PAIRS_PER_APP], Setting.random(random.Random(start))


def main() -> int:
    """Run the checks that the arguments select; return 1 if a result is wrong."""
    parser = argparse.ArgumentParser(
        prog="./dev differential", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulated", type=int, default=10_000, help="random queries in the simulator")
    parser.add_argument(
        "--on-spark", type=int, default=200, help="random queries on Spark, in batch and in an app"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--pairs", action="store_true", help="run all pairs of operators instead")
    parser.add_argument("--on", nargs="+", choices=PLACES, default=PLACES, help="where to run the pairs")
    parser.add_argument("--record", action="store_true", help="write the numbers to docs/compatibility.md")
    arguments = parser.parse_args()
    runs = []
    if arguments.pairs:
        runs += [run_pairs(place) for place in arguments.on]
    else:
        first, simulated, on_spark = arguments.first, arguments.simulated, arguments.on_spark
        if simulated:
            runs.append(run_simulated(first, simulated))
        if on_spark:
            runs.append(run_on_spark(_random_chunks(first, on_spark), "random queries on Spark", on_spark))
    if arguments.record:
        record(runs)
    return 1 if any(run.failed for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
