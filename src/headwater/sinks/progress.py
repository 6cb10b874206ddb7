"""How far a query has come at a place, and what that says of the next batch. Pure: each sink keeps it its way."""

from dataclasses import dataclass
from enum import Enum, auto

from headwater.errors import ConflictError
from headwater.sink import Batch, Stream

RUNS_KEPT = 1000
"""A run is a checkpoint that somebody threw away; nobody does that so often."""


class BatchAction(Enum):
    """What to do with a batch."""

    SKIP = auto()
    """It is there already."""
    ADD = auto()
    """It goes to what is there."""
    START_AFRESH = auto()
    """It goes in the place of what is there, which an earlier run wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkProgress:
    """The last batch that is there, of which run, and the runs before it."""

    run: str
    number: int
    past: tuple[str, ...] = ()

    def after(self, batch: Batch) -> "SinkProgress":
        """The progress when the batch is there too."""
        if batch.run == self.run:
            return SinkProgress(run=self.run, number=batch.number, past=self.past)
        return SinkProgress(run=batch.run, number=batch.number, past=(*self.past, self.run)[-RUNS_KEPT:])


def judge(progress: SinkProgress | None, batch: Batch, stream: Stream, place: str) -> BatchAction:
    """Decide what to do with a batch; ConflictError if its run was replaced by another one."""
    if progress is None:
        return BatchAction.ADD
    if batch.run == progress.run:
        return BatchAction.SKIP if batch.number <= progress.number else BatchAction.ADD
    if batch.run in progress.past:
        raise ConflictError(
            f"cannot write batch {batch.number} of {stream.query!r} to {place}: its checkpoint (run {batch.run}) "
            f"was replaced there by another (run {progress.run}), whose rows it would mix with",
            hint="start with the newer checkpoint, or with none, which writes everything anew",
        )
    if stream.continues == progress.run:
        return BatchAction.ADD
    return BatchAction.START_AFRESH


def advance(progress: SinkProgress | None, batch: Batch) -> SinkProgress:
    """The progress to keep with the batch."""
    return SinkProgress(run=batch.run, number=batch.number) if progress is None else progress.after(batch)


def fenced(stream: Stream, place: str) -> ConflictError:
    """For a writer that finds that it is no longer the one."""
    return ConflictError(
        f"cannot write {stream.query!r} to {place}: another pipeline of this name was started since and has it",
        hint="let only one of them run; two that should both write need different names",
    )
