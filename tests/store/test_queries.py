"""Questions about views, with the same answers on SQLite and on PostgreSQL."""

import datetime as dt
import decimal
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.clock import SystemClock
from headwater.errors import InvalidError, UnavailableError
from headwater.store.pipelines.generations import Generations
from headwater.store.questions import Answer, Question
from headwater.store.reader import ViewReader, Views
from headwater.store.shapes import Access, ViewShape
from headwater.store.subscription import EventKind
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore

INSTANT = pa.timestamp("us", tz="UTC")
NOON = dt.datetime(2026, 11, 15, 12, 0, tzinfo=dt.UTC)
WINDOW = pa.struct([("start", INSTANT), ("end", INSTANT)])

ORDERS = ViewShape(
    name="orders",
    key=("id",),
    columns=(
        Column("id", "bigint"),
        Column("product", "string"),
        Column("amount", "double"),
        Column("price", "decimal(10,2)"),
        Column("paid", "boolean"),
        Column("at", "timestamp"),
        Column("note", "string"),
    ),
)
ARROW = pa.schema(
    {
        "id": pa.int64(),
        "product": pa.string(),
        "amount": pa.float64(),
        "price": pa.decimal128(10, 2),
        "paid": pa.bool_(),
        "at": INSTANT,
        "note": pa.string(),
    }
)
ACCESS = Access(indexes=(("product", "at"), ("amount",), ("price",)), search=("product", "note"), history=100)


def order(id: int, product: str | None = "tea", **values: Any) -> dict[str, Any]:
    minute = NOON + dt.timedelta(minutes=id)
    default = {"amount": float(id), "price": decimal.Decimal(id), "paid": id % 2 == 0, "at": minute, "note": None}
    return {"id": id, "product": product, **default, **values}


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=ARROW)


class Shop:
    """A view of orders, its writer and its reader."""

    def __init__(self, store: ViewStore, reader: ViewStore) -> None:
        self.store = store
        self.orders = ViewReader(reader, "orders", SystemClock())
        self.batch = 0

    def put(self, *rows: dict[str, Any], offsets: Any = None) -> int:
        self.store.commit_rows("orders", table(*rows), run="r", batch=self.batch, offsets=offsets)
        self.batch += 1
        return self.store.position("orders")

    def retract(self, *rows: dict[str, Any]) -> int:
        self.store.commit_rows("orders", table(*rows), run="r", batch=self.batch, signs=[-1] * len(rows))
        self.batch += 1
        return self.store.position("orders")


OpenStore = Callable[..., ViewStore]


@pytest.fixture
def shop(location: Path | str, open_store: OpenStore) -> Shop:
    store = open_store(location)
    store.declare(ORDERS, ACCESS)
    return Shop(store, open_store(location, read_only=True))


def ids(answer: Answer) -> list[int]:
    return [row["id"] for row in answer.rows]


# -- rows by key ---------------------------------------------------------------------------------------------


def test_a_row_by_its_key(shop: Shop) -> None:
    shop.put(order(1, "tea", note="first"), order(2, "milk"))
    assert shop.orders.get(1) == {
        "id": 1,
        "product": "tea",
        "amount": 1.0,
        "price": "1.00",
        "paid": False,
        "at": "2026-11-15T12:01:00.000000Z",
        "note": "first",
    }
    assert shop.orders.get("2") == shop.orders.get(2)
    assert shop.orders.get(3) is None
    with pytest.raises(InvalidError, match="its key has 1 columns"):
        shop.orders.get(1, 2)
    with pytest.raises(InvalidError, match="cannot look up id = 'one': the column is bigint"):
        shop.orders.get("one")


