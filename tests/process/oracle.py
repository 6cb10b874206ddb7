"""A simple, slow implementation of windowed computations, with which the kernel is compared.

Windows and events are in dictionaries, one by one. It shares only the values that describe a computation with the
kernel.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from headwater.process.aggregates import aggregates as a
from headwater.process.durations import micros
from headwater.process.windows import triggers as t
from headwater.process.windows import windows as w
from headwater.process.windows.windowing import Mode, Stamp, Windowing
from tests.process.relations import frozen


class Trigger:
    """The trigger of one window."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self.late_stage = False
        self.count = 0
        self.deadline: int | None = None
        self.turn = 0
        match spec:
            case t.AfterWatermark(early, late):
                self.early = Trigger(t.Repeatedly(early)) if early else None
                self.late = Trigger(t.Repeatedly(late)) if late else None
                self.parts = [p for p in (self.early, self.late) if p]
            case t.Repeatedly(inner):
                self.parts = [Trigger(inner)]
            case t.OrFinally(inner, until):
                self.parts = [Trigger(inner), Trigger(until)]
            case t.AfterAny(several) | t.AfterAll(several) | t.AfterEach(several):
                self.parts = [Trigger(s) for s in several]
            case _:
                self.parts = []

    def element(self, now: int) -> None:
        match self.spec:
            case t.AfterWatermark():
                active = self.late if self.late_stage else self.early
                if active:
                    active.element(now)
            case t.AfterCount() | t.EveryBatch() | t.PerRecord():
                self.count += 1
            case t.AfterProcessingTime(delay, aligned):
                if self.deadline is None:
                    self.deadline = now + (micros(delay) if delay else 0)
                    while aligned and self.deadline % micros(aligned):
                        self.deadline += 1
            case t.AfterEach():
                if self.turn < len(self.parts):
                    self.parts[self.turn].element(now)
            case _:
                for part in self.parts:
                    part.element(now)

    def should_fire(self, watermark: int, now: int, end: int) -> str | None:
        """Return the name of the trigger that should fire, if any."""
        match self.spec:
            case t.Default():
                return "Default" if watermark >= end else None
            case t.AfterWatermark():
                if self.late_stage:
                    return self.late.should_fire(watermark, now, end) if self.late else None
                if watermark >= end:
                    return "AfterWatermark"
                return self.early.should_fire(watermark, now, end) if self.early else None
            case t.AfterCount(n):
                return self.spec.label if self.count >= n else None
            case t.EveryBatch() | t.PerRecord():
                return self.spec.label if self.count >= 1 else None
            case t.AfterProcessingTime():
                return self.spec.label if self.deadline is not None and self.deadline <= now else None
            case t.Repeatedly():
                return self.parts[0].should_fire(watermark, now, end)
            case t.AfterEach():
                return (
                    self.parts[self.turn].should_fire(watermark, now, end) if self.turn < len(self.parts) else None
                )
            case t.AfterAll():
                names = [p.should_fire(watermark, now, end) for p in self.parts]
                return names[-1] if all(names) else None
            case _:
                return next((x for x in (p.should_fire(watermark, now, end) for p in self.parts) if x), None)

    def fire(self, watermark: int, now: int, end: int) -> bool:
        """Fire, and return True if the trigger is finished."""
        match self.spec:
            case t.Default():
                return False
            case t.AfterWatermark():
                if self.late_stage:
                    self.late.fire(watermark, now, end)
                    return False
                if watermark >= end:
                    self.late_stage = self.late is not None
                    return self.late is None
                self.early.fire(watermark, now, end)
                return False
            case t.EveryBatch() | t.PerRecord():
                self.count = 0
                return False
            case t.Repeatedly():
                if self.parts[0].fire(watermark, now, end):
                    self.parts[0].reset()
                return False
            case t.AfterEach():
                if self.parts[self.turn].fire(watermark, now, end):
                    self.turn += 1
                return self.turn == len(self.parts)
            case t.AfterAny() | t.AfterAll() | t.OrFinally():
                finished = [p.fire(watermark, now, end) for p in self.parts if p.should_fire(watermark, now, end)]
                return all(finished) if isinstance(self.spec, t.AfterAll) else any(finished)
            case _:
                return True

    def reset(self) -> None:
        self.late_stage, self.count, self.deadline, self.turn = False, 0, None, 0
        for part in self.parts:
            part.reset()

    def absorb(self, other: "Trigger") -> None:
        self.late_stage |= other.late_stage
        self.count += other.count
        self.turn = max(self.turn, other.turn)
        deadlines = [d for d in (self.deadline, other.deadline) if d is not None]
        self.deadline = min(deadlines, default=None)
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.absorb(theirs)

    def rewind(self, watermark: int, end: int) -> None:
        self.late_stage &= watermark >= end
        for part in self.parts:
            part.rewind(watermark, end)


