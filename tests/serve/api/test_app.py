"""The HTTP API, called over TCP."""

import logging

import pyarrow as pa
import pytest

from headwater.errors import UnavailableError
from headwater.record import TopicPartition
from headwater.serve.api.app import create_app
from headwater.serve.live.group_lag import GroupLag
from headwater.serve.server import HttpServer
from headwater.store.late import LateRow
from headwater.store.pipelines.facts import FactKind
from headwater.store.shapes import ViewShape
from headwater.store.values.column_types import Column
from headwater.transmit.client.lag import GroupPosition

INSTANT = pa.timestamp("us", tz="UTC")
WINDOW = pa.struct([("start", INSTANT), ("end", INSTANT)])


def test_status_contains_what_the_other_addresses_return(shop, caller):
    shop.sell(("tea", 0, 3.5))
    shop.facts.add("revenue", {"state": "running", "batchId": 0}, at_ms=1)
    shop.readers = [GroupLag(name="readers", kind="classic", state="Empty", positions={})]
    shop.groups.sample()
    _, status = caller.get("/api/v1/status")
    assert status["app"] == "shop"
    for part in ("topics", "groups", "pipelines", "views"):
        assert caller.get(f"/api/v1/{part}") == (200, {part: status[part]})
        assert len(status[part]) == 1


def test_every_route_is_described(shop, caller):
    _, description = caller.get("/api/v1/openapi.json")
    routes = {route.path.replace("{key:path}", "{key}") for route in create_app(shop.sources).routes}
    assert set(description["paths"]) == routes
    assert description["openapi"].startswith("3.1")


def test_topics_have_sizes(shop, caller):
    shop.topics.sample()
    _, body = caller.get("/api/v1/topics")
    [orders] = body["topics"]
    assert (orders["name"], orders["partitions"], orders["records"], orders["stale"]) == ("orders", 2, 30, False)
    assert orders["partitionOffsets"][1] == {"partition": 1, "startOffset": 5, "endOffset": 25}


def test_groups_have_their_lag_and_the_records_at_risk(shop, caller):
    near = GroupPosition(offset=4, end=10, lag_records=6, at_risk_records=3)
    unknown = GroupPosition(offset=5, end=25, lag_records=20, at_risk_records=None)
    positions = {TopicPartition("orders", 1): unknown, TopicPartition("orders", 0): near}
    shop.readers = [GroupLag(name="slow", kind="classic", state="Empty", positions=positions)]
    shop.groups.sample()
    _, body = caller.get("/api/v1/groups")
    [slow] = body["groups"]
    assert (slow["name"], slow["type"], slow["state"]) == ("slow", "classic", "Empty")
    assert (slow["lagRecords"], slow["atRiskRecords"]) == (26, 3)
    assert slow["positions"] == [
        {"topic": "orders", "partition": 0, "offset": 4, "endOffset": 10, "lagRecords": 6, "atRiskRecords": 3},
        {"topic": "orders", "partition": 1, "offset": 5, "endOffset": 25, "lagRecords": 20, "atRiskRecords": None},
    ]


def test_groups_are_kept_while_the_log_is_unavailable(shop, caller):
    def unavailable():
        raise UnavailableError("the log is unavailable")

    shop.readers = [GroupLag(name="slow", kind="classic", state="Empty", positions={})]
    shop.groups.sample()
    shop.groups._read_groups = unavailable
    shop.groups.sample()
    _, body = caller.get("/api/v1/groups")
    assert [group["name"] for group in body["groups"]] == ["slow"]


def test_an_app_without_a_log_has_no_topics(shop, caller):
    shop.topics = None
    with HttpServer(create_app(shop.sources), "127.0.0.1", 0) as server:
        caller.url = server.url
        assert caller.get("/api/v1/topics") == (200, {"topics": []})