@pytest.mark.parametrize(
    ("kind", "spark", "values", "others"),
    [
        (pa.decimal128(5, 2), "decimal(5,2)", [decimal.Decimal("1.10"), decimal.Decimal("-2")], ["1.1", 1.1]),
        (INSTANT, "timestamp", [NOON], ["2026-11-15T12:00:00Z", "2026-11-15T13:00:00+01:00"]),
        (pa.date32(), "date", [dt.date(2026, 1, 2)], ["2026-01-02"]),
        (pa.bool_(), "boolean", [True, False], ["true", "TRUE"]),
        (pa.string(), "string", ["", 'a "b"', "Ünï%?", "null"], [""]),
        (pa.float64(), "double", [0.1, -1e300, math.inf], ["0.1"]),
        (pa.binary(), "binary", [b"\x00\xff"], []),
        (WINDOW, "struct<start:timestamp,end:timestamp>", [{"start": NOON, "end": NOON}],
         ['{"end": "2026-11-15T12:00:00Z", "start": "2026-11-15T12:00:00Z"}']),
    ],
)  # fmt: skip
def test_keys_of_every_type(
    location: Path | str,
    open_store: OpenStore,
    kind: pa.DataType,
    spark: str,
    values: list[Any],
    others: list[Any],
) -> None:
    store = open_store(location)
    store.declare(ViewShape(name="v", key=("k", "n"), columns=(Column("k", spark), Column("n", "int"))))
    count = len(values)
    rows = pa.table({"k": pa.array(values, kind), "n": pa.array(range(count), pa.int32())})
    store.commit_rows("v", rows, run="r", batch=0)
    reader = ViewReader(store, "v", SystemClock())
    for n, value in enumerate(values):
        found = reader.get(value, n)
        assert found is not None and found["n"] == n
        assert [row["n"] for row in reader.rows(where=[("k", "=", value)]).rows] == [n]
    for other in others:
        found = reader.get(other, 0)
        assert found is not None and found["n"] == 0


def test_a_range_of_keys(shop: Shop) -> None:
    shop.put(*(order(n) for n in range(10)))
    assert ids(shop.orders.rows(where=["id >= 3", "id < 6"])) == [3, 4, 5]
    assert ids(shop.orders.rows(where=["id > 7"], order_by="-id")) == [9, 8]


# -- conditions and order ------------------------------------------------------------------------------------