@dataclass
class Window:
    """An open window of one key."""

    trigger: Trigger
    elements: list[tuple[int, dict[str, Any], int]] = field(default_factory=list)
    pending: int = 0
    panes: int = 0
    nonspeculative: int = 0
    hold: int | None = None
    finished: bool = False
    timer_done: bool = False
    wake: int | None = None
    emitted: list[tuple[Any, ...]] = field(default_factory=list)


def finishes(spec: Any) -> int:
    """Return when a trigger may finish: 0 never, 1 at the window's end, 2 at any time."""
    match spec:
        case t.AfterWatermark(_, late):
            return 1 if late is None else 0
        case t.AfterCount() | t.AfterProcessingTime():
            return 2
        case t.OrFinally(one, two):
            return max(finishes(one), finishes(two))
        case t.AfterAny(several):
            return max(map(finishes, several))
        case t.AfterAll(several) | t.AfterEach(several):
            return min(map(finishes, several))
    return 0


def has_on_time(spec: Any) -> bool:
    match spec:
        case t.Default() | t.AfterWatermark():
            return True
        case t.Repeatedly(inner):
            return has_on_time(inner)
        case t.OrFinally(one, two):
            return has_on_time(one) or has_on_time(two)
        case t.AfterAny(several) | t.AfterAll(several) | t.AfterEach(several):
            return any(map(has_on_time, several))
    return False


