"""Aggregates, the first n, and windows over the last n of rows that come and go, against plain Python."""

from collections import Counter, defaultdict
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.change import CHANGE
from headwater.errors import InvalidError
from headwater.process.aggregates import aggregates as a
from headwater.process.tables.aggregate import AggregateKernel
from headwater.process.tables.ranking import RankingKernel, RankLateness, RankOrder
from tests.process.relations import EXAMPLES, Running

PLAIN = pl.Schema({"seller": pl.String, "price": pl.Int64, "at": pl.Int64})
CHANGES = pl.Schema({**PLAIN, CHANGE: pl.Int8})

rows = st.tuples(st.sampled_from(["ann", "bob", None]), st.none() | st.integers(0, 3), st.integers(0, 4))
script = st.lists(st.tuples(rows, st.sampled_from([1, 1, -1]), st.booleans()), max_size=20)


class Feed:
    """Gives a kernel rows in bundles, and knows which are there, in the order of their arrival."""

    def __init__(self, kernel: Any, *, takes_back: bool = True) -> None:
        self.running, self.takes_back = Running(kernel), takes_back
        self.there: list[Any] = []
        self._bundle: list[Any] = []

    def take(self, row: Any, sign: int, ends: bool) -> bool:
        """Whether the kernel has been given all there is."""
        if sign > 0 or not self.takes_back:
            self.there.append(row)
            self._bundle.append((*row, 1))
        elif row in self.there:
            self.there.remove(row)
            self._bundle.append((*row, -1))
        if ends:
            frame = pl.DataFrame(self._bundle, schema=CHANGES, orient="row")
            self.running.step(frame if self.takes_back else frame.drop(CHANGE), seal=sign > 0)
            self._bundle = []
        return ends

    def groups(self, by: bool = True) -> dict[Any, list[Any]]:
        found = defaultdict(list)
        # A row that is there twice stands where it first came.
        for row in sorted(self.there, key=self.there.index):
            found[row[0] if by else True].append(row)
        return found


@settings(max_examples=EXAMPLES)
@given(script, st.booleans(), st.booleans())
def test_aggregates_go_down_and_recover(changes: Any, takes_back: bool, by: bool) -> None:
    what = {"n": a.count(), "sum": a.sum("price"), "least": a.min("price"), "most": a.max("price"),
            "kinds": a.distinct("price")}  # fmt: skip
    schema = CHANGES if takes_back else PLAIN
    feed = Feed(AggregateKernel.of(what, ["seller"] if by else [], schema), takes_back=takes_back)
    for change in changes:
        if feed.take(*change):
            expected: Counter[Any] = Counter()
            for seller, group in feed.groups(by).items():
                prices = [row[1] for row in group if row[1] is not None]
                ends = (sum(prices), min(prices), max(prices)) if prices else (None, None, None)
                expected[(*((seller,) if by else ()), len(group), *ends, len(set(prices)))] += 1
            assert feed.running.table == expected


def price_order(row: Any) -> Any:
    return (row[1] is None, -(row[1] or 0), row[2])


@settings(max_examples=EXAMPLES)
@given(script, st.integers(1, 3), st.booleans(), st.booleans())
def test_the_first_of_each_group(changes: Any, n: int, takes_back: bool, ranked: bool) -> None:
    schema = CHANGES if takes_back else PLAIN
    rank = "rank" if ranked else None
    feed = Feed(
        RankingKernel.top(n, ["seller"], RankOrder.read(["price desc", "at"]), schema, rank), takes_back=takes_back
    )
    for change in changes:
        if feed.take(*change):
            expected: Counter[Any] = Counter()
            for group in feed.groups().values():
                for number, row in enumerate(sorted(group, key=price_order)[:n], 1):
                    expected[(*row, number) if ranked else row] += 1
            assert feed.running.table == expected
            if not takes_back:
                assert feed.running.state_rows <= n * len(feed.groups())


@settings(max_examples=EXAMPLES)
@given(script, st.booleans(), st.booleans())
def test_the_first_or_last_by_arrival(changes: Any, first: bool, takes_back: bool) -> None:
    order = RankOrder() if first else RankOrder().reversed
    schema = CHANGES if takes_back else PLAIN
    feed = Feed(RankingKernel.top(1, ["seller"], order, schema), takes_back=takes_back)
    for change in changes:
        if feed.take(*change):
            groups = feed.groups().values()
            if first:
                expected = [group[0] for group in groups]
            elif takes_back:
                # Of a row that is there twice the one that came last counts, whichever is taken back.
                continue
            else:
                last = {row[0]: row for row in feed.there}
                expected = list(last.values())
            assert feed.running.table == Counter(expected)


