"""One partition of a share group: which records are available, acquired, or finished (KIP-932).

Every record in [start, end) has a state. Records before `start` are finished, records from `end` on were never
delivered. States are kept for ranges of offsets; the records themselves are not needed:

    AVAILABLE --acquire--> ACQUIRED --accept--> ACKNOWLEDGED
        ^                     | release, lock timed out, member gone
        +---------------------+-- delivery limit reached, or reject --> ARCHIVING --archive--> ARCHIVED

A range that is ARCHIVING waits until its dead letters are written (`take_given_up`, then `archive`). `start`
advances when the first records are finished. No clock and no I/O: the time is passed to every call. Not
thread-safe.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from operator import attrgetter


class RecordState(IntEnum):
    """The state of a record; the numbers are stored on disk."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class Ack(IntEnum):
    """A member's acknowledgement of a record, with Kafka's numbers; a gap is an offset without a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Reason(Enum):
    """Reasons to give up a record, with the texts that KIP-1191 defines for dead letters."""

    REJECTED = "Offset rejected by client."
    LIMIT = "Delivery count limit exceeded."


class ShareError(Enum):
    """Reasons to reject an acknowledgement."""

    INVALID_STATE = "invalid record state"
    INVALID_REQUEST = "invalid request"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """Lock duration, delivery limit, and the number of records in flight."""

    lock_s: float = 30.0
    deliveries_max: int = 5
    in_flight_max: int = 2000


@dataclass(frozen=True, slots=True)
class Span:
    """A range of offsets, both ends included, with the same state."""

    first: int
    last: int
    state: RecordState
    count: int = 0
    """Number of deliveries."""
    member: str = ""
    deadline: float = 0.0
    reason: Reason | None = None

    @property
    def records(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """Acknowledgements of a range of offsets; `kinds` has one for all of them, or one for each."""

    first: int
    last: int
    kinds: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Number of records in each state."""

    available: int
    acquired: int
    done: int


