"""One partition as a share group sees it: which records are waiting, which are out, which are done (KIP-932).

Every record from `start` up to before `end` has a state; what lies before is done, what lies behind has never
been given out. States are kept for ranges of offsets, so records are never looked at:

    AVAILABLE --acquire--> ACQUIRED --accept--> ACKNOWLEDGED
        ^                     | release, lock timed out, member gone
        +---------------------+-- for the last allowed time, or reject --> ARCHIVING --bury--> ARCHIVED

A range that is ARCHIVING waits for its dead letter to be written (`take_letters`, then `bury`). `start` moves up
as the first records are done. No clock and no IO here: every call is given the time. Not thread-safe.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from operator import attrgetter


class RecordState(IntEnum):
    """What has become of a record; the numbers are kept on disk."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class Ack(IntEnum):
    """What a member says of a record, with Kafka's numbers; a gap is an offset that has no record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Reason(Enum):
    """Why a record is given up, in the words that KIP-1191 puts into the dead letter."""

    REJECTED = "Offset rejected by client."
    LIMIT = "Delivery count limit exceeded."


class ShareError(Enum):
    """Why an acknowledgement is refused."""

    INVALID_STATE = "invalid record state"
    INVALID_REQUEST = "invalid request"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """How long records are lent out, how often, and how many at a time."""

    lock_s: float = 30.0
    deliveries_max: int = 5
    in_flight_max: int = 2000


@dataclass(frozen=True, slots=True)
class Span:
    """A range of offsets, both ends included, that share one fate."""

    first: int
    last: int
    state: RecordState
    count: int = 0
    """How often they have been given out."""
    member: str = ""
    deadline: float = 0.0
    reason: Reason | None = None

    @property
    def records(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """One answer for all offsets of a range, or one for each."""

    first: int
    last: int
    kinds: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many records are in each state."""

    available: int
    acquired: int
    done: int


