"""The oracle of sessions and sliding windows over changes: windows are made from the rows that remain.

It keeps all rows one by one and computes the windows of a key from scratch whenever rows of the key arrive.
"""

from collections import Counter
from typing import Any

from headwater.process.durations import micros
from headwater.process.windows import windows as w
from tests.process.oracle import Oracle, Trigger, Window, finishes, next_deadline

Element = tuple[int, dict[str, Any], int]
Span = tuple[int, int]


def net(elements: list[Element]) -> Counter[int]:
    """Return the number of rows at each time: inserted minus retracted."""
    rows: Counter[int] = Counter()
    for at, _, change in elements:
        rows[at] += change
    return rows


def chains(times: list[int], gap: int) -> list[Span]:
    """Return the sessions of events at these times."""
    spans: list[Span] = []
    for at in sorted(times):
        if spans and at < spans[-1][1]:
            spans[-1] = (spans[-1][0], at + gap)
        else:
            spans.append((at, at + gap))
    return spans


class ChangesOracle(Oracle):
    """A windowed computation over changes."""

    def __init__(self, windowing: Any) -> None:
        super().__init__(windowing, changes=True)
        self.until: dict[tuple[Any, int], int] = {}

    def bundle(self, rows: list[dict[str, Any]], watermark: int, now: int) -> None:
        where = self.spec.where
        if not isinstance(where, w.Session | w.Sliding):
            super().bundle(rows, watermark, now)
            return
        for key in dict.fromkeys(row["key"] for row in rows):
            mine = [(row["event_time"], row, row["_change"]) for row in rows if row["key"] == key]
            known = {(s, e): window for (k, s, e), window in self.windows.items() if k == key}
            if isinstance(where, w.Session):
                touched = self.sessions_of(key, mine, known, micros(where.gap), watermark, now)
            else:
                touched = self.slides_of(key, mine, known, micros(where.duration), watermark, now)
            self.fire(touched, watermark, now)

    def fire(self, touched: list[Any], watermark: int, now: int) -> None:
        for at in touched:
            window = self.windows[at]
            name = window.trigger.should_fire(watermark, now, at[2])
            if name:
                finished = window.trigger.fire(watermark, now, at[2])
                self.emit(at, name, finished, False, watermark)
            window.timer_done |= watermark >= at[2]
            window.wake = next_deadline(window.trigger, watermark, at[2], now)

    def refused(self, span: Span, old: dict[Span, Window], watermark: int) -> str | None:
        if span[1] + self.spec.lateness_micros <= watermark:
            return "expired"
        is_finished = bool(old) and all(window.finished for window in old.values())
        return "closed" if is_finished and (finishes(self.spec.when) == 2 or watermark >= span[1]) else None

    # -- sessions ---------------------------------------------------------------------------------------------

    def sessions_of(
        self, key: Any, mine: list[Element], known: dict[Span, Window], gap: int, watermark: int, now: int
    ) -> list[Any]:
        change = net(mine)
        spans = [(at, at + gap if change[at] > 0 else at + 1) for at in change] + list(known)
        groups: list[list[Span]] = []
        for span in sorted(spans):
            if groups and span[0] < max(end for _, end in groups[-1]):
                groups[-1].append(span)
            else:
                groups.append([span])
        touched = []
        for group in groups:
            low, high = min(s for s, _ in group), max(e for _, e in group)
            old = {span: known[span] for span in group if span in known}
            own = [element for element in mine if low <= element[0] < high]
            if not own:
                continue
            end = high if old or any(change[at] > 0 for at, _, _ in own) else low + gap
            if reason := self.refused((low, end), old, watermark):
                self.reject(key, low, end, own, reason, old, watermark)
            else:
                for at, _, _ in own:
                    self.until[key, at] = end + self.spec.lateness_micros
                touched += self.split(key, (low, high), own, old, gap, watermark, now)
        return touched

    def split(
        self,
        key: Any,
        span: Span,
        own: list[Element],
        old: dict[Span, Window],
        gap: int,
        watermark: int,
        now: int,
    ) -> list[Any]:
        """Replace the sessions in a span by those of the rows that remain, and return those that changed."""
        seen = self.seen.setdefault(key, [])
        before = net([x for x in seen if span[0] <= x[0] < span[1]])
        seen += own
        after = net([x for x in seen if span[0] <= x[0] < span[1]])
        sessions = chains([at for at, n in after.items() if n > 0], gap)
        heirs = {o: next((s for s in sessions if s[0] <= o[0] and o[1] <= s[1]), None) for o in old}
        restarts = None in heirs.values()
        for o, heir in heirs.items():
            if heir is None or (restarts and heir != o):
                heirs[o] = None
                self.output += [(*pane, -1) for pane in old[o].emitted]
                del self.windows[key, *o]
        touched = []
        for session in sessions:
            inside = [x for x in own if session[0] <= x[0] < session[1]]
            if session in old and not inside:
                continue
            parts = {o: old[o] for o, heir in heirs.items() if heir == session}
            extra = 0
            if restarts and session not in old:
                extra = sum(
                    max(before[at], 0) for at, n in after.items() if n > 0 and session[0] <= at < session[1]
                )
            touched.append(self.replace(key, session, len(inside) + extra, parts, watermark, now))
        return touched

    def replace(
        self, key: Any, span: Span, count: int, old: dict[Span, Window], watermark: int, now: int
    ) -> tuple[Any, int, int]:
        """Put a window in the place of others, with all the rows that remain in it."""
        window = Window(Trigger(self.spec.when))
        for o, other in old.items():
            window.trigger.absorb(other.trigger)
            window.pending += other.pending
            window.emitted += other.emitted
            if o == span:
                window.panes, window.nonspeculative = other.panes, other.nonspeculative
            del self.windows[key, *o]
        if isinstance(self.spec.where, w.Session):
            window.trigger.rewind(watermark, span[1])
        for _ in range(count):
            window.pending += 1
            window.trigger.element(now)
        rows = net(self.seen[key])
        window.elements = [x for x in self.seen[key] if span[0] <= x[0] < span[1] and rows[x[0]] > 0]
        self.windows[key, *span] = window
        return key, *span

    # -- sliding windows --------------------------------------------------------------------------------------

    def slides_of(
        self, key: Any, mine: list[Element], known: dict[Span, Window], size: int, watermark: int, now: int
    ) -> list[Any]:
        seen = self.seen.setdefault(key, [])
        before = net(seen)
        seen += mine
        after = net(seen)
        spans = list(dict.fromkeys([*known, *((at - size, at + 1) for at, _, _ in mine)]))
        touched = []
        for span in spans:
            own = [x for x in mine if span[0] <= x[0] < span[1]]
            if not own:
                continue
            old = {span: known[span]} if span in known else {}
            if reason := self.refused(span, old, watermark):
                attributed = own if old else [x for x in own if x[0] == span[1] - 1]
                self.reject(key, *span, attributed, reason, old, watermark)
            elif after[span[1] - 1] > 0:
                extra = 0
                if not old:
                    extra = sum(max(before[at], 0) for at, n in after.items() if n > 0 and span[0] <= at < span[1])
                touched.append(self.replace(key, span, len(own) + extra, old, watermark, now))
            elif old:
                self.output += [(*pane, -1) for pane in old[span].emitted]
                del self.windows[key, *span]
        return touched

    # -- time -------------------------------------------------------------------------------------------------

    def due(self, watermark: int, now: int) -> None:
        open_before = set(self.windows)
        super().due(watermark, now)
        if not isinstance(self.spec.where, w.Session):
            return
        for key, start, end in open_before - set(self.windows):
            self.seen[key] = [x for x in self.seen[key] if not start <= x[0] < end]
        for key, seen in self.seen.items():
            rows = net(seen)
            gone = {at for at, n in rows.items() if n <= 0 and self.until[key, at] <= watermark}
            self.seen[key] = [x for x in seen if x[0] not in gone]
