"""Crash a whole app, its log included, while six views, PostgreSQL and Parquet follow two topics.

./dev torture app --seeds 50
./dev torture app --first 7 --seeds 1 --same-position
./dev torture app --failing

Each seed chooses the events and the moments of the kills: right after a start, and while batches run. A kill hits
the driver with the embedded log, all processes of the app, or Spark's Java alone, from which the app has to
recover by itself. Meanwhile the positions of the views are read, and must never decrease; with --same-position,
all views must have the same position in every read. At the end every output must be what plain Python computes
over all acknowledged events.

With --failing nothing is killed. One view fails on all orders from its third batch on: it must be suspended, the
five others must keep advancing, and after a fix it must catch up from its own position.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.postgres import PostgresServer
from support.processes import SHORT_LIVED
from torture.shop import FAILING, MINUTES, Shop, supports_views_over_views
from torture.shop_run import Run

EARLY_S = 12.0
"""An early kill comes within this time after a start: before Spark is ready, or during the first batches."""
STALL_MAX_S = 30.0
"""Longest time without an advance of a healthy view, while another one fails and events arrive."""
SUSPENDED_S = 10.0
"""Time for which a view stays suspended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command that apply to each run."""

    same_position: bool = False
    over_view: bool = False
    kills: int | None = None
    """Number of kills; defaults to 4 to 8."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A planned kill: `early` after a start, or after some advances of the views."""

    victim: str
    early: bool


def plan(chance: random.Random, kills: int | None) -> list[Kill]:
    """Choose the kills of a run. Two come while batches run; each of these needs a complete start of Spark."""
    count = chance.randint(4, 8) if kills is None else kills
    early = [Kill(chance.choice(("driver", "all")), early=True) for _ in range(count - 2)]
    busy = [Kill(chance.choice(("driver", "all", "java")), early=False) for _ in range(min(2, count))]
    chosen = [*early, *busy]
    chance.shuffle(chosen)
    return chosen


def run(seed: int, postgres: PostgresServer, options: Options) -> str:
    """Run one seed and return a summary; raises AssertionError if an output or a position is wrong."""
    chance = random.Random(seed)
    with _folder() as folder:
        sinks = {"dsn": _new_database(postgres, seed), "parquet": str(folder / "archive")}
        shop = Shop(minutes=chance.choice(MINUTES), over_view=options.over_view, sinks=sinks)
        with closing(Run(folder, shop, seed, same_position=options.same_position)) as running:
            kills = plan(chance, options.kills)
            _disturb(running, kills, chance)
            expected = running.finish()
            killed = Counter(f"{kill.victim} {'early' if kill.early else 'busy'}" for kill in kills)
            done = ", ".join(f"{name} {count}" for name, count in sorted(killed.items()))
            rows = sum(expected[name].total() for name in shop.views)
            return (
                f"{len(running.traffic.acknowledged)} events, {rows} rows in {len(shop.views)} views, "
                f"{running.sampler.samples} samples, {len(running.sampler.snapshots)} snapshots, killed {done}"
            )


def _disturb(running: Run, kills: list[Kill], chance: random.Random) -> None:
    app, sampler = running.app, running.sampler
    app.start()
    running.traffic.start()
    sampler.start()
    for kill in kills:
        if kill.early:
            time.sleep(chance.uniform(0.1, EARLY_S) if chance.random() < 0.7 else chance.uniform(0.1, 1.5))
        else:
            for _ in range(chance.randint(1, 4)):
                running.wait_until_advanced()
            time.sleep(chance.random())
        app.check_alive()
        assert app.kill(kill.victim), f"there was no {kill.victim} to kill"
        if kill.victim != "java":
            app.start()