class Oracle:
    """A windowed computation."""

    def __init__(self, windowing: Windowing, changes: bool) -> None:
        self.spec = windowing
        self.changes = changes
        self.windows: dict[tuple[Any, int, int], Window] = {}
        self.seen: dict[Any, list[tuple[int, dict[str, Any], int]]] = {}
        self.output: list[tuple[Any, ...]] = []
        self.late: list[tuple[Any, ...]] = []
        self.closed: dict[tuple[Any, int, int], int] = {}

    def step(self, rows: list[dict[str, Any]], watermark: int, now: int) -> None:
        if self.spec.where.by is w.Time.PROCESSING:
            watermark = now
            rows = [{**row, "event_time": now, "true_time": row["event_time"]} for row in rows]
        if self.spec.when.sees_each_record:
            keys = {row["key"] for row in rows}
            bundles = [[row for row in rows if row["key"] == key] for key in keys]
            for number in range(max(map(len, bundles), default=0)):
                self.bundle([b[number] for b in bundles if number < len(b)], watermark, now)
        else:
            self.bundle(rows, watermark, now)
        self.due(watermark, now)

    def bundle(self, rows: list[dict[str, Any]], watermark: int, now: int) -> None:
        touched = []
        lateness = self.spec.lateness_micros
        for key in dict.fromkeys(row["key"] for row in rows):
            mine = [(row["event_time"], row, row.get("_change", 1)) for row in rows if row["key"] == key]
            for (start, end), (elements, own, old) in self.place(key, mine, watermark).items():
                if end + lateness <= watermark:
                    self.reject(key, start, end, own, "expired", old, watermark)
                elif (
                    old
                    and all(o.finished for o in old.values())
                    and (finishes(self.spec.when) == 2 or watermark >= end)
                ):
                    self.reject(key, start, end, own, "closed", old, watermark)
                else:
                    touched.append(self.add(key, start, end, elements, old, watermark, now))
        for key, start, end in touched:
            window = self.windows[key, start, end]
            name = window.trigger.should_fire(watermark, now, end)
            if name:
                finished = window.trigger.fire(watermark, now, end)
                self.emit((key, start, end), name, finished, False, watermark)
            window.timer_done |= watermark >= end
            window.wake = next_deadline(window.trigger, watermark, end, now)

    def place(self, key: Any, mine: list[Any], watermark: int) -> dict[tuple[int, int], Any]:
        """Return for each window the elements to add, those that arrived in this step, and its previous parts."""
        known = {(s, e): window for (k, s, e), window in self.windows.items() if k == key}
        if isinstance(self.spec.where, w.Session):
            return self.sessions(self.spec.where, mine, known)
        if isinstance(self.spec.where, w.Sliding):
            return self.slide(self.spec.where, key, mine, known, watermark)
        found: dict[tuple[int, int], Any] = {}
        for element in mine:
            for span in self.fixed(element[0]):
                found.setdefault(span, ([], [], {span: known[span]} if span in known else {}))[0].append(element)
        return {span: (elements, elements, old) for span, (elements, _, old) in found.items()}

    def sessions(self, where: w.Session, mine: list[Any], known: Any) -> dict[tuple[int, int], Any]:
        found: dict[tuple[int, int], Any] = {}
        spans = [(at, at + micros(where.gap), (at, row, change)) for at, row, change in mine]
        spans += [(s, e, window) for (s, e), window in known.items()]
        groups: list[list[Any]] = []
        for span in sorted(spans, key=lambda s: s[0]):
            if groups and span[0] < max(s[1] for s in groups[-1]):
                groups[-1].append(span)
            else:
                groups.append([span])
        for group in groups:
            own = [x for _, _, x in group if not isinstance(x, Window)]
            old = {(s, e): x for s, e, x in group if isinstance(x, Window)}
            if own:
                own = [x for x in mine if x in own]
                found[min(s[0] for s in group), max(s[1] for s in group)] = (own, own, old)
        return found

    def slide(self, where: w.Sliding, key: Any, mine: list[Any], known: Any, watermark: int) -> Any:
        found: dict[tuple[int, int], Any] = {}
        size = micros(where.duration)
        seen = self.seen.setdefault(key, [])
        seen += mine
        for at, _, _ in mine:
            span = (at - size, at + 1)
            if span in known or span[1] + self.spec.lateness_micros <= watermark:
                continue
            found[span] = ([x for x in seen if span[0] <= x[0] <= at], [x for x in mine if x[0] == at], {})
        for at, _, _ in mine:
            span = (at - size, at + 1)
            if span not in known and span not in found:
                found[span] = ([], [x for x in mine if x[0] == at], {})
        for (s, e), window in known.items():
            own = [x for x in mine if s <= x[0] < e]
            if own:
                found[s, e] = (own, own, {(s, e): window})
        return found

    def fixed(self, at: int) -> list[tuple[int, int]]:
        where = self.spec.where
        if isinstance(where, w.Global):
            return [(-62_135_424_000_000_000, 253_402_214_400_000_000)]
        size = micros(where.size)
        period = micros(where.period) if isinstance(where, w.Hopping) else size
        offset = micros(where.offset) if where.offset else 0
        return [(s, s + size) for s in range(at - size + 1, at + 1) if (s - offset) % period == 0]

    def add(self, key: Any, start: int, end: int, elements: list[Any], old: Any, watermark: int, now: int) -> Any:
        window = Window(Trigger(self.spec.when))
        for (s, e), other in old.items():
            window.trigger.absorb(other.trigger)
            window.elements += other.elements
            window.pending += other.pending
            window.emitted += other.emitted
            holds = [h for h in (window.hold, other.hold) if h is not None]
            window.hold = (max if self.spec.stamp is Stamp.LATEST else min)(holds, default=None)
            if (s, e) == (start, end):
                window.panes, window.nonspeculative = other.panes, other.nonspeculative
            del self.windows[key, s, e]
        if isinstance(self.spec.where, w.Session):
            window.trigger.rewind(watermark, end)
        for element in elements:
            window.elements.append(element)
            window.pending += 1
            window.trigger.element(now)
        if self.spec.stamp is not Stamp.END:
            times = [at for at, _, _ in elements if at >= watermark]
            holds = [*times, *([] if window.hold is None else [window.hold])]
            window.hold = (max if self.spec.stamp is Stamp.LATEST else min)(holds, default=None)
        self.windows[key, start, end] = window
        return key, start, end

    def reject(
        self, key: Any, start: int, end: int, own: list[Any], reason: str, old: Any, watermark: int
    ) -> None:
        last = max((o.panes - 1 for o in old.values()), default=None)
        if last is None and isinstance(self.spec.where, w.Session):
            overlapping = [n for (k, s, e), n in self.closed.items() if k == key and s < end and start < e]
            last = max(overlapping, default=None)
        elif last is None:
            last = self.closed.get((key, start, end))
        for at, row, _ in own:
            self.late.append((key, start, end, at, watermark - at, reason, last, row["value"]))

    def due(self, watermark: int, now: int) -> None:
        for (key, start, end), window in list(self.windows.items()):
            reached = watermark >= end and not window.timer_done
            gone = end + self.spec.lateness_micros <= watermark
            if not window.finished:
                examined = reached or (window.wake is not None and window.wake <= now)
                name = window.trigger.should_fire(watermark, now, end) if examined else None
                if name:
                    finished = window.trigger.fire(watermark, now, end)
                    self.emit((key, start, end), name, finished, reached, watermark)
                elif gone and window.pending:
                    self.emit((key, start, end), "Closing", True, True, watermark)
                if examined:
                    window.wake = next_deadline(window.trigger, watermark, end, now)
            window.timer_done |= watermark >= end
            if gone:
                del self.windows[key, start, end]
                if self.spec.lateness_micros and window.panes:
                    self.closed[key, start, end] = window.panes - 1
        retention = 2 * self.spec.lateness_micros
        self.closed = {at: n for at, n in self.closed.items() if at[2] + retention > watermark}

    def emit(
        self, at: tuple[Any, int, int], name: str, finished: bool, may_be_on_time: bool, watermark: int
    ) -> None:
        window, end = self.windows[at], at[2]
        early = watermark < end
        if early:
            timing, nonspeculative = "early", -1
        else:
            nonspeculative = window.nonspeculative
            timing = "on_time" if may_be_on_time and nonspeculative == 0 else "late"
        final = finished or end + self.spec.lateness_micros <= watermark
        stamp = end - 1 if window.hold is None else window.hold
        values = [result(agg, window.elements) for agg in self.spec.what.values()]
        pane = (*at, *map(frozen, values), stamp, timing, window.panes, nonspeculative, final, name)
        if self.spec.how is Mode.RETRACTING:
            self.output += [(*old, -1) for old in window.emitted]
            window.emitted = []
            if not self.changes or sum(c for _, _, c in window.elements):
                window.emitted = [pane]
        is_empty = self.changes and not sum(c for _, _, c in window.elements)
        if window.emitted if self.spec.how is Mode.RETRACTING else window.panes or not is_empty:
            self.output.append((*pane, 1))
        if self.spec.how is Mode.RETRACTING or window.panes or not is_empty:
            window.panes += 1
            window.nonspeculative += not early
        window.pending = 0
        if not (early and has_on_time(self.spec.when)):
            window.hold = None
        window.finished |= finished
        if self.spec.how is Mode.DISCARDING:
            window.elements = []