def test_conditions(shop: Shop) -> None:
    shop.put(
        order(1, "green tea", price=decimal.Decimal("9.99")),
        order(2, "Green", amount=math.nan),
        order(3, None, price=decimal.Decimal("10")),
        order(4, "green % tea", amount=-math.inf, paid=None),
        order(5, "100"),
    )
    orders = shop.orders
    for where, expected in (
        (["product = green tea"], [1]),
        (["product != Green"], [1, 3, 4, 5]),
        (["product = null"], [3]),
        (["product != null"], [1, 2, 4, 5]),
        (["product ^= green"], [1, 4]),
        (['product ^= "green %"'], [4]),
        (['product in ["Green", "100", null]'], [2, 3, 5]),
        (["product in []"], []),
        (["id in [1, 4]"], [1, 4]),
        (["price > 9.99"], [3]),
        (["price >= 9.99", "price <= 10"], [1, 3]),
        (["paid = true"], [2]),
        (["paid = null"], [4]),
        (["at >= 2026-11-15T12:04:00Z"], [4, 5]),
        (["at < 2026-11-15T13:02:00+01:00"], [1]),
        (["amount = NaN"], [2]),
        (["amount < 0"], [4]),
        (["`product` = 100"], [5]),
        ([("product", "=", "100")], [5]),
        ([("at", "=", NOON + dt.timedelta(minutes=3))], [3]),
    ):
        assert ids(orders.rows(where=where)) == expected, where


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("amount", "cannot read the condition 'amount'"),
        ("nothing = 1", "has no column 'nothing'"),
        ("amount >= much", "the column is double"),
        ("amount > null", "null has no order"),
        ("amount ^= 1", "the column is double, not text"),
        ("product in tea", "expected a list after 'in'"),
        ('product = "tea', "is not a quoted text"),
        ("product.name = 1", "which is not a struct"),
        ("at >= yesterday", "the column is timestamp"),
    ],
)
def test_bad_conditions(shop: Shop, where: str, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        shop.orders.rows(where=[where])


def test_order_with_nulls_and_ties(shop: Shop) -> None:
    shop.put(order(1, "b", amount=2.0), order(2, None), order(3, "a", amount=2.0), order(4, "B", amount=math.nan))
    orders = shop.orders
    assert ids(orders.rows(order_by="product")) == [2, 4, 3, 1]
    assert ids(orders.rows(order_by="-product")) == [1, 3, 4, 2]
    assert ids(orders.rows(order_by="-amount")) == [4, 3, 2, 1]
    assert ids(orders.rows(order_by=["-amount", "id"])) == [4, 1, 2, 3]
    assert ids(orders.rows(order_by="price,id", limit=2)) == [1, 2]
    with pytest.raises(InvalidError, match="has no column 'x'"):
        orders.rows(order_by="-x")


def test_decimals_sort_as_numbers(shop: Shop) -> None:
    shop.put(*(order(n, price=decimal.Decimal(p)) for n, p in enumerate(("9", "10", "-1", "2.5"))))
    assert ids(shop.orders.rows(order_by="price")) == [2, 3, 0, 1]


def test_pages(shop: Shop) -> None:
    shop.put(*(order(n, None if n % 5 == 0 else f"p{n % 3}", amount=float(n % 4)) for n in range(23)))
    for by in ("", "product", "-product", "amount,-product", "-price", "-amount,product,-id"):
        every = ids(shop.orders.rows(order_by=by or ()))
        pages, cursor = [], None
        while True:
            answer = shop.orders.rows(order_by=by or (), limit=4, after=cursor)
            pages += ids(answer)
            cursor = answer.next
            if cursor is None:
                break
        assert pages == every, by
    first = shop.orders.rows(order_by="amount", limit=4)
    with pytest.raises(InvalidError, match="another order"):
        shop.orders.rows(order_by="-amount", after=first.next)
    with pytest.raises(InvalidError, match="expected the `next` of an answer"):
        shop.orders.rows(after="x")
    with pytest.raises(InvalidError, match="limit must be at least 1"):
        shop.orders.rows(limit=0)


def test_fields_of_a_struct(location: Path | str, open_store: OpenStore) -> None:
    store = open_store(location)
    columns = (Column("product", "string"), Column("window", "struct<start:timestamp,end:timestamp>"))
    store.declare(
        ViewShape(name="v", key=("product", "window"), columns=columns), Access(indexes=(("window.start",),))
    )
    windows = [
        {"start": NOON + dt.timedelta(minutes=n), "end": NOON + dt.timedelta(minutes=n + 1)} for n in range(5)
    ]
    rows = pa.table({"product": ["tea"] * 5, "window": pa.array(windows, WINDOW)})
    store.commit_rows("v", rows, run="r", batch=0)
    reader = ViewReader(store, "v", SystemClock())
    found = reader.rows(where=["window.start >= 2026-11-15T12:03:00Z"], order_by="-window.start").rows
    assert [row["window"]["start"] for row in found] == [
        "2026-11-15T12:04:00.000000Z",
        "2026-11-15T12:03:00.000000Z",
    ]
    with pytest.raises(InvalidError, match="it has: start, end"):
        reader.rows(where=["window.middle = 1"])


# -- indexes -------------------------------------------------------------------------------------------------


def test_indexes_and_search_follow_the_declaration(shop: Shop) -> None:
    shop.put(*(order(n, f"product {n}", note="some words") for n in range(5)))
    store = shop.store
    store.declare(ORDERS)
    with pytest.raises(InvalidError, match="cannot be searched"):
        shop.orders.search("words")
    assert ids(shop.orders.rows(where=["product = product 3"])) == [3]
    store.declare(ORDERS, Access(search=("product",), indexes=(("note",),)))
    assert ids(shop.orders.search("product")) == [0, 1, 2, 3, 4]
    assert ids(shop.orders.search("words")) == []
    store.declare(ORDERS, Access(search=("note",), indexes=(("note",), ("paid", "amount"))))
    assert ids(shop.orders.search("words", where=["id > 2"])) == [3, 4]
    for wrong, message in (
        (Access(indexes=(("nothing",),)), "an index names 'nothing'"),
        (Access(search=("amount",)), "only text can be searched"),
        (Access(history=0), "it must be at least 1"),
    ):
        with pytest.raises(InvalidError, match=message):
            store.declare(ORDERS, wrong)


def test_a_rebuilt_view_keeps_its_indexes_and_search(shop: Shop) -> None:
    shop.put(order(1, "tea"))
    generations = Generations(shop.store)
    requested = generations.request_rebuild("orders")
    shop.store.declare(ViewShape(name=requested.name, key=ORDERS.key, columns=ORDERS.columns), ACCESS)
    shop.store.commit_rows(requested.name, table(order(1, "cocoa"), order(2, "tea")), run="2", batch=0)
    generations.swap(requested)
    shop.store.declare(ORDERS, ACCESS)
    assert ids(shop.orders.search("tea")) == [2]
    shop.store.commit_rows("orders", table(order(3, "tea")), run="2", batch=1)
    assert sorted(ids(shop.orders.search("tea"))) == [2, 3]


def test_a_lookup_by_key_after_a_rebuild_with_other_columns(shop: Shop) -> None:
    shop.put(order(1, "tea"))
    assert shop.orders.get(1) is not None
    generations = Generations(shop.store)
    requested = generations.request_rebuild("orders")
    shape = ViewShape(name=requested.name, key=("id",), columns=(Column("id", "bigint"), Column("paid", "string")))
    shop.store.declare(shape)
    rows = pa.table({"id": [1], "paid": ["yes"]})
    shop.store.commit_rows(requested.name, rows, run="2", batch=0)
    generations.swap(requested)
    assert shop.orders.get(1) == {"id": 1, "paid": "yes"}
    assert shop.orders.get(2) is None


# -- search --------------------------------------------------------------------------------------------------


def test_search(shop: Shop) -> None:
    shop.put(
        order(1, "Green Tea", note="from Japan, loose"),
        order(2, "black tea", note="loose"),
        order(3, "café au lait", note=None),
        order(4, None, note="tea tea tea, all of it green"),
        order(5, "it's 100% O'Neil_tea", note='say "tea"'),
    )
    orders = shop.orders
    for text, expected in (
        ("tea", [1, 2, 4, 5]),
        ("TEA green", [1, 4]),
        ('"green tea"', [1]),
        ("gre*", [1, 4]),
        ("tea -loose", [4, 5]),
        ("cafe OR black", [2, 3]),
        ("CAFÉ", [3]),
        ("green OR black loose", [1, 2]),
        ("o'neil", [5]),
        ("100%", [5]),
        ("it's", [5]),
        ("nowhere", []),
    ):
        assert sorted(ids(orders.search(text))) == expected, text
    assert ids(orders.search("green tea", order_by="-id")) == [4, 1]
    assert ids(orders.search("tea"))[0] == 4  # the word three times
    assert ids(orders.search("tea", where=["product ^= black"])) == [2]
    first = orders.search("tea", order_by="id", limit=3)
    assert ids(orders.search("tea", order_by="id", after=first.next)) == [5]
    assert orders.search("tea", limit=2).next is None
    for nothing in ("", " - ", "-tea", '""', "OR"):
        with pytest.raises(InvalidError, match="no word to look for"):
            orders.search(nothing)
    with pytest.raises(InvalidError, match="the limit is 50"):
        orders.search("a " * 51)


def test_the_search_index_follows_the_rows(shop: Shop) -> None:
    shop.put(order(1, "tea"), order(2, "tea"))
    shop.put(order(1, "milk"))
    assert ids(shop.orders.search("tea")) == [2]
    shop.retract(order(2, "tea"))
    assert ids(shop.orders.search("tea")) == []
    shop.store.commit_rows(
        "orders", table(order(7, "tea")), run="another", batch=0
    )  # a new run starts with an empty view
    assert (ids(shop.orders.search("tea")), ids(shop.orders.search("milk"))) == ([7], [])


TEXTS = st.lists(
    st.text(max_size=12) | st.sampled_from(["tea", "green tea", "İstanbul", "straße", "ﬁne"]), max_size=4
)


@given(TEXTS, st.text(max_size=6) | st.sampled_from(["tea*", '"green tea"', "istanbul", "STRASSE", "fine"]))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_text_can_be_written_and_searched(shop: Shop, texts: list[str], search: str) -> None:
    texts = [text.replace("\x00", "") for text in texts]  # PostgreSQL has no such character
    shop.store.commit_rows(
        "orders", table(*(order(n, text) for n, text in enumerate(texts))), run=str(id(texts)), batch=0
    )
    for n, text in enumerate(texts):
        words = text.split()
        if len(words) == 1 and words[0].isalpha() and words[0] != "OR":
            assert n in ids(shop.orders.search(words[0]))
    try:
        shop.orders.search(search)
    except InvalidError as error:
        assert "no word" in str(error)


# -- earlier positions ---------------------------------------------------------------------------------------


def test_rows_as_of_an_earlier_position(shop: Shop) -> None:
    first = shop.put(order(1, "tea"), order(2, "milk", amount=math.inf))
    second = shop.put(order(1, "cocoa"), order(3, "tea"))
    third = shop.retract(order(2, "milk", amount=math.inf))
    shop.put(order(2, "water", amount=-math.inf), order(4, "tea"))
    orders = shop.orders
    assert [(row["id"], row["product"]) for row in orders.rows(as_of=first).rows] == [(1, "tea"), (2, "milk")]
    assert orders.rows(as_of=first).rows[1]["amount"] == "Infinity"
    assert ids(orders.rows(as_of=second)) == [1, 2, 3]
    assert ids(orders.rows(as_of=third)) == [1, 3]
    assert ids(orders.rows(as_of=0)) == []
    assert ids(orders.rows(as_of=second, where=["product = tea"])) == [3]
    assert ids(orders.rows(as_of=second, order_by="-amount", limit=2)) == [2, 3]
    page = orders.rows(as_of=second, order_by="-amount", limit=1)
    assert ids(orders.rows(as_of=second, order_by="-amount", limit=5, after=page.next)) == [3, 1]
    row = orders.get(1, as_of=first)
    assert row is not None and row["product"] == "tea"
    assert orders.get(4, as_of=third) is None
    answer = orders.rows(as_of=second)
    assert (answer.position, ids(orders.rows(as_of=answer.token))) == (second, [1, 2, 3])
    with pytest.raises(InvalidError, match=f"as of position {third + 9}: it is at {third + 2}"):
        orders.rows(as_of=third + 9)
    with pytest.raises(InvalidError, match="the search index has the current rows"):
        shop.store.ask("orders", Question(search="tea", as_of=first))


def test_a_position_older_than_the_history_is_named(shop: Shop) -> None:
    shop.store.declare(ORDERS, Access(history=3))
    for n in range(6):
        shop.put(order(n))
    assert ids(shop.orders.rows(as_of=3)) == [0, 1, 2]
    with pytest.raises(InvalidError, match="position 2: its history goes back to position 3, and it is at 6"):
        shop.orders.rows(as_of=2)


def test_a_rebuilt_view_has_no_history_before_the_rebuild(shop: Shop) -> None:
    before = shop.put(order(1))
    Generations(shop.store).restart("orders")
    shop.store.declare(ORDERS, ACCESS)
    with pytest.raises(InvalidError, match="history goes back to position 2"):
        shop.orders.rows(as_of=before)
    assert ids(shop.orders.rows(as_of=before + 1)) == []
    shop.store.commit_rows("orders", table(order(8)), run="2", batch=0)
    assert ids(shop.orders.rows(as_of=before + 1)) == []


STEPS = st.lists(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([None, "tea", "milk", "a b"]), st.sampled_from([1, 1, -1])),
        max_size=5,
    ),
    max_size=6,
)
QUESTIONS = st.tuples(
    st.sampled_from([None, "product = tea", "product != tea", "amount >= 2", "product ^= a", "paid = true"]),
    st.sampled_from(["id", "-id", "product", "-product,id", "amount", "-price"]),
    st.integers(1, 4),
)


