"""The progress of a query at a destination, and the step it implies for a batch. Pure: sinks do the storing."""

from dataclasses import dataclass

from headwater.errors import ConflictError
from headwater.sink import Batch, Stream

RUNS_KEPT = 1000
"""Number of replaced runs to remember; a run is replaced only when its checkpoint is deleted, which is rare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkProgress:
    """The last batch that was written, its run, and the runs that were replaced before."""

    run: str
    number: int
    past: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStep:
    """The work that a batch requires.

    `replaces` is true for the first batch of a new run: the rows of the earlier run are deleted in the same atomic
    step. `progress` is stored together with the rows.
    """

    replaces: bool
    progress: SinkProgress


def next_step(progress: SinkProgress | None, batch: Batch, stream: Stream, destination: str) -> BatchStep | None:
    """Return how to write a batch; None if the batch is already written.

    Raises ConflictError if the batch's run was replaced by another one.
    """
    if progress is None:
        return BatchStep(replaces=False, progress=SinkProgress(run=batch.run, number=batch.number))
    if batch.run == progress.run:
        if batch.number <= progress.number:
            return None
        after = SinkProgress(run=batch.run, number=batch.number, past=progress.past)
        return BatchStep(replaces=False, progress=after)
    if batch.run in progress.past:
        raise ConflictError(
            f"cannot write batch {batch.number} of {stream.query!r} to {destination}: its checkpoint (run "
            f"{batch.run}) was replaced by a newer one (run {progress.run}), and their rows must not be mixed",
            hint="start with the newer checkpoint, or without one to write all rows again",
        )
    past = (*progress.past, progress.run)[-RUNS_KEPT:]
    after = SinkProgress(run=batch.run, number=batch.number, past=past)
    return BatchStep(replaces=stream.continues != progress.run, progress=after)


def fenced(stream: Stream, destination: str) -> ConflictError:
    """Return the error of a writer that finds that a later one has opened the destination."""
    return ConflictError(
        f"cannot write {stream.query!r} to {destination}: another pipeline of the same name has opened it since",
        hint="run only one of them; give the pipelines different names if both should write",
    )