class SharePartition:
    """The states of one partition's records for one group, from `start` on."""

    def __init__(self, start: int, spans: Iterable[Span] = (), limits: ShareLimits | None = None) -> None:
        self.start = start
        self._spans: list[Span] = []
        self._letters: list[Span] = []
        self._floor = 0
        """Offsets before it are gone from the log; what is said of them is of no interest."""
        self._soonest = float("inf")
        for span in spans:
            if span.state is RecordState.AVAILABLE and limits is not None:
                span = _given_back(span, limits)  # it may have been out for the last time when the broker died
            self._spans.append(span)
            if span.state is RecordState.ARCHIVING:
                self._letters.append(span)
        self._advance()

    @property
    def end(self) -> int:
        """The first offset that was never given out."""
        return self._spans[-1].last + 1 if self._spans else self.start

    def spans(self) -> list[Span]:
        """What is to be kept on disk: after a restart, nothing is lent out."""
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

    # -- giving out -------------------------------------------------------------------------------------------

    def next_offset(self, limits: ShareLimits) -> int | None:
        """Where the next record to give out is; None while too many are out."""
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
        """Lend to a member what is available in the batches (first and last offset of each).

        Whole batches are given out, so `records_max` may be passed by the last of them, unless it is `exact`.
        """
        deadline = now + limits.lock_s
        self._soonest = min(self._soonest, deadline)

        def lent(span: Span) -> Span:
            return replace(
                span, state=RecordState.ACQUIRED, count=span.count + 1, member=member, deadline=deadline
            )

        taken: list[Span] = []
        count = 0
        for first, last in batches:
            if count >= records_max:
                break
            room = records_max - count if exact else last - first + 1
            self._extend(first, last, limits, room if exact else None)
            for span in self._spans[slice(*_places(self._spans, first, last))]:
                if span.state is not RecordState.AVAILABLE or room <= 0:
                    continue
                low = max(span.first, first)
                high = min(span.last, last, low + room - 1)
                taken += self._change(low, high, lent)
                count += high - low + 1
                room -= high - low + 1
            if self.end <= last:
                break  # too many are out: what is behind must not look as if the log had skipped this
        merged: list[Span] = []
        for span in taken:
            _append(merged, span)
        return merged

    def _extend(self, first: int, last: int, limits: ShareLimits, room: int | None) -> None:
        """Take offsets in that were never given out, as many as may be out at a time."""
        if first > self.end:
            # Offsets that the log has skipped: compacted away, or the broker's own markers.
            _append(self._spans, Span(self.end, first - 1, RecordState.ARCHIVED))
            self._advance()
        low = max(first, self.end)
        high = min(last, self.start + limits.in_flight_max - 1)
        if room is not None:
            high = min(high, low + room - 1)
        if low <= high:
            _append(self._spans, Span(low, high, RecordState.AVAILABLE))

    def skip(self, first: int, last: int) -> None:
        """None of these offsets is for anybody: markers of the broker, records of an aborted transaction."""
        if last >= self.end:
            _append(self._spans, Span(self.end, last, RecordState.ARCHIVED))
        self._change(
            first,
            last,
            lambda s: Span(s.first, s.last, RecordState.ARCHIVED) if s.state is RecordState.AVAILABLE else s,
        )
        self._advance()

    # -- taking back ------------------------------------------------------------------------------------------

    def acknowledge(
        self, member: str, acks: Sequence[Acknowledgement], limits: ShareLimits, now: float
    ) -> ShareError | None:
        """Note what a member says of its records; all of it or, with an error, none."""
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
        spans = self._spans[slice(*_places(self._spans, first, ack.last))]
        covered = bool(spans) and spans[0].first <= first and spans[-1].last >= ack.last
        mine = all(span.state is RecordState.ACQUIRED and span.member == member for span in spans)
        return None if covered and mine else ShareError.INVALID_STATE

    def _settle(self, first: int, last: int, kind: Ack, limits: ShareLimits, now: float) -> None:
        if kind is Ack.RELEASE:
            self._change(first, last, lambda span: _given_back(span, limits))
        elif kind is Ack.RENEW:
            self._change(first, last, lambda span: replace(span, deadline=now + limits.lock_s))
        elif kind is Ack.REJECT:
            self._change(first, last, lambda span: _given_up(span, Reason.REJECTED))
        else:
            state = RecordState.ACKNOWLEDGED if kind is Ack.ACCEPT else RecordState.ARCHIVED
            self._change(first, last, lambda span: Span(span.first, span.last, state))

    def release(self, member: str, limits: ShareLimits, *, politely: bool = False) -> bool:
        """Take back what a member has, because it is gone; whether it had anything.

        One that ends politely has looked at what it did not acknowledge no more than at what it was never given,
        so for those the delivery does not count. One that died may have died of them.
        """
        give_back = _not_delivered if politely else _given_back
        return self._take_back(lambda span: span.member == member, limits, give_back)

    def expire(self, limits: ShareLimits, now: float) -> bool:
        """Take back what was lent out for too long; whether there was anything."""
        if now < self._soonest:
            return False
        found = self._take_back(lambda span: span.deadline <= now, limits)
        self._soonest = min(
            (span.deadline for span in self._spans if span.state is RecordState.ACQUIRED), default=float("inf")
        )
        return found

    def _take_back(
        self,
        matches: Callable[[Span], bool],
        limits: ShareLimits,
        give_back: "Callable[[Span, ShareLimits], Span] | None" = None,
    ) -> bool:
        found = [span for span in self._spans if span.state is RecordState.ACQUIRED and matches(span)]
        for span in found:
            self._change(span.first, span.last, lambda part: (give_back or _given_back)(part, limits))
        self._advance()
        return bool(found)

    # -- dead letters -----------------------------------------------------------------------------------------

    def take_letters(self) -> list[Span]:
        """Ranges that were given up since the last call; each must be buried."""
        letters, self._letters = self._letters, []
        return letters

    def bury(self, letter: Span) -> None:
        """The dead letters of a range are written, or nobody wants them: it is done."""

        def buried(span: Span) -> Span:
            return (
                Span(span.first, span.last, RecordState.ARCHIVED) if span.state is RecordState.ARCHIVING else span
            )

        self._change(letter.first, letter.last, buried)
        self._advance()

    # -- moving the start -------------------------------------------------------------------------------------

    def forget_before(self, offset: int) -> bool:
        """Records before the offset are gone from the log; whether that changes anything."""
        if offset <= self.start:
            return False
        self._spans = [replace(span, first=max(span.first, offset)) for span in self._spans if span.last >= offset]
        self._letters = [
            replace(span, first=max(span.first, offset)) for span in self._letters if span.last >= offset
        ]
        self.start = self._floor = offset
        self._advance()
        return True

    # -- inside -----------------------------------------------------------------------------------------------

    def _change(self, first: int, last: int, change: Callable[[Span], Span]) -> list[Span]:
        """Change every offset of a range, cutting the spans at its ends; return the spans it has become."""
        low, high = _places(self._spans, first, last)
        before: list[Span] = []
        changed: list[Span] = []
        after: list[Span] = []
        for span in self._spans[low:high]:
            if span.first < first:
                before.append(replace(span, last=first - 1))
            inner = change(replace(span, first=max(span.first, first), last=min(span.last, last)))
            if inner.state is RecordState.ARCHIVING:
                self._letters.append(inner)
            changed.append(inner)
            if span.last > last:
                after.append(replace(span, first=last + 1))
        # The neighbours too, so that ranges which have become alike are one again.
        left, right = self._spans[max(low - 1, 0) : low], self._spans[high : high + 1]
        merged: list[Span] = []
        for span in (*left, *before, *changed, *after, *right):
            _append(merged, span)
        self._spans[low - len(left) : high + len(right)] = merged
        return changed

    def _advance(self) -> None:
        """Let go of the first records that are done."""
        done = 0
        for span in self._spans:
            if span.state not in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED):
                break
            self.start = span.last + 1
            done += 1
        del self._spans[:done]