@given(STEPS, st.lists(QUESTIONS, min_size=1, max_size=3))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_rows_as_of_every_position_are_the_rows_read_then(
    new_location: Callable[[], Path | str], open_store: OpenStore, steps: Any, questions: Any
) -> None:
    store = open_store(new_location())
    store.declare(ORDERS, ACCESS)
    reader = ViewReader(store, "orders", SystemClock())

    def answers(as_of: int | None) -> list[Any]:
        return [
            reader.rows(where=[where] if where else [], order_by=by, limit=limit, as_of=as_of).rows
            for where, by, limit in questions
        ]

    then: dict[int, list[Any]] = {0: answers(None)}
    for batch, rows in enumerate(steps):
        written = table(*(order(id, product) for id, product, _ in rows))
        store.commit_rows("orders", written, run="r", batch=batch, signs=[sign for *_, sign in rows])
        then[store.position("orders")] = answers(None)
    for position, expected in then.items():
        assert answers(position) == expected
    store.close()


# -- freshness -----------------------------------------------------------------------------------------------


def test_a_view_that_has_reached_the_state_answers_at_once(shop: Shop) -> None:
    shop.put(order(1), offsets={"orders": {"0": 18, "1": 3}})
    for at_least in (1, "1", "orders:0:17", "orders:0:17,orders:1:2", {"orders": {0: 17, 1: 2}}):
        assert shop.orders.get(1, at_least=at_least, timeout_s=0) is not None
    assert ids(shop.orders.rows(at_least=shop.orders.rows().token)) == [1]