def test_pipeline_takes_each_number_from_the_newest_fact_that_has_it(shop, caller):
    first = {
        "state": "running",
        "batchId": 3,
        "numInputRows": 120,
        "inputRowsPerSecond": 60.0,
        "processedRowsPerSecond": 350.0,
        "durationMs": {"triggerExecution": 340, "addBatch": 200},
        "behindRecords": 17,
        "error": None,
    }
    shop.facts.add("revenue", {"state": "starting"}, at_ms=1000)
    shop.facts.add("revenue", first, at_ms=2000)
    shop.facts.add("revenue", {"state": "running", "batchId": 4, "behindRecords": 0}, at_ms=3000)
    shop.facts.add("revenue", {"state": "suspended", "error": "no such column"}, at_ms=4000)
    _, body = caller.get("/api/v1/pipelines")
    assert body["pipelines"] == [
        {
            "name": "revenue",
            "state": "suspended",
            "batchId": 4,
            "numInputRows": 120,
            "inputRowsPerSecond": 60.0,
            "processedRowsPerSecond": 350.0,
            "batchDurationMs": 340,
            "behindRecords": 0,
            "catchUpSeconds": 0.0,
            "leftOutRecords": None,
            "lateRows": None,
            "ignoredRows": None,
            "deadLetters": None,
            "isolating": None,
            "lastProgressMs": 3000,
            "error": "no such column",
            "history": [
                {"atMs": 2000, "batchId": 3, "numInputRows": 120, "durationMs": 340},
                {"atMs": 3000, "batchId": 4, "numInputRows": None, "durationMs": None},
            ],
        }
    ]


def test_infinite_rate_is_left_out(shop, caller):
    shop.facts.add("revenue", {"state": "running", "processedRowsPerSecond": 5.0}, at_ms=1)
    shop.facts.add("revenue", {"state": "running", "processedRowsPerSecond": float("inf")}, at_ms=2)
    [pipeline] = caller.get("/api/v1/pipelines")[1]["pipelines"]
    assert pipeline["processedRowsPerSecond"] == 5.0


def test_pipeline_has_no_error_after_a_restart(shop, caller):
    shop.facts.add("revenue", {"state": "suspended", "error": "no such column"}, at_ms=1)
    shop.facts.add("revenue", {"state": "starting"}, at_ms=2)
    [pipeline] = caller.get("/api/v1/pipelines")[1]["pipelines"]
    assert (pipeline["state"], pipeline["error"], pipeline["history"]) == ("starting", None, [])


def test_pipeline_history_is_the_last_sixty_batches(shop, caller):
    for batch in range(70):
        shop.facts.add("revenue", {"state": "running", "batchId": batch}, at_ms=batch)
    [pipeline] = caller.get("/api/v1/pipelines")[1]["pipelines"]
    assert [point["batchId"] for point in pipeline["history"]] == list(range(10, 70))


def test_views_have_shape_size_and_position(shop, caller):
    shop.sell(("tea", 0, 3.5), ("coffee", 0, 4.0))
    shop.sell(("tea", 0, 7.0))
    [view] = caller.get("/api/v1/views")[1]["views"]
    assert (view["name"], view["key"], view["rows"], view["position"]) == ("revenue", ["product", "window"], 2, 3)
    assert view["columns"][2] == {"name": "revenue", "type": "double"}


def test_rows_by_key_order_and_limit(shop, caller):
    shop.sell(("tea", 0, 3.5), ("coffee", 0, 9.0), ("tea", 1, 1.0))

    def revenues(query: str) -> list[float]:
        status, body = caller.get(f"/api/v1/views/revenue/rows{query}")
        assert (status, body["view"], body["position"]) == (200, "revenue", 3)
        return [row["revenue"] for row in body["rows"]]

    assert revenues("") == [9.0, 3.5, 1.0]
    assert revenues("?key=tea") == [3.5, 1.0]
    assert revenues("?order_by=revenue&descending=true") == [9.0, 3.5, 1.0]
    assert revenues("?order_by=revenue&limit=1") == [1.0]
    assert revenues("?key=water") == []


def test_rows_of_a_key_with_a_slash(shop, caller):
    shop.sell(("tea/green", 0, 3.5), ("tea", 0, 1.0))
    status, body = caller.get("/api/v1/views/revenue/rows/tea%2Fgreen")
    assert (status, [row["revenue"] for row in body["rows"]]) == (200, [3.5])