@settings(max_examples=EXAMPLES)
@given(script, st.integers(1, 3))
def test_a_window_over_the_last_of_each_group(changes: Any, last: int) -> None:
    what = {"mean": a.mean("price"), "n": a.count(), "prices": a.collect("price")}
    feed = Feed(RankingKernel.rolling(last, what, ["seller"], RankOrder.read("at"), CHANGES))
    for change in changes:
        if feed.take(*change):
            expected: Counter[Any] = Counter()
            for group in feed.groups().values():
                ordered = sorted(group, key=lambda row: row[2])
                for number, row in enumerate(ordered):
                    window = ordered[max(0, number - last + 1) : number + 1]
                    prices = [other[1] for other in window if other[1] is not None]
                    mean = sum(prices) / len(prices) if prices else None
                    expected[(*row, mean, len(window), tuple(prices))] += 1
            assert feed.running.table == expected


@settings(max_examples=EXAMPLES)
@given(script, st.integers(1, 3), st.integers(0, 2), st.lists(st.integers(0, 6), min_size=20, max_size=20))
def test_a_window_forgets_what_no_row_can_need(changes: Any, last: int, lateness: int, marks: list[int]) -> None:
    """With all that is remembered and with what can be needed it says the same, as long as rows are on time."""
    what = {"n": a.count(), "prices": a.collect("price")}
    order = RankOrder.read("at")
    late = RankingKernel.rolling(last, what, ["seller"], order, CHANGES, RankLateness("at", lateness))
    forgetful, thorough = Running(late), Running(RankingKernel.rolling(last, what, ["seller"], order, CHANGES))
    watermark, late_rows, there = -1, 0, Counter[Any]()
    for (row, sign, seal), mark in zip(changes, marks, strict=False):
        if sign > 0 or there[row]:
            is_late = row[2] < watermark - lateness
            if not is_late:
                there[row] += sign
                thorough.step(pl.DataFrame([(*row, sign)], schema=CHANGES, orient="row"))
            forgetful.step(pl.DataFrame([(*row, sign)], schema=CHANGES, orient="row"), watermark, seal=seal)
            late_rows += is_late
            assert len(forgetful.late) == late_rows
            assert forgetful.table == thorough.table
        watermark = max(watermark, mark)
        forgetful.step(None, watermark, seal=seal)
        assert forgetful.table == thorough.table
        old = [row for row, n in there.items() for _ in range(n) if row[2] < watermark - lateness]
        groups = len({row[0] for row in old})
        assert forgetful.state_rows <= sum(there.values()) - len(old) + groups * (last - 1)
    assert all(row["reason"] == "expired" for row in forgetful.late)


def test_a_row_without_a_time_is_in_the_ledger() -> None:
    kernel = RankingKernel.rolling(2, {"n": a.count()}, [], RankOrder.read("at"), PLAIN, RankLateness("at", 0))
    running = Running(kernel)
    running.step(pl.DataFrame([("ann", 1, None)], schema=PLAIN, orient="row"), 5)
    assert [row["reason"] for row in running.late] == ["no event time"]


def test_distinct_rows_are_the_first_of_each() -> None:
    feed = Feed(RankingKernel.top(1, list(PLAIN), RankOrder(), CHANGES))
    for sign, there in ((1, 1), (1, 1), (-1, 1), (-1, 0)):
        feed.take(("ann", 1, 1), sign, True)
        assert feed.running.table == Counter({("ann", 1, 1): there} if there else {})


def test_orders_are_read_as_people_write_them() -> None:
    assert RankOrder.read("price desc") == RankOrder(("price",), (True,))
    assert RankOrder.read(["a b", "c ASC"]) == RankOrder(("a b", "c"), (False, False))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AggregateKernel.of({"n": a.count()}, ["shop"], PLAIN), "aggregate: there is no column 'shop'"),
        (lambda: AggregateKernel.of({}, ["seller"], PLAIN), "names nothing to compute"),
        (lambda: AggregateKernel.of({"seller": a.count()}, ["seller"], PLAIN), "seller would be there twice"),
        (lambda: RankingKernel.top(0, ["seller"], RankOrder(), PLAIN), "at least 1, not 0"),
        (
            lambda: RankingKernel.top(1, ["seller"], RankOrder.read("cost"), PLAIN),
            "top: there is no column 'cost'",
        ),
        (lambda: RankingKernel.top(1, ["seller"], RankOrder(), PLAIN, "at"), "at would be there twice"),
        (lambda: RankingKernel.rolling(0, {}, ["seller"], RankOrder(), PLAIN), "from 1 to 1000 rows, not 0"),
        (lambda: RankingKernel.rolling(2, {"at": a.count()}, [], RankOrder(), PLAIN), "at would be there twice"),
    ],
)
def test_what_cannot_be_is_told(make: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        make()