def test_a_reader_waits_until_the_view_has_reached_the_state(shop: Shop) -> None:
    shop.put(order(1), offsets={"orders": {"0": 18}})
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(shop.orders.get(2, at_least={"orders": {0: 18}})))
    waiting.start()
    shop.put(order(2), offsets={"orders": {"0": 19}})
    waiting.join(20)
    assert found[0]["id"] == 2


def test_a_timeout_names_the_state_of_the_view(shop: Shop) -> None:
    with pytest.raises(UnavailableError, match="the last records it has seen are none"):
        shop.orders.get(1, at_least="orders:0:0", timeout_s=0)
    shop.put(order(1), offsets={"orders": {"0": 18}})
    with pytest.raises(UnavailableError, match=r"has not seen orders:0:18 within 0 s.*position 1.*orders:0:17"):
        shop.orders.get(1, at_least="orders:0:18", timeout_s=0)
    with pytest.raises(UnavailableError, match="has not seen position 2"):
        shop.orders.rows(at_least=2, timeout_s=0)
    with pytest.raises(InvalidError, match="it reads orders, and not 'clicks'"):
        shop.orders.rows(at_least="clicks:0:1", timeout_s=0)
    with pytest.raises(InvalidError, match="expected a position, or TOPIC:PARTITION:OFFSET"):
        shop.orders.rows(at_least="orders:0:x")
    with pytest.raises(InvalidError, match="belongs to another store"):
        shop.orders.rows(at_least="00000000-1")


