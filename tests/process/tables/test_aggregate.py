"""Aggregates, the first n and aggregates over the last n of rows that change, compared with plain Python."""

import math
import random
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
from tests.process.aggregates.values import order as sort_key
from tests.process.aggregates.values import plain
from tests.process.relations import EXAMPLES, Running, frozen

PLAIN = pl.Schema({"seller": pl.String, "price": pl.Int64, "at": pl.Int64})
CHANGES = pl.Schema({**PLAIN, CHANGE: pl.Int8})

rows = st.tuples(st.sampled_from(["ann", "bob", None]), st.none() | st.integers(0, 3), st.integers(0, 4))
script = st.lists(st.tuples(rows, st.sampled_from([1, 1, -1]), st.booleans()), max_size=20)


class Feed:
    """Sends rows to a kernel in batches, and keeps the rows that exist, in the order of their arrival."""

    def __init__(self, kernel: Any, *, retracts: bool = True) -> None:
        self.running, self.retracts = Running(kernel), retracts
        self.present: list[Any] = []
        self._batch: list[Any] = []

    def send(self, row: Any, sign: int, ends: bool) -> bool:
        """Add a change to the batch, and send the batch if it ends; return True then."""
        if sign > 0 or not self.retracts:
            self.present.append(row)
            self._batch.append((*row, 1))
        elif row in self.present:
            # Of a row that was inserted twice, the later one is removed: the first keeps its place.
            del self.present[len(self.present) - 1 - self.present[::-1].index(row)]
            self._batch.append((*row, -1))
        if ends:
            frame = pl.DataFrame(self._batch, schema=CHANGES, orient="row")
            self.running.step(frame if self.retracts else frame.drop(CHANGE), seal=sign > 0)
            self._batch = []
        return ends

    def groups(self, by: bool = True) -> dict[Any, list[Any]]:
        found = defaultdict(list)
        # A row that was inserted twice is where it was inserted first.
        for row in sorted(self.present, key=self.present.index):
            found[row[0] if by else True].append(row)
        return found


@settings(max_examples=EXAMPLES)
@given(script, st.booleans(), st.booleans())
def test_aggregates_are_correct_after_retractions(changes: Any, retracts: bool, by: bool) -> None:
    what = {"n": a.count(), "sum": a.sum("price"), "least": a.min("price"), "most": a.max("price"),
            "kinds": a.distinct("price")}  # fmt: skip
    schema = CHANGES if retracts else PLAIN
    feed = Feed(AggregateKernel.of(what, ["seller"] if by else [], schema), retracts=retracts)
    for change in changes:
        if feed.send(*change):
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
def test_the_first_rows_of_each_group(changes: Any, n: int, retracts: bool, ranked: bool) -> None:
    schema = CHANGES if retracts else PLAIN
    rank = "rank" if ranked else None
    feed = Feed(
        RankingKernel.top(n, ["seller"], RankOrder.read(["price desc", "at"]), schema, rank), retracts=retracts
    )
    for change in changes:
        if feed.send(*change):
            expected: Counter[Any] = Counter()
            for group in feed.groups().values():
                for number, row in enumerate(sorted(group, key=price_order)[:n], 1):
                    expected[(*row, number) if ranked else row] += 1
            assert feed.running.table == expected
            if not retracts:
                assert feed.running.state_rows <= n * len(feed.groups())


prices = st.sampled_from([None, math.nan, math.inf, -math.inf, -0.0, 0.0, 1.5])
structs = st.none() | st.tuples(st.none() | st.integers(0, 1), prices).map(
    lambda pair: dict(zip("ab", pair, strict=True))
)
lists = st.none() | st.lists(prices, max_size=2)
KINDS = [
    (pl.Float64(), prices),
    (pl.Struct({"a": pl.Int64(), "b": pl.Float64()}), structs),
    (pl.List(pl.Float64()), lists),
    (pl.Boolean(), st.none() | st.booleans()),
]