class SharePartition:
    """The states of one partition's records for one group, from `start` on."""

    def __init__(self, start: int, spans: Iterable[Span] = (), limits: ShareLimits | None = None) -> None:
        self.start = start
        self._spans: list[Span] = []
        self._given_up: list[Span] = []
        self._floor = 0
        """Offsets before it were deleted from the log; acknowledgements of them are ignored."""
        self._next_deadline = float("inf")
        for span in spans:
            if span.state is RecordState.AVAILABLE and limits is not None:
                span = _released(span, limits)  # its last delivery may have been running when the broker died
            self._spans.append(span)
            if span.state is RecordState.ARCHIVING:
                self._given_up.append(span)
        self._advance()

    @property
    def end(self) -> int:
        """The first offset that was never delivered."""
        return self._spans[-1].last + 1 if self._spans else self.start

    def spans(self) -> list[Span]:
        """Return the states to store on disk, where acquired records are available: a restart releases them."""
        kept = (
            replace(span, state=RecordState.AVAILABLE, member="", deadline=0.0)
            if span.state is RecordState.ACQUIRED
            else span
            for span in self._spans
        )
        merged: list[Span] = []
        for span in kept:
            _append(merged, span)
        return merged

    def counts(self) -> Counts:
        def sum_of(*states: RecordState) -> int:
            return sum(span.records for span in self._spans if span.state in states)

        return Counts(
            available=sum_of(RecordState.AVAILABLE),
            acquired=sum_of(RecordState.ACQUIRED),
            done=sum_of(RecordState.ACKNOWLEDGED, RecordState.ARCHIVED, RecordState.ARCHIVING),
        )

    # -- acquiring --------------------------------------------------------------------------------------------

    def next_offset(self, limits: ShareLimits) -> int | None:
        """Return the next offset to deliver; None while too many records are in flight."""
        for span in self._spans:
            if span.state is RecordState.AVAILABLE:
                return span.first
        return None if self.end - self.start >= limits.in_flight_max else self.end

    def acquire(
        self,
        member: str,
        batches: Sequence[tuple[int, int]],
        *,
        records_max: int,
        limits: ShareLimits,
        now: float,
        exact: bool = False,
    ) -> list[Span]:
        """Acquire the available records of batches, passed as their first and last offsets, for a member.

        Whole batches are acquired, so the last one may exceed `records_max`, unless `exact` is set.
        """
        deadline = now + limits.lock_s
        self._next_deadline = min(self._next_deadline, deadline)

        def acquire_span(span: Span) -> Span:
            return replace(
                span, state=RecordState.ACQUIRED, count=span.count + 1, member=member, deadline=deadline
            )

        acquired: list[Span] = []
        count = 0
        for first, last in batches:
            if count >= records_max:
                break
            left = records_max - count if exact else last - first + 1
            self._extend(first, last, limits, left if exact else None)
            for span in self._spans[slice(*_indexes(self._spans, first, last))]:
                if span.state is not RecordState.AVAILABLE or left <= 0:
                    continue
                low = max(span.first, first)
                high = min(span.last, last, low + left - 1)
                acquired += self._change(low, high, acquire_span)
                count += high - low + 1
                left -= high - low + 1
            if self.end <= last:
                break  # too many in flight: with a later batch, these offsets would look skipped by the log
        merged: list[Span] = []
        for span in acquired:
            _append(merged, span)
        return merged

    def _extend(self, first: int, last: int, limits: ShareLimits, records_max: int | None) -> None:
        """Add offsets that were never delivered, up to the limit of records in flight."""
        if first > self.end:
            # The log skipped these offsets: records removed by compaction, or transaction markers.
            _append(self._spans, Span(self.end, first - 1, RecordState.ARCHIVED))
            self._advance()
        low = max(first, self.end)
        high = min(last, self.start + limits.in_flight_max - 1)
        if records_max is not None:
            high = min(high, low + records_max - 1)
        if low <= high:
            _append(self._spans, Span(low, high, RecordState.AVAILABLE))

    def skip(self, first: int, last: int) -> None:
        """Archive offsets without readable records: transaction markers, records of aborted transactions."""
        if last >= self.end:
            _append(self._spans, Span(self.end, last, RecordState.ARCHIVED))
        self._change(
            first,
            last,
            lambda s: Span(s.first, s.last, RecordState.ARCHIVED) if s.state is RecordState.AVAILABLE else s,
        )
        self._advance()

    # -- releasing --------------------------------------------------------------------------------------------

    def acknowledge(
        self, member: str, acks: Sequence[Acknowledgement], limits: ShareLimits, now: float
    ) -> ShareError | None:
        """Apply a member's acknowledgements: all of them, or none and return the error."""
        for ack in acks:
            error = self._check(member, ack)
            if error is not None:
                return error
        for ack in acks:
            for first, last, kind in _runs(ack):
                if last >= self._floor:
                    self._settle(max(first, self._floor), last, Ack(kind), limits, now)
        self._advance()
        return None

    def _check(self, member: str, ack: Acknowledgement) -> ShareError | None:
        size = ack.last - ack.first + 1
        if size < 1 or len(ack.kinds) not in (1, size) or not set(ack.kinds) <= set(Ack):
            return ShareError.INVALID_REQUEST
        first = max(ack.first, self._floor)
        if first > ack.last:
            return None
        spans = self._spans[slice(*_indexes(self._spans, first, ack.last))]
        covered = bool(spans) and spans[0].first <= first and spans[-1].last >= ack.last
        acquired = all(span.state is RecordState.ACQUIRED and span.member == member for span in spans)
        return None if covered and acquired else ShareError.INVALID_STATE

    def _settle(self, first: int, last: int, kind: Ack, limits: ShareLimits, now: float) -> None:
        if kind is Ack.RELEASE:
            self._change(first, last, lambda span: _released(span, limits))
        elif kind is Ack.RENEW:
            self._change(first, last, lambda span: replace(span, deadline=now + limits.lock_s))
        elif kind is Ack.REJECT:
            self._change(first, last, lambda span: _given_up(span, Reason.REJECTED))
        else:
            state = RecordState.ACKNOWLEDGED if kind is Ack.ACCEPT else RecordState.ARCHIVED
            self._change(first, last, lambda span: Span(span.first, span.last, state))

    def release(self, member: str, limits: ShareLimits, *, is_clean: bool = False) -> bool:
        """Release all records of a member that is gone; return whether it had any.

        A clean shutdown does not count as a delivery of the records it leaves unacknowledged. A crash does: one of
        them may have caused it.
        """
        release_span = _undelivered if is_clean else _released
        return self._release(lambda span: span.member == member, limits, release_span)

    def expire(self, limits: ShareLimits, now: float) -> bool:
        """Release records whose lock has expired; return whether there were any."""
        if now < self._next_deadline:
            return False
        found = self._release(lambda span: span.deadline <= now, limits)
        self._next_deadline = min(
            (span.deadline for span in self._spans if span.state is RecordState.ACQUIRED), default=float("inf")
        )
        return found

    def _release(
        self,
        matches: Callable[[Span], bool],
        limits: ShareLimits,
        release_span: "Callable[[Span, ShareLimits], Span] | None" = None,
    ) -> bool:
        found = [span for span in self._spans if span.state is RecordState.ACQUIRED and matches(span)]
        for span in found:
            self._change(span.first, span.last, lambda part: (release_span or _released)(part, limits))
        self._advance()
        return bool(found)

    # -- dead letters -----------------------------------------------------------------------------------------

    def take_given_up(self) -> list[Span]:
        """Return the ranges that were given up since the last call; the caller must `archive` each."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def archive(self, given_up: Span) -> None:
        """Finish a range whose dead letters are written or not needed."""

        def archive_span(span: Span) -> Span:
            return (
                Span(span.first, span.last, RecordState.ARCHIVED) if span.state is RecordState.ARCHIVING else span
            )

        self._change(given_up.first, given_up.last, archive_span)
        self._advance()

    # -- moving the start -------------------------------------------------------------------------------------

    def forget_before(self, offset: int) -> bool:
        """Discard the states of records that were deleted from the log; return whether there were any."""
        if offset <= self.start:
            return False
        self._spans = [replace(span, first=max(span.first, offset)) for span in self._spans if span.last >= offset]
        self._given_up = [
            replace(span, first=max(span.first, offset)) for span in self._given_up if span.last >= offset
        ]
        self.start = self._floor = offset
        self._advance()
        return True

    # -- inside -----------------------------------------------------------------------------------------------

    def _change(self, first: int, last: int, change: Callable[[Span], Span]) -> list[Span]:
        """Change every offset of a range, splitting the spans at its ends; return the changed spans."""
        low, high = _indexes(self._spans, first, last)
        before: list[Span] = []
        changed: list[Span] = []
        after: list[Span] = []
        for span in self._spans[low:high]:
            if span.first < first:
                before.append(replace(span, last=first - 1))
            inner = change(replace(span, first=max(span.first, first), last=min(span.last, last)))
            if inner.state is RecordState.ARCHIVING:
                self._given_up.append(inner)
            changed.append(inner)
            if span.last > last:
                after.append(replace(span, first=last + 1))
        # With both neighbours, so that adjacent ranges that have become equal are merged.
        left, right = self._spans[max(low - 1, 0) : low], self._spans[high : high + 1]
        merged: list[Span] = []
        for span in (*left, *before, *changed, *after, *right):
            _append(merged, span)
        self._spans[low - len(left) : high + len(right)] = merged
        return changed

    def _advance(self) -> None:
        """Move `start` past finished records and discard their spans."""
        finished = 0
        for span in self._spans:
            if span.state not in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED):
                break
            self.start = span.last + 1
            finished += 1
        del self._spans[:finished]


def trimmed(start: int, spans: Iterable[Span], end: int) -> tuple[int, list[Span]]:
    """Return a partition's start and spans cut to the end of the log.

    Without fsync, a power failure can remove records. Their offsets are then used for new records.
    """
    kept = [replace(span, last=min(span.last, end - 1)) for span in spans if span.first < end]
    return min(start, end), kept


def _released(span: Span, limits: ShareLimits) -> Span:
    if span.count >= limits.deliveries_max:
        return _given_up(span, Reason.LIMIT)
    return Span(span.first, span.last, RecordState.AVAILABLE, span.count)


def _undelivered(span: Span, limits: ShareLimits) -> Span:
    return Span(span.first, span.last, RecordState.AVAILABLE, max(span.count - 1, 0))


def _given_up(span: Span, reason: Reason) -> Span:
    return Span(span.first, span.last, RecordState.ARCHIVING, span.count, reason=reason)


def _append(spans: list[Span], span: Span) -> None:
    """Append a span; merge it with the last one if they are adjacent and equal."""
    if spans:
        last = spans[-1]
        is_equal = last == replace(span, first=last.first, last=last.last)
        # Dead letters are written range by range, so a range that is ARCHIVING must keep its ends.
        if is_equal and last.last + 1 == span.first and span.state is not RecordState.ARCHIVING:
            spans[-1] = replace(last, last=span.last)
            return
    spans.append(span)


def _runs(ack: Acknowledgement) -> Iterable[tuple[int, int, int]]:
    """Yield ranges with the same acknowledgement: first and last offset, and kind."""
    if len(ack.kinds) == 1:
        yield ack.first, ack.last, ack.kinds[0]
        return
    first = ack.first
    for n, kind in enumerate(ack.kinds):
        if n + 1 == len(ack.kinds) or ack.kinds[n + 1] != kind:
            yield first, ack.first + n, kind
            first = ack.first + n + 1


def _indexes(spans: list[Span], first: int, last: int) -> tuple[int, int]:
    """Return the start and end index of the spans that have offsets in a range."""
    low = max(bisect_right(spans, first, key=attrgetter("first")) - 1, 0)
    if low < len(spans) and spans[low].last < first:
        low += 1
    return low, bisect_right(spans, last, key=attrgetter("first"))
