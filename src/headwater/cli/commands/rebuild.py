"""`headwater rebuild`: state can be thrown away. What a query has computed is computed anew from the log."""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.commands.view import DATA, DataOption, StoreOption, open_store
from headwater.errors import ConflictError, HeadwaterError, InvalidError
from headwater.locks import FolderLock

if TYPE_CHECKING:
    from headwater.store.facts import FactStore
    from headwater.store.generations import Generation, Generations
    from headwater.store.views import ViewStore

WATCH_EVERY_S = 0.5
TELL_EVERY_S = 5.0


class From(StrEnum):
    """Where a query begins that is not rebuilt beside the old one."""

    START = "start"
    NOW = "now"


def rebuild(
    name: Annotated[str, typer.Argument(help="The view, or with --from also the sink.", show_default=False)],
    since: Annotated[
        From | None,
        typer.Option(
            "--from",
            help="start: forget what there is and begin with the first record; now: keep it, and go on from here "
            "with empty state. The app must not run.",
        ),
    ] = None,
    data: DataOption = DATA,
    address: StoreOption = None,
) -> None:
    """Compute a view anew from the log, beside the running one, and swap it in when it has caught up.

    The app does it: the one that runs, or else the next one that is run with this data directory. Nothing of the
    view is missing meanwhile, and whoever follows it is told to read it again when it is swapped.

    Example: headwater rebuild revenue

    Example: headwater rebuild revenue --from start
    """
    from headwater.store.facts import FactStore
    from headwater.store.generations import Generations

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
    if not _is_running(data):
        print(f"view {name} will be rebuilt when the app runs next; until it is swapped in, it is what it was")
        return
    _watch(generations, facts, generation)


def _check_name(name: str, known: list[str]) -> None:
    if name not in known:
        raise InvalidError(
            f"cannot rebuild {name!r}: there is no such view; there are: {', '.join(known) or 'none'}"
        )


def _restart(store: "ViewStore", data: Path, name: str, since: From) -> None:
    from headwater.spark.pipeline.new_checkpoint import restart_from_here, restart_from_start

    lock = FolderLock(data, "pipeline.lock", holder="pipeline")
    try:
        restart = restart_from_start if since is From.START else restart_from_here
        restart(store, data / "checkpoints", name)
    finally:
        lock.release()
    begins = "with the first record" if since is From.START else "with the records behind those it has read"
    print(f"{name} begins {begins} when the app runs next")


def _is_running(data: Path) -> bool:
    try:
        FolderLock(data, "pipeline.lock", holder="pipeline").release()
    except ConflictError:
        return True
    return False


def _watch(generations: "Generations", facts: "FactStore", generation: "Generation") -> None:
    """Tell how far the app has come with it, until it is done."""
    name, told = generation.query, 0.0
    print(f"rebuilding view {name}; Ctrl-C ends the watching, not the rebuild", flush=True)
    while generation in generations.rebuilds():
        time.sleep(WATCH_EVERY_S)
        latest = facts.latest(generation.name)
        behind = latest[0].body.get("behindRecords") if latest else None
        if behind is not None and time.monotonic() - told > TELL_EVERY_S:
            told = time.monotonic()
            print(f"  {behind:,} records behind", flush=True)
    if generations.current(name) != generation:
        notes = [fact.body["note"] for fact in facts.latest(name, limit=20) if fact.body.get("note")]
        raise HeadwaterError(f"view {name!r} was not rebuilt: {notes[-1] if notes else 'the rebuild was dropped'}")
    print(f"view {name} is rebuilt and swapped in")