@pytest.mark.parametrize("number", range(len(KINDS)))
@pytest.mark.parametrize("order", ["p", "p desc", "p asc nulls last", "p DESC NULLS FIRST"])
def test_rows_are_ordered_as_in_spark(number: int, order: str) -> None:
    """Rows with equal prices are in the order of arrival, equal rows together, in any batches, on both paths."""
    dtype, values = KINDS[number]
    down, first = (
        "desc" in order.lower(),
        "last" not in order and ("first" in order.lower() or "desc" not in order),
    )

    @settings(max_examples=max(10, EXAMPLES // 4))
    @given(
        st.lists(st.tuples(values, st.integers(0, 2), st.booleans()), max_size=10),
        st.integers(1, 3),
        st.booleans(),
    )
    def check(some: list[Any], n: int, retracts: bool) -> None:
        schema = pl.Schema({"p": dtype, "id": pl.Int64(), **({CHANGE: pl.Int8()} if retracts else {})})
        running = Running(RankingKernel.top(n, [], RankOrder.read(order), schema))
        newest = Running(RankingKernel.top(1, [], RankOrder.read(order).reversed, schema))
        batch: list[Any] = []
        for price, id, ends in [*some, (None, 0, True)]:
            batch.append((price, id, *((1,) if retracts else ())))
            if ends:
                frame = pl.DataFrame(batch, schema=schema, orient="row")
                running.step(frame, seal=id > 0)
                newest.step(frame, seal=id > 0)
                batch = []
        rows = [(price, id) for price, id, _ in some] + [(None, 0)]
        places: dict[Any, int] = {}
        for place, row in enumerate(rows):
            places.setdefault(plain(row), place)
        known = [row for row in rows if row[0] is not None]
        known.sort(key=lambda row: places[plain(row)])
        known.sort(key=lambda row: sort_key(row[0]), reverse=down)  # Stable: equal ones stay in their order.
        nulls = sorted((row for row in rows if row[0] is None), key=lambda row: places[plain(row)])
        ordered = nulls + known if first else known + nulls
        assert Counter(map(plain, running.table.elements())) == Counter(map(frozen_row, ordered[:n]))
        # Of the last ones by price, the one that arrived last.
        last_price = sort_key(ordered[-1][0])
        last = [row for row in rows if sort_key(row[0]) == last_price][-1]
        assert list(map(plain, newest.table.elements())) == [frozen_row(last)]

    check()


def frozen_row(row: Any) -> Any:
    return plain(frozen(list(row)))


@settings(max_examples=EXAMPLES)
@given(script, st.booleans(), st.booleans())
def test_the_first_or_last_by_arrival(changes: Any, first: bool, retracts: bool) -> None:
    order = RankOrder() if first else RankOrder().reversed
    schema = CHANGES if retracts else PLAIN
    feed = Feed(RankingKernel.top(1, ["seller"], order, schema), retracts=retracts)
    for change in changes:
        if feed.send(*change):
            groups = feed.groups().values()
            if first:
                expected = [group[0] for group in groups]
            elif retracts:
                # Of a row that was inserted twice, the last insert counts, whichever is retracted.
                continue
            else:
                last = {row[0]: row for row in feed.present}
                expected = list(last.values())
            assert feed.running.table == Counter(expected)


@settings(max_examples=EXAMPLES)
@given(script, st.integers(1, 3))
def test_aggregates_over_the_last_rows_of_each_group(changes: Any, last: int) -> None:
    what = {"mean": a.mean("price"), "n": a.count(), "prices": a.collect("price")}
    feed = Feed(RankingKernel.rolling(last, what, ["seller"], RankOrder.read("at"), CHANGES))
    for change in changes:
        if feed.send(*change):
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
def test_rolling_deletes_rows_that_no_row_can_need(
    changes: Any, last: int, lateness: int, marks: list[int]
) -> None:
    """As long as rows are on time, the result is the same as if no row were deleted."""
    what = {"n": a.count(), "prices": a.collect("price")}
    order = RankOrder.read("at")
    late = RankingKernel.rolling(last, what, ["seller"], order, CHANGES, RankLateness("at", lateness))
    limited, complete = Running(late), Running(RankingKernel.rolling(last, what, ["seller"], order, CHANGES))
    watermark, late_rows, present = -1, 0, Counter[Any]()
    for (row, sign, seal), mark in zip(changes, marks, strict=False):
        if sign > 0 or present[row]:
            is_late = row[2] < watermark - lateness
            if not is_late:
                present[row] += sign
                complete.step(pl.DataFrame([(*row, sign)], schema=CHANGES, orient="row"))
            limited.step(pl.DataFrame([(*row, sign)], schema=CHANGES, orient="row"), watermark, seal=seal)
            late_rows += is_late
            assert len(limited.late) == late_rows
            assert limited.table == complete.table
        watermark = max(watermark, mark)
        limited.step(None, watermark, seal=seal)
        assert limited.table == complete.table
        old = [row for row, n in present.items() for _ in range(n) if row[2] < watermark - lateness]
        groups = len({row[0] for row in old})
        assert limited.state_rows <= sum(present.values()) - len(old) + groups * (last - 1)
    assert all(row["reason"] == "expired" for row in limited.late)


def test_a_row_without_a_time_is_in_the_late_ledger() -> None:
    kernel = RankingKernel.rolling(2, {"n": a.count()}, [], RankOrder.read("at"), PLAIN, RankLateness("at", 0))
    running = Running(kernel)
    running.step(pl.DataFrame([("ann", 1, None)], schema=PLAIN, orient="row"), 5)
    assert [row["reason"] for row in running.late] == ["no event time"]


def test_deduplication_keeps_one_of_equal_rows() -> None:
    feed = Feed(RankingKernel.top(1, list(PLAIN), RankOrder(), CHANGES))
    for sign, present in ((1, 1), (1, 1), (-1, 1), (-1, 0)):
        feed.send(("ann", 1, 1), sign, True)
        assert feed.running.table == Counter({("ann", 1, 1): present} if present else {})


def test_orders_are_parsed() -> None:
    assert RankOrder.read("price desc") == RankOrder(("price",), (True,))
    assert RankOrder.read(["a b", "c ASC"]) == RankOrder(("a b", "c"), (False, False))
    assert RankOrder.read("price desc nulls first") == RankOrder(("price",), (True,), nulls_last=(False,))
    assert RankOrder.read("price NULLS  LAST") == RankOrder(("price",), (False,), nulls_last=(True,))
    assert RankOrder.read("nulls first").columns == ("nulls first",)
    order = RankOrder.read(["a", "b desc", "c nulls last", "d desc nulls first"])
    assert order.texts == ["a nulls first", "b desc", "c", "d desc nulls first"]
    assert order.reversed.texts == ["a desc", "b nulls first", "c desc nulls first", "d"]
    assert order.reversed.reversed == order


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AggregateKernel.of({"n": a.count()}, ["shop"], PLAIN), "aggregate: there is no column 'shop'"),
        (lambda: AggregateKernel.of({}, ["seller"], PLAIN), "`what` is empty; name at least one aggregate"),
        (lambda: AggregateKernel.of({"seller": a.count()}, ["seller"], PLAIN), "would have two columns seller"),
        (lambda: RankingKernel.top(0, ["seller"], RankOrder(), PLAIN), "must be 1 or more, not 0"),
        (
            lambda: RankingKernel.top(1, ["seller"], RankOrder.read("cost"), PLAIN),
            "top: there is no column 'cost'",
        ),
        (lambda: RankingKernel.top(1, ["seller"], RankOrder(), PLAIN, "at"), "already have a column 'at'"),
        (lambda: RankOrder.read([5]), "an order names columns, such as 'price desc nulls last', not 5"),
        (lambda: RankingKernel.rolling(2, [a.count()], [], RankOrder(), PLAIN), "`what` must be a dictionary"),
        (lambda: RankingKernel.rolling(0, {}, ["seller"], RankOrder(), PLAIN), "from 1 to 1000 rows, not 0"),
        (lambda: RankingKernel.rolling(2, {"at": a.count()}, [], RankOrder(), PLAIN), "would have two columns at"),
    ],
)
def test_invalid_arguments_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        make()


