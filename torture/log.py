"""Crash the log: its storage by power loss at any operation, and a whole broker by kill -9 and SIGSTOP.

./dev torture log --seeds 300            both, until all seeds are done
./dev torture log --only storage --first 56 --seeds 1
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torture import clients, storage

FAULTS = 6
"""Number of faults in a run of the broker."""
STORAGE_RUNS = 10
"""Storage runs for each run of the broker, which takes as long as many of them."""


class Report(Protocol):
    """The result of a run."""

    crashes: int


@dataclass(slots=True)
class Tally:
    """Runs and crashes so far."""

    runs: int = 0
    crashes: int = 0


def main(arguments: list[str]) -> int:
    options = _options().parse_args(arguments)
    tallies = {"storage": Tally(), "broker": Tally()}
    started = time.monotonic()
    for seed in range(options.first, options.first + options.seeds):
        kinds: list[tuple[str, Callable[[int], Report]]] = []
        if options.only != "broker":
            kinds.append(("storage", storage.run))
        if options.only == "broker" or (options.only is None and seed % STORAGE_RUNS == 0):
            kinds.append(("broker", lambda seed: clients.run(seed, options.faults)))
        for kind, run in kinds:
            try:
                report = run(seed)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                print(f"\nseed {seed} ({kind}): {type(error).__name__}: {error}", flush=True)
                print(f"to repeat: ./dev torture log --only {kind} --first {seed} --seeds 1", flush=True)
                raise
            tallies[kind].runs += 1
            tallies[kind].crashes += report.crashes
        took = time.monotonic() - started
        text = ", ".join(f"{name} {tally.crashes} crashes in {tally.runs} runs" for name, tally in tallies.items())
        print(f"\rseed {seed}: {text}, {took:.0f} s", end="" if sys.stdout.isatty() else "\n", flush=True)
    print(f"\nno guarantee was broken: {sum(t.crashes for t in tallies.values())} crashes")
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev torture log", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=100, help="number of runs (default: 100)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--only", choices=("storage", "broker"), help="run only one of the two, with every seed")
    parser.add_argument(
        "--faults", type=int, default=FAULTS, help=f"faults per run of the broker (default: {FAULTS})"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