def next_deadline(trigger: Trigger, watermark: int, end: int, now: int) -> int | None:
    """Return the next deadline. A deadline that has passed does not fire again."""
    return min((d for d in active_deadlines(trigger, watermark, end) if d > now), default=None)


def active_deadlines(trigger: Trigger, watermark: int, end: int) -> Any:
    """Yield the deadlines of the active parts."""
    match trigger.spec:
        case t.AfterWatermark():
            if trigger.late_stage:
                yield from active_deadlines(trigger.late, watermark, end)
            elif watermark < end and trigger.early:
                yield from active_deadlines(trigger.early, watermark, end)
        case t.AfterEach():
            if trigger.turn < len(trigger.parts):
                yield from active_deadlines(trigger.parts[trigger.turn], watermark, end)
        case t.AfterProcessingTime():
            if trigger.deadline is not None:
                yield trigger.deadline
        case _:
            for part in trigger.parts:
                yield from active_deadlines(part, watermark, end)


def result(aggregate: a.Aggregate, elements: list[Any]) -> Any:  # noqa: PLR0912
    """Compute an aggregate of elements in plain Python."""
    if aggregate.column is None:
        return sum(change for _, _, change in elements)
    present = [
        (row.get("true_time", at), row[aggregate.column], c)
        for at, row, c in elements
        if row[aggregate.column] is not None
    ]
    net: Counter[Any] = Counter()
    for at, value, change in present:
        net[at if aggregate.function is a.Function.COLLECT else None, value] += change
    values = sorted(v for (_, v), n in net.items() for _ in range(max(n, 0)))
    counts = Counter(values)
    match aggregate.function:
        case a.Function.COUNT:
            return sum(c for _, _, c in present)
        case a.Function.SUM:
            return sum(v * c for _, v, c in present) if sum(c for _, _, c in present) > 0 else None
        case a.Function.MEAN:
            n = sum(c for _, _, c in present)
            return sum(v * c for _, v, c in present) / n if n > 0 else None
        case a.Function.MIN:
            return min(values, default=None)
        case a.Function.MAX:
            return max(values, default=None)
        case a.Function.FIRST:
            return min(present, key=lambda x: x[0])[1] if present else None
        case a.Function.LAST:
            return max(reversed(present), key=lambda x: x[0])[1] if present else None
        case a.Function.COLLECT:
            return values
        case a.Function.DISTINCT | a.Function.APPROX_DISTINCT:
            return len(counts)
        case a.Function.QUANTILE:
            return next((v for i, v in enumerate(values, 1) if i >= aggregate.argument * len(values) - 1e-9), None)
        case a.Function.TOP_K | a.Function.APPROX_TOP_K:
            return sorted(counts.items(), key=lambda x: (-x[1], x[0]))[: int(aggregate.argument)]
    raise AssertionError(aggregate)
