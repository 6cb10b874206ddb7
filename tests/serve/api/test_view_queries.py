"""Queries over HTTP: filters, pages, full-text search, earlier positions, freshness, and invalid queries."""

import threading
from urllib.parse import quote, urlencode

import pytest

from headwater.store.shapes import Access

ROWS = "/api/v1/views/revenue/rows"


def query(caller, path=ROWS, **parameters):
    return caller.get(f"{path}?{urlencode(parameters, doseq=True)}")


def products(found):
    return [row["product"] for row in found["rows"]]


def test_filters_order_and_pages(shop, caller):
    shop.sell(("tea", 0, 3.0), ("green tea", 0, 9.0), ("green tea", 1, 1.0), ("milk", 5, 4.0))
    _, found = query(caller, where=["revenue >= 3", "product ^= green"])
    assert products(found) == ["green tea"]
    _, found = query(caller, where="window.start >= 2026-11-15T12:01:00Z", order_by="-window.start")
    assert products(found) == ["milk", "green tea"]
    _, first = query(caller, order_by="-revenue", limit=3)
    _, second = query(caller, order_by="-revenue", limit=3, after=first["next"])
    assert products(first) + products(second) == ["green tea", "milk", "tea", "green tea"]
    assert second["next"] is None
    _, backwards = query(caller, order_by="revenue", descending="true", limit=3)
    assert backwards["rows"] == first["rows"]


def test_rows_as_of_an_earlier_position(shop, caller):
    shop.sell(("tea", 0, 3.0))
    _, then = query(caller)
    shop.sell(("tea", 0, 8.0))
    _, found = query(caller, as_of=then["token"])
    assert (found["rows"], found["position"]) == (then["rows"], 1)
    _, found = caller.get(f"{ROWS}/tea?as_of=1")
    assert found["rows"] == then["rows"]


def test_search(shop, caller):
    shop.views.declare(shop.views.shape("revenue"), Access(search=("product",), indexes=(("revenue",),)))
    [view] = caller.get("/api/v1/views")[1]["views"]
    assert (view["search"], view["indexes"], view["history"]) == (["product"], [["revenue"]], 10_000)
    shop.sell(("Green Tea", 0, 3.0), ("black tea", 0, 9.0))
    path = "/api/v1/views/revenue/search"
    _, found = query(caller, path, q="green tea")
    assert products(found) == ["Green Tea"]
    _, found = query(caller, path, q="tea", order_by="-revenue", where="revenue > 1")
    assert products(found) == ["black tea", "Green Tea"]
    assert query(caller, path)[0] == 400


def test_response_waits_until_the_view_has_seen_a_record(shop, caller):
    responses = []
    waiting = threading.Thread(target=lambda: responses.append(query(caller, at_least=1)))
    waiting.start()
    shop.sell(("tea", 0, 3.0))
    waiting.join(20)
    assert responses[0][0] == 200
    assert products(responses[0][1]) == ["tea"]
    code, body = query(caller, at_least="orders:0:5", timeout="0")
    assert code == 503
    assert "has not seen orders:0:5 within 0 s" in body["error"]["message"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"where": "revenue"}, "cannot read the condition"),
        ({"where": "nothing = 1"}, "has no column 'nothing'"),
        ({"where": "revenue > much"}, "the column is double"),
        ({"order_by": "-nothing"}, "has no column 'nothing'"),
        ({"order_by": ","}, "cannot sort by"),
        ({"limit": "0"}, "limit must be a whole number from 1 to 10000"),
        ({"after": "x"}, "expected the `next` of an answer"),
        ({"as_of": "soon"}, "cannot read 'soon' as a position"),
        ({"as_of": "7"}, "as of position 7: it is at 0"),
        ({"as_of": "abc-1"}, "belongs to another store"),
        ({"at_least": "orders:0"}, "expected a position, or TOPIC:PARTITION:OFFSET"),
        ({"at_least": "1", "timeout": "100"}, "timeout must be seconds from 0 to 60"),
        ({"descending": "yes"}, "descending must be true or false"),
        ({"key": ["a", "b", "c"]}, "its key has 2 columns"),
        ({"q": "tea"}, "cannot be searched"),
    ],
)
def test_invalid_query_is_rejected_with_its_reason(caller, parameters, message):
    code, body = query(caller, **parameters)
    assert code == 400
    assert message in body["error"]["message"]


def test_invalid_token_and_unknown_view(caller):
    assert caller.get("/api/v1/views/revenue/subscribe?token=x")[0] == 400
    assert caller.get("/api/v1/views/sales/subscribe")[0] == 404
    assert caller.get(f"/api/v1/views/sales/search?q={quote('a b')}")[0] == 404