def test_a_batch_without_rows_records_its_offsets(shop: Shop) -> None:
    with pytest.raises(UnavailableError, match="has not seen orders:0:4"):
        shop.orders.wait("orders:0:4", timeout_s=0)
    shop.put(offsets={"orders": {"0": 5}})
    shop.orders.wait("orders:0:4", timeout_s=0)
    assert shop.orders.rows(at_least="orders:0:4", timeout_s=0).rows == []
    with pytest.raises(UnavailableError, match=r"has not seen orders:0:5.*orders:0:4"):
        shop.orders.wait("orders:0:5", timeout_s=0)


# -- subscribing ---------------------------------------------------------------------------------------------


def subscribe(shop: Shop, token: str | None = None) -> list[Any]:
    return list(shop.orders.subscribe(token, silent_s=0))


def test_a_subscription_sends_rows_then_changes_and_resumes(shop: Shop) -> None:
    shop.put(order(1), order(2))
    events = shop.orders.subscribe(silent_s=5)
    kinds = [next(events) for _ in range(4)]
    assert [event.kind for event in kinds] == [EventKind.RESET, EventKind.ROW, EventKind.ROW, EventKind.READY]
    assert [event.row["id"] for event in kinds[1:3] if event.row] == [1, 2]
    shop.put(order(1, "milk"))
    shop.retract(order(2))
    one, two = next(events), next(events)
    assert one.change is not None and two.change is not None
    assert (one.change.op, one.change.before["product"], one.change.after["product"]) == ("u", "tea", "milk")
    assert (two.change.op, two.change.key, two.change.after) == ("d", (2,), None)
    assert [event.change for event in subscribe(shop, one.token)] == [two.change]
    assert subscribe(shop, two.token) == []
    assert [event.change for event in subscribe(shop, kinds[3].token)] == [one.change, two.change]


