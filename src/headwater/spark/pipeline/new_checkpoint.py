"""Start a stopped query with a new checkpoint: from the first record, or from the offsets of the old one."""

import shutil
from pathlib import Path

from headwater.errors import ConflictError
from headwater.spark.source.checkpoint import begun_batch, end_offsets, last_done, run_of
from headwater.spark.source.offsets import to_json
from headwater.store.pipelines.generations import Generations
from headwater.store.views import ViewStore


def restart_from_start(store: ViewStore, checkpoints: Path, query: str) -> None:
    """Delete a query's rows and its checkpoint."""
    generations = Generations(store)
    before = generations.current(query)
    generations.restart(query)
    shutil.rmtree(checkpoints / before.name, ignore_errors=True)


def restart_from_here(store: ViewStore, checkpoints: Path, query: str) -> None:
    """Keep a query's rows, and continue after the records that they include, with empty state."""
    generations = Generations(store)
    before = generations.current(query)
    folder = checkpoints / before.name
    run, done = run_of(folder), last_done(folder)
    if run is None:
        return  # It has never run, so there is nothing to continue from.
    begun = begun_batch(folder)
    if begun is not None:
        progress = store.progress(query)
        if query not in {view.name for view in store.views()}:
            raise ConflictError(
                f"cannot restart {query!r} from here: batch {begun.number} was begun, and only its sink knows "
                "whether it was written",
                hint="run the unchanged app once more (`headwater run APP.py --once`), which finishes the batch",
            )
        # The store knows whether the batch was committed; the checkpoint does not.
        if progress is not None and progress.run == run and progress.batch >= begun.number:
            done = begun.number
    starting = to_json(end_offsets(folder, done))
    generations.restart(query, continues=run, starting=starting)
    shutil.rmtree(folder, ignore_errors=True)
