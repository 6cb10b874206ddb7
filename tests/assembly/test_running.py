"""An app that runs in the background of a Python program."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.errors import HeadwaterError, InvalidError, UnavailableError

SCHEMA = "product string, amount double"


def shop() -> hw.App:
    app = hw.App("shop")
    orders = app.topic("orders", schema=SCHEMA)

    @app.view(orders, key="product")
    def latest(orders: Any) -> Any:
        return orders.select("product", "amount")

    return app


@pytest.fixture
def running(spark: Any) -> Iterator[hw.RunningApp]:
    """A running app, on the session of the tests: it keeps its own end from stopping that."""
    with shop().start(spark=spark) as app:
        yield app


def order(product: str, amount: float) -> bytes:
    return json.dumps({"product": product, "amount": amount}).encode()


def test_an_app_runs_in_the_background_and_its_views_are_read(running: hw.RunningApp, produce: Any) -> None:
    produce(running.bootstrap_servers, "orders", [order("tea", 1.5), order("cocoa", 4.0)])
    running.wait_until_seen()
    assert running.view("latest").get("tea") == {"product": "tea", "amount": 1.5}
    produce(running.bootstrap_servers, "orders", [order("tea", 2.5)])
    running.wait_until_seen({"orders": {0: 2}})
    assert [row["amount"] for row in running.view("latest").rows().rows] == [4.0, 2.5]
    running.check()
    assert running.console_url is None
    with pytest.raises(InvalidError, match="no view 'revenue'; it has: latest"):
        running.view("revenue")
    with pytest.raises(InvalidError, match="does not read topic 'other'"):
        running.wait_until_seen({"other": {0: 0}})
    with pytest.raises(UnavailableError, match="view 'latest' lacks records of orders"):
        running.wait_until_seen({"orders": {0: 7}}, timeout_s=0.1)


def test_a_suspended_query_is_reported_where_the_program_waits(spark: Any, produce: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import udf

    @udf("string")
    def fails(product):  # type: ignore[no-untyped-def]
        raise hw.errors.InvalidError("wrong")

    app = hw.App("shop")
    orders = app.topic("orders", schema=SCHEMA)
    app.view(orders, key="product", name="latest")(lambda rows: rows.select(fails("product").alias("product")))
    with app.start(data=tmp_path / "data", spark=spark) as running:
        produce(running.bootstrap_servers, "orders", [order("tea", 1.5)])
        with pytest.raises(HeadwaterError, match="query 'latest' failed: wrong"):
            running.wait_until_seen()
        with pytest.raises(HeadwaterError, match="query 'latest' failed: wrong"):
            running.check()
    assert (tmp_path / "data" / "views.db").exists()


def test_a_run_once_prints_what_the_command_prints(spark: Any, capsys: Any, tmp_path: Path) -> None:
    shop().run(data=tmp_path / "data", listen="127.0.0.1:0", once=True, spark=spark)
    lines = capsys.readouterr().out.splitlines()
    assert "running shop: latest" in lines
    assert lines[-1] == "view latest: 0 rows"


def test_a_temporary_directory_is_removed(spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    running = shop().start(spark=spark)
    assert list(tmp_path.glob("headwater-*/views.db"))
    running.stop()
    running.stop()
    assert not list(tmp_path.glob("headwater-*"))
    shutil.rmtree(tmp_path)
