"""`headwater rebuild`: recompute a view from the log, or restart a query with a new checkpoint."""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.options import DATA, DataOption, StoreOption
from headwater.cli.view_store import open_store
from headwater.errors import HeadwaterError, InvalidError

if TYPE_CHECKING:
    from headwater.store.pipelines.facts import FactStore
    from headwater.store.pipelines.generations import Generation, Generations
    from headwater.store.views import ViewStore

WATCH_EVERY_S = 0.5
REPORT_EVERY_S = 5.0


class From(StrEnum):
    """The first record of a query that is restarted instead of rebuilt."""

    START = "start"
    NOW = "now"


def rebuild(
    name: Annotated[
        str, typer.Argument(help="Name of the view; with --from, of a view or a sink.", show_default=False)
    ],
    since: Annotated[
        From | None,
        typer.Option(
            "--from",
            help="start: discard the results and start with the first record; now: keep the results and continue "
            "from here with empty state. The app must not be running.",
        ),
    ] = None,
    data: DataOption = DATA,
    address: StoreOption = None,
) -> None:
    """Recompute a view from the log alongside the current one, and swap it in when it has caught up.

    The running app does this, or the next one that is run with this data directory. The current view stays
    readable until the swap; then subscribers receive the new rows.

    Example: headwater rebuild revenue

    Example: headwater rebuild revenue --from start
    """
    from headwater.assembly.run import is_running
    from headwater.store.pipelines.facts import FactStore
    from headwater.store.pipelines.generations import Generations

    store = open_store(data, address, to_write=True)
    facts = FactStore(data / "facts.db")
    views = [shape.name for shape in store.views()]
    if since is not None:
        _check_name(name, sorted({*views, *facts.queries()}))
        _restart(store, data, name, since)
        return
    _check_name(name, views)
    generations = Generations(store)
    generation = generations.request_rebuild(name)
    if not is_running(data):
        print(f"view {name} will be rebuilt when the app runs next; until then it stays as it is")
        return
    _watch(generations, facts, generation)


def _check_name(name: str, known: list[str]) -> None:
    if name not in known:
        raise InvalidError(
            f"cannot rebuild {name!r}: no view has this name; the views are: {', '.join(known) or 'none'}",
            hint="a sink is restarted with --from start or --from now",
        )


def _restart(store: "ViewStore", data: Path, name: str, since: From) -> None:
    from headwater.assembly.run import pipeline_lock
    from headwater.spark.pipeline.new_checkpoint import restart_from_here, restart_from_start

    with pipeline_lock(data):
        restart = restart_from_start if since is From.START else restart_from_here
        restart(store, data / "checkpoints", name)
    first = "the first record" if since is From.START else "the first record it has not read"
    print(f"{name} will start with {first} when the app runs next")


def _watch(generations: "Generations", facts: "FactStore", generation: "Generation") -> None:
    """Report the progress of a rebuild until it ends."""
    name, reported_at = generation.query, 0.0
    print(f"rebuilding view {name}; Ctrl-C stops this report, not the rebuild", flush=True)
    while generation in generations.rebuilds():
        time.sleep(WATCH_EVERY_S)
        latest = facts.latest(generation.name)
        behind = latest[0].body.get("behindRecords") if latest else None
        if behind is not None and time.monotonic() - reported_at > REPORT_EVERY_S:
            reported_at = time.monotonic()
            print(f"  {behind:,} records behind", flush=True)
    if generations.current(name) != generation:
        notes = [fact.body["note"] for fact in facts.latest(name, limit=20) if fact.body.get("note")]
        raise HeadwaterError(f"view {name!r} was not rebuilt: {notes[-1] if notes else 'the rebuild was dropped'}")
    print(f"view {name} is rebuilt and swapped in")