def test_all_rows_of_a_subscription_are_as_of_one_position(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.store.subscription.PAGE_ROWS", 2)
    shop.put(*(order(n) for n in range(6)))
    events = shop.orders.subscribe(silent_s=0)
    seen = [next(events) for _ in range(3)]
    shop.put(*(order(n, "changed") for n in range(6)), order(6))
    seen += events
    rows = [event.row for event in seen if event.row]
    assert [(row["id"], row["product"]) for row in rows] == [(n, "tea") for n in range(6)]
    assert [event.change.position for event in seen if event.change] == list(range(7, 14))


def test_a_subscriber_that_reconnects_too_late_is_reset(shop: Shop) -> None:
    shop.store.declare(ORDERS, Access(history=2))
    shop.put(order(1))
    (*_, ready) = subscribe(shop)
    for n in range(4):
        shop.put(order(n))
    assert [event.kind for event in subscribe(shop, ready.token)] == [
        EventKind.RESET,
        *[EventKind.ROW] * 4,
        EventKind.READY,
    ]
    assert subscribe(shop, "00000000-5")[0].kind is EventKind.RESET
    with pytest.raises(InvalidError, match="cannot read 'x' as a position"):
        subscribe(shop, "x")


def test_a_subscriber_slower_than_the_history_starts_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.store.subscription.PAGE_ROWS", 2)
    shop.store.declare(ORDERS, Access(history=2))
    shop.put(*(order(n) for n in range(4)))
    events = shop.orders.subscribe(silent_s=0)
    seen = [next(events) for _ in range(2)]
    shop.put(*(order(n, "milk") for n in range(4)))
    seen += events
    last = max(n for n, event in enumerate(seen) if event.kind is EventKind.RESET)
    assert [event.row["product"] for event in seen[last:] if event.row] == ["milk"] * 4


@given(STEPS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_rows_and_changes_add_up_to_the_view(
    new_location: Callable[[], Path | str], open_store: OpenStore, steps: Any
) -> None:
    store = open_store(new_location())
    store.declare(ORDERS, Access(history=4))
    reader = ViewReader(store, "orders", SystemClock())
    held: dict[int, Any] = {}
    token: str | None = None
    for batch, rows in enumerate(steps):
        written = table(*(order(id, product) for id, product, _ in rows))
        store.commit_rows("orders", written, run="r", batch=batch, signs=[sign for *_, sign in rows])
        if batch % 2:
            continue
        for event in reader.subscribe(token, silent_s=0):
            token = event.token or token
            if event.kind is EventKind.RESET:
                held.clear()
            elif event.row is not None:
                held[event.row["id"]] = event.row
            elif event.change is not None and event.change.after is None:
                del held[event.change.key[0]]
            elif event.change is not None:
                held[event.change.key[0]] = event.change.after
        assert list(dict(sorted(held.items())).values()) == reader.rows().rows
    store.close()


# -- the reader ----------------------------------------------------------------------------------------------


def test_views_are_found_by_name(shop: Shop, location: Path | str) -> None:
    shop.put(order(1))
    if isinstance(location, Path):
        (location.parent / "views.db").symlink_to(location)
        location = location.parent
    with Views(location) as views:
        row = views["orders"].get(1)
        assert row is not None and views.names() == ["orders"]
        with pytest.raises(InvalidError, match=r"there is no view 'sales' in .*; it has: orders"):
            views["sales"]


def test_a_directory_without_views(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="does not exist, or has no views"):
        Views(tmp_path)


def test_a_server_without_views_and_an_unreachable_one(postgres: Any) -> None:
    with pytest.raises(InvalidError, match="cannot read views"):
        Views(f"{postgres.dsn}?schema=nowhere")
    with pytest.raises(UnavailableError, match="cannot connect to PostgreSQL"):
        Views("postgresql://postgres:secret@127.0.0.1:1/postgres")