def trimmed(start: int, spans: Iterable[Span], end: int) -> tuple[int, list[Span]]:
    """What is left of a partition's state when the log ends earlier than it did.

    Without fsync a power failure takes records away; their offsets are given to other records, which are new.
    """
    kept = [replace(span, last=min(span.last, end - 1)) for span in spans if span.first < end]
    return min(start, end), kept


def _given_back(span: Span, limits: ShareLimits) -> Span:
    if span.count >= limits.deliveries_max:
        return _given_up(span, Reason.LIMIT)
    return Span(span.first, span.last, RecordState.AVAILABLE, span.count)


def _not_delivered(span: Span, limits: ShareLimits) -> Span:
    return Span(span.first, span.last, RecordState.AVAILABLE, max(span.count - 1, 0))


def _given_up(span: Span, reason: Reason) -> Span:
    return Span(span.first, span.last, RecordState.ARCHIVING, span.count, reason=reason)


def _append(spans: list[Span], span: Span) -> None:
    """Add a span behind the others, as one with the last where they are alike."""
    if spans:
        last = spans[-1]
        alike = last == replace(span, first=last.first, last=last.last)
        # Letters are written one range at a time and must keep their ends.
        if alike and last.last + 1 == span.first and span.state is not RecordState.ARCHIVING:
            spans[-1] = replace(last, last=span.last)
            return
    spans.append(span)


def _runs(ack: Acknowledgement) -> Iterable[tuple[int, int, int]]:
    """Ranges of the same answer."""
    if len(ack.kinds) == 1:
        yield ack.first, ack.last, ack.kinds[0]
        return
    first = ack.first
    for n, kind in enumerate(ack.kinds):
        if n + 1 == len(ack.kinds) or ack.kinds[n + 1] != kind:
            yield first, ack.first + n, kind
            first = ack.first + n + 1


def _places(spans: list[Span], first: int, last: int) -> tuple[int, int]:
    """From where to where in the list the spans are that have offsets between these two."""
    low = max(bisect_right(spans, first, key=attrgetter("first")) - 1, 0)
    if low < len(spans) and spans[low].last < first:
        low += 1
    return low, bisect_right(spans, last, key=attrgetter("first"))