def run_failing(seed: int, options: Options) -> str:
    """Run one seed with a failing view and return a summary; raises AssertionError if an output is wrong.

    Even seeds fix the view without a restart, by `headwater pipeline resume`; odd ones restart a fixed program.
    """
    with _folder() as folder:
        flag = folder / "fixed"
        shop = Shop(fails_unless=str(flag), over_view=options.over_view)
        with closing(Run(folder, shop, seed)) as running:
            app, sampler, traffic = running.app, running.sampler, running.traffic
            app.start()
            sampler.start()
            running.wait_until((app.data / "views.db").exists, "the store exists")
            traffic.wait_for_topics()
            for _ in range(2):
                traffic.burst(200)
                running.wait_until_read()
            before = sampler.positions[FAILING]
            traffic.break_orders()
            traffic.burst(80)  # at once, so that no batch has a single record, which would become a dead letter
            traffic.start()
            sampler.restart_pauses()
            dependent = {FAILING, *shop.views[6:]}  # A view that reads it computes it, too.
            running.wait_until(lambda: dependent <= _suspended(running), f"{FAILING} is suspended")
            time.sleep(SUSPENDED_S)
            assert sampler.positions[FAILING] == before, f"{FAILING} has advanced: {sampler.positions[FAILING]}"
            pauses = sampler.pauses()
            if seed % 2 == 0:
                flag.touch()
                for view in sorted(dependent):
                    app.command("pipeline", "resume", view)
                running.wait_until_read()
                pauses = sampler.pauses()
            else:
                app.stop()
                app.write(Shop(over_view=options.over_view, fails_unless="/"))
                app.start()
            longest, view = max((pause, view) for view, pause in pauses.items() if view not in dependent)
            assert longest < STALL_MAX_S, f"{view} did not advance for {longest:.0f} s while {FAILING} failed"
            running.finish()
            how = "resumed" if seed % 2 == 0 else "fixed and restarted"
            return f"{FAILING} was suspended and {how}; the others advanced at least every {longest:.1f} s"


def _suspended(running: Run) -> set[str]:
    found = json.loads(running.app.command("pipeline", "list", "--output", "json"))["pipelines"]
    return {str(pipeline["name"]) for pipeline in found if pipeline["state"] == "suspended"}


def _new_database(server: PostgresServer, seed: int) -> str:
    import psycopg

    name = f"seed_{seed}"
    with psycopg.connect(server.dsn, autocommit=True) as db:
        db.execute(f'drop database if exists "{name}" with (force)')  # type: ignore[arg-type,unused-ignore]
        db.execute(f'create database "{name}"')  # type: ignore[arg-type,unused-ignore]
    return f"{server.dsn.rpartition('/')[0]}/{name}"


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a new folder, which is kept if an error is raised."""
    folder = Path(tempfile.mkdtemp(prefix="torture-app-"))
    try:
        yield folder
    except AssertionError as error:
        raise AssertionError(f"{error}\nits files are in {folder}") from error
    shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev torture app", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="number of runs (default: 10)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--kills", type=int, help="kills per run (default: 4 to 8)")
    parser.add_argument(
        "--same-position", action="store_true", help="all views must always have the same position"
    )
    parser.add_argument("--failing", action="store_true", help="kill nothing; one of the views fails")
    parser.add_argument(
        "--view-over-view",
        action=argparse.BooleanOptionalAction,
        default=supports_views_over_views(),
        help="have a view that reads a view (default: if it is supported)",
    )
    given = parser.parse_args(arguments)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED)
    options = Options(same_position=given.same_position, over_view=given.view_over_view, kills=given.kills)
    with closing(PostgresServer()) as postgres:
        if not given.failing:
            postgres.start()
        for seed in range(given.first, given.first + given.seeds):
            started = time.monotonic()
            try:
                summary = run_failing(seed, options) if given.failing else run(seed, postgres, options)
            except AssertionError as error:
                flags = [argument for argument in arguments if argument.startswith(("--same", "--fail"))]
                again = " ".join([*flags, "--first", str(seed), "--seeds", "1"])
                print(f"seed {seed}: {error}\nto repeat: ./dev torture app {again}", flush=True)
                return 1
            print(f"seed {seed}: {summary}; {time.monotonic() - started:.0f} s", flush=True)
    print(f"all outputs are right: {given.seeds} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