def test_rows_of_a_whole_key(shop, caller):
    shop.views.declare(
        ViewShape(
            name="stock",
            key=("shop", "item"),
            columns=(Column("shop", "string"), Column("item", "int"), Column("left", "bigint")),
        )
    )
    table = pa.table({"shop": ["a b", "a b"], "item": pa.array([1, 2], pa.int32()), "left": [10, 20]})
    shop.views.commit_rows("stock", table, run="r", batch=0)
    assert caller.get("/api/v1/views/stock/rows/a%20b/2")[1]["rows"] == [{"shop": "a b", "item": 2, "left": 20}]
    assert len(caller.get("/api/v1/views/stock/rows/a%20b")[1]["rows"]) == 2
    assert caller.get("/api/v1/views/stock/rows?key=a+b&key=1")[1]["rows"][0]["left"] == 10


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("/api/v1/views/nope/rows", 404, "there is no view 'nope'; there are: revenue"),
        ("/api/v1/views/nope/subscribe", 404, "there is no view 'nope'; there are: revenue"),
        ("/api/v1/views/revenue/changes", 404, "GET /api/v1/views/revenue/changes: not found"),
        ("/api/v1/views/revenue/rows/water", 404, "view 'revenue' has no row whose key starts with ['water']"),
        ("/api/v1/nope", 404, "GET /api/v1/nope: not found"),
        ("/api/v1/views/revenue/rows?limit=0", 400, "limit must be a whole number from 1 to 10000, not '0'"),
        ("/api/v1/views/revenue/rows?limit=1_0", 400, "limit must be a whole number from 1 to 10000, not '1_0'"),
        ("/api/v1/views/revenue/rows?descending=yes", 400, "descending must be true or false, not 'yes'"),
        (
            "/api/v1/views/revenue/rows?order_by=price",
            400,
            "view 'revenue' has no column 'price'; it has: product, window, revenue",
        ),
        (
            "/api/v1/views/revenue/late?after=-1",
            400,
            f"after must be a whole number from 0 to {2**63 - 1}, not '-1'",
        ),
    ],
)
def test_error_messages(caller, path, code, message):
    status, body = caller.get(path)
    assert (status, body["error"]["message"]) == (code, message)


def test_too_many_key_values(caller):
    status, body = caller.get("/api/v1/views/revenue/rows?key=a&key=b&key=c")
    assert status == 400
    assert "its key has 2 columns (product, window)" in body["error"]["message"]


def test_internal_errors_are_logged_and_not_shown(shop, caller, caplog):
    shop.facts.add("revenue", {"durationMs": "not a mapping"}, at_ms=1)
    with caplog.at_level(logging.ERROR):
        status, body = caller.get("/api/v1/pipelines")
    assert (status, body["error"]["message"]) == (500, "internal server error; see the log of the app")
    assert "cannot handle GET /api/v1/pipelines" in caplog.text


def test_late_rows_of_a_view(shop, caller):
    late = LateRow(
        operator="windowed-0",
        key={"product": "tea"},
        window_start=0,
        window_end=60_000_000,
        event_time=1_500_000,
        late_by=2_500,
        reason="expired",
        last_pane=2,
        row={"amount": 3},
    )
    nothing = pa.table({"product": pa.array([], pa.string()), "window": pa.array([], WINDOW), "revenue": []})
    shop.views.commit_rows("revenue", nothing, run="run-1", batch=4, late_rows=[late])
    assert caller.get("/api/v1/views/revenue/late") == (
        200,
        {
            "view": "revenue",
            "rows": [
                {
                    "number": 1,
                    "batchId": 4,
                    "operator": "windowed-0",
                    "key": {"product": "tea"},
                    "window": {"start": "1970-01-01T00:00:00.000000Z", "end": "1970-01-01T00:01:00.000000Z"},
                    "eventTime": "1970-01-01T00:00:01.500000Z",
                    "lateByMs": 2.5,
                    "reason": "expired",
                    "lastPane": 2,
                    "row": {"amount": 3},
                    "reprocessed": False,
                }
            ],
        },
    )
    assert caller.get("/api/v1/views/revenue/late?after=1")[1]["rows"] == []
    [view] = caller.get("/api/v1/views")[1]["views"]
    assert (view["lateRows"], view["lateRowsWaiting"]) == (1, 1)


def test_facts_of_a_pipeline_by_kind(shop, caller):
    shop.facts.add("revenue", {"state": "running", "batchId": 3}, at_ms=1)
    shop.facts.add("revenue", {"batchId": 3, "operators": {}}, at_ms=2, kind=FactKind.OPERATORS)
    _, body = caller.get("/api/v1/pipelines/revenue/facts?kind=operators")
    assert body["facts"] == [{"sequence": 1, "atMs": 2, "batchId": 3, "operators": {}}]
    _, body = caller.get("/api/v1/pipelines/revenue/facts")
    assert body["facts"] == [{"sequence": 1, "atMs": 1, "batchId": 3, "state": "running"}]
    assert caller.get("/api/v1/pipelines/revenue/facts?kind=gossip")[0] == 400
    assert caller.get("/api/v1/pipelines/costs/facts")[0] == 404
