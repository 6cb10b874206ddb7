"""`headwater run --once` ends with 0 if all queries succeeded, says what it left out, and fails otherwise.

`tests/spark/pipeline/test_poison_search.py` has the same failure for a destination that refuses every row.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from headwater.store.pipelines.facts import FactStore
from headwater.transmit.broker.embedded import Broker

APP = """
import headwater as hw

app = hw.App("shop")
orders = app.topic("orders", schema="product string, amount string")


{query}
"""

CAST = """
@app.view(orders, key="product")
def amounts(orders):
    return orders.selectExpr("product", "cast(amount as double) as amount")
"""


@pytest.fixture
def run(headwater: Any, broker: Broker, produce: Any, tmp_path: Path) -> Any:
    def run_app(query: str, *amounts: str) -> Any:
        (tmp_path / "shop.py").write_text(APP.format(query=query))
        records = [json.dumps({"product": f"p{n}", "amount": amount}) for n, amount in enumerate(amounts)]
        produce(broker.bootstrap_servers, "orders", [record.encode() for record in records])
        return headwater("run", "shop.py", "--once", "-b", broker.bootstrap_servers)

    return run_app


def test_a_function_that_fails_on_every_row_fails_the_run(run: Any, headwater: Any) -> None:
    result = run(CAST, "x", "y")
    assert result.returncode == 1
    error, hint = result.stderr.splitlines()
    assert error.startswith("error: query 'amounts' failed: ")
    assert "CAST_INVALID_INPUT" in error
    assert "all 2 records of topic 'orders' in batch 0 fail" in error
    assert hint.startswith("hint: fix the function")
    assert "next try in 1 s" in result.stdout
    (pipeline,) = (
        p
        for p in json.loads(headwater("pipeline", "list", "-o", "json").stdout)["pipelines"]
        if p["name"] == "amounts"
    )
    assert (pipeline["state"], "all 2 records" in pipeline["error"]) == ("suspended", True)


def test_pipelines_of_a_stopped_app_are_controlled_at_its_next_start(
    run: Any, headwater: Any, tmp_path: Path
) -> None:
    run(CAST, "1")
    # As after the app was killed, which could not report that it stopped.
    FactStore(tmp_path / ".headwater" / "facts.db").add("amounts", {"state": "running"}, at_ms=1)
    listed = json.loads(headwater("pipeline", "list", "-o", "json").stdout)["pipelines"]
    assert {pipeline["name"]: pipeline["state"] for pipeline in listed}["amounts"] == "stopped"
    assert "amounts will run when the app runs next" in headwater("pipeline", "resume", "amounts").stdout
    assert "amounts will be paused when the app runs next" in headwater("pipeline", "pause", "amounts").stdout
    unknown = headwater("pipeline", "resume", "other")
    assert (unknown.returncode, "there are: amounts, orders.deadletter" in unknown.stderr) == (2, True)
    result = run(CAST, "2", "3")
    assert "query amounts is paused; `headwater pipeline resume amounts` continues it" in result.stdout
    assert "view amounts: 1 row\n" in result.stdout


def test_a_row_on_which_the_function_fails_is_reported(run: Any, headwater: Any) -> None:
    result = run(CAST, "1", "2", "x", "4")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert "view amounts: 3 rows" in lines
    see = "see `headwater deadletter list orders.deadletter`"
    assert f"amounts: 1 record left out because it fails on them; {see}" in lines
    assert "1 excluded" in headwater("pipeline", "list").stdout