TIES = {
    "top": lambda: RankingKernel.top(2, ["seller"], RankOrder.read("price"), CHANGES, rank="rank"),
    "first": lambda: RankingKernel.top(1, ["seller"], RankOrder.read("price"), CHANGES),
    "last": lambda: RankingKernel.top(1, ["seller"], RankOrder.read("price").reversed, CHANGES),
    "arrival": lambda: RankingKernel.top(1, ["seller"], RankOrder(), CHANGES),
    "rolling": lambda: RankingKernel.rolling(
        2, {"all": a.collect("at")}, ["seller"], RankOrder.read("price"), CHANGES
    ),
}


@pytest.mark.parametrize("name", TIES)
def test_ties_do_not_depend_on_the_cut_into_batches(name: str) -> None:
    """All rows are equal in the order, and unknown ones may be retracted, too."""
    for seed in range(25):
        chance = random.Random(seed)
        singly, cut, batch = Running(TIES[name]()), Running(TIES[name]()), []
        for number in range(14):
            change = ("ann", 0, chance.randrange(3), chance.choice([1, 1, -1]))
            batch.append(change)
            singly.step(pl.DataFrame([change], schema=CHANGES, orient="row"))
            if chance.random() < 0.3 or number == 13:
                cut.step(pl.DataFrame(batch, schema=CHANGES, orient="row"))
                batch = []
                assert cut.table == singly.table, seed


def test_a_row_that_is_retracted_and_inserted_again_arrives_again() -> None:
    kernel = RankingKernel.top(1, [], RankOrder.read("price"), CHANGES)
    running = Running(kernel)
    running.step(pl.DataFrame([("ann", 1, 0, 1), ("bob", 1, 0, 1)], schema=CHANGES, orient="row"))
    running.step(pl.DataFrame([("ann", 1, 0, -1), ("ann", 1, 0, 1)], schema=CHANGES, orient="row"))
    assert running.table == {("bob", 1, 0): 1}
