"""The contract of sources: how changes from outside the app enter the log. The counterpart of `headwater.sink`.

A source is a plain value that a user declares. Opening it at a position returns a reader:

    reader = source.open(at)                    # at: the position in the log, None if it has none
    batch = reader.read(timeout_s=1.0)          # None: no change within a second
    ...                                         # commit batch.records and batch.position to the log, atomically
    reader.acknowledge(batch.position)          # after the log is durable
    reader.close()

**Exactly once.** The position is committed to the log in the same log transaction as the records that it covers.
So the log alone knows how far the source was read: a restart reads the position from the log, never from the
source, and opens the source there. The reader then returns every transaction after the position, once and in
order.

**Transactions.** Records of one transaction of the source become visible in the log together. A large transaction
may arrive in several batches; they are committed in one log transaction, which ends with the batch for which
`ends_transaction` is true. A restart resumes after the last whole transaction.

**Acknowledgement.** A source may discard its history up to an acknowledged position: PostgreSQL then frees the
write-ahead log of the slot. So `acknowledge` is called only after the records are durable in the log. A crash
between the commit and the acknowledgement does no harm, because the position in the log decides.

**No silent loss.** A reader that cannot return every transaction after the position raises `LostPositionError`
from `open` or `read`. It never continues with a later position and never starts over by itself. Typical causes:
the source has discarded its history, was recreated or restored from a backup, or ends before the position.

**One reader.** Two readers of one source can be alive at the same time. The log decides between them: the later
one takes over the transactional id, and commits of the earlier one fail.

**Errors.** As for sinks: the capture retries an `UnavailableError` until it succeeds, and every other error ends
it with its message.
"""

import json
from dataclasses import dataclass, field
from typing import Protocol

from headwater.errors import ConflictError
from headwater.record import Record


class LostPositionError(ConflictError):
    """The source cannot continue after a position without skipping changes; the hint names the ways out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A point in the history of a source, after a whole transaction. Opaque to everything but the source.

    incarnation  identifies the history; positions in different histories cannot be compared. For PostgreSQL it
                 names the database system and the creation of the replication slot.
    order        grows with the history and is compared as a tuple; for PostgreSQL, the commit LSN
    state        anything else that the source needs to resume, such as the finished key ranges of a snapshot; not
                 part of comparisons
    """

    incarnation: str
    order: tuple[int, ...]
    state: str = field(default="", compare=False)

    def is_after(self, other: "Position") -> bool:
        """Return whether this position is later; raises LostPositionError if the histories differ.

        >>> Position(incarnation="a", order=(7, 1)).is_after(Position(incarnation="a", order=(7, 0)))
        True
        """
        if self.incarnation != other.incarnation:
            raise LostPositionError(
                f"cannot compare positions: one is in history {self.incarnation!r} of the source, the other in "
                f"{other.incarnation!r}",
                hint="the source was recreated: capture it again from a new snapshot",
            )
        return self.order > other.order

    def encode(self) -> bytes:
        """Encode the position for the log.

        >>> Position(incarnation="a", order=(7, 1)).encode()
        b'{"incarnation": "a", "order": [7, 1], "state": ""}'
        """
        return json.dumps({"incarnation": self.incarnation, "order": self.order, "state": self.state}).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Position":
        """Decode a position from the log."""
        fields = json.loads(data)
        return cls(incarnation=fields["incarnation"], order=tuple(fields["order"]), state=fields["state"])


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A record and its topic. Records with the same key go to the same partition, in the order of the source."""

    topic: str
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBatch:
    """Records of one transaction, and the position after them.

    `records` may be empty: the source has advanced without changes for this reader, and acknowledging the position
    lets it discard history. `ends_transaction` is false if more batches of the same transaction follow; only the
    position of the last one can be opened.
    """

    records: tuple[SourceRecord, ...]
    position: Position
    ends_transaction: bool = True


class Reader(Protocol):
    """An open source, used by one thread."""

    @property
    def is_finished(self) -> bool:
        """True after a bounded source, such as a file, has returned its last batch; else false."""

    def read(self, *, timeout_s: float) -> SourceBatch | None:
        """Return the next batch; None if there is none within `timeout_s`.

        Positions of consecutive batches never decrease. Raises LostPositionError if the next change is lost.
        """

    def acknowledge(self, position: Position) -> None:
        """Allow the source to discard its history up to a position, which the log has made durable."""

    def close(self) -> None:
        """Release connections. The source keeps its history after the last acknowledged position."""


class Source(Protocol):
    """The origin of changes, as a user declares it: a plain value that opens nothing by itself."""

    @property
    def name(self) -> str:
        """The identity of the source in the log: it names the position and the transactional id."""

    def open(self, at: Position | None) -> Reader:
        """Check the source and continue after a position; None starts at the beginning, with a snapshot if needed.

        Raises LostPositionError if the source no longer has every change after the position, InvalidError if its
        settings are wrong, and UnavailableError if it cannot be reached.
        """
