"""A user's mistake gets one clear message, an exit code, and no traceback."""

import errno
import os
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater import cli
from headwater.transmit.broker.embedded import Broker

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SHOP = """
import headwater as hw
app = hw.App("shop")
orders = app.topic("orders", schema="product string, amount double, at timestamp", event_time="at")

@app.view(orders, key=["product"])
def revenue(orders):
    return orders.groupBy("product").sum({column!r})
"""


def complains(result: "subprocess.CompletedProcess[str]", *words: str, code: int) -> None:
    text = result.stdout + result.stderr
    assert "Traceback" not in text
    assert result.returncode == code, text
    for word in words:
        assert word in text
    assert len([line for line in result.stderr.splitlines() if line.startswith("error: ")]) == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import nowhere_to_be_found", ["app.py, line 1", "ModuleNotFoundError", "nowhere_to_be_found"]),
        ("x = 1\nthis is no python", ["app.py, line 2", "invalid syntax"]),
        ("import headwater as hw\nhw.App('not a name')", ["app.py, line 2", "app name 'not a name'"]),
        ("x = 1", ["found: none"]),
        ("import headwater as hw\na = hw.App('a')\nb = hw.App('b')", ["found: a, b", "--app"]),
        ("import headwater as hw\na = hw.App('a')", ["has no views"]),
    ],
)
def test_app_file_that_cannot_be_used(headwater: Run, tmp_path: Path, source: str, words: list[str]) -> None:
    (tmp_path / "app.py").write_text(source)
    complains(headwater("run", "app.py"), *words, code=2)


def test_app_file_that_does_not_exist(headwater: Run) -> None:
    complains(headwater("run", "nowhere.py"), "nowhere.py", "does not exist", code=2)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1", ["shop.main has no app 'app'", "none"]),
        ("import headwater as hw\nother = hw.App('a')", ["shop.main has no app 'app'", "other"]),
        ("import nowhere_to_be_found", ["cannot import shop.main", "ModuleNotFoundError"]),
        ("import headwater as hw\napp = hw.App('a')", ["has no views"]),
    ],
)
def test_module_that_has_no_app_to_run(headwater: Run, tmp_path: Path, source: str, words: list[str]) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "main.py").write_text(source)
    complains(headwater("run", "shop.main:app"), *words, code=2)


def test_view_that_names_a_missing_column(headwater: Run, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SHOP.format(column="amont"))
    result = headwater("run", "app.py", "--once", "--listen", "127.0.0.1:0")
    complains(result, "cannot build view 'revenue'", "`amont`", "`amount`", code=2)


def test_port_in_use(headwater: Run, tmp_path: Path, broker: Broker) -> None:
    (tmp_path / "app.py").write_text(SHOP.format(column="amount"))
    for arguments in (["broker", "--data", "d"], ["run", "app.py"]):
        result = headwater(*arguments, "--listen", broker.bootstrap_servers)
        complains(result, f"cannot listen on {broker.bootstrap_servers}", "in use", "--listen", code=1)


def test_console_port_in_use(headwater: Run, tmp_path: Path, broker: Broker) -> None:
    (tmp_path / "app.py").write_text(SHOP.format(column="amount"))
    result = headwater("run", "app.py", "--listen", "127.0.0.1:0", "--http", broker.bootstrap_servers)
    complains(result, f"cannot listen on {broker.bootstrap_servers}", "--http", code=1)


def test_data_directory_of_a_running_broker(headwater: Run, tmp_path: Path) -> None:
    with Broker(tmp_path / "d"):
        result = headwater("broker", "--data", "d", "--listen", "127.0.0.1:0")
        complains(result, "another broker is running there", "--data", code=1)


@pytest.mark.parametrize("command", [["run", "app.py"], ["broker"]])
def test_data_directory_that_is_a_file(headwater: Run, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "app.py").write_text(SHOP.format(column="amount"))
    (tmp_path / "data").write_text("")
    complains(headwater(*command, "--data", "data"), "cannot use data directory 'data'", "--data", code=2)


def test_missing_topic_without_auto_creation(headwater: Run, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SHOP.format(column="amount"))
    with Broker(auto_create_topics_enable=False) as broker:
        result = headwater("run", "app.py", "--bootstrap-servers", broker.bootstrap_servers)
        complains(result, "topic 'orders' does not exist", "headwater topic create orders", code=2)


def test_no_broker_at_the_address(headwater: Run, tmp_path: Path, free_port: int) -> None:
    result = headwater("topic", "list", "-b", f"127.0.0.1:{free_port}")
    complains(
        result, f"cannot reach a broker at 127.0.0.1:{free_port}", "start one with `headwater broker`", code=1
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["broker", "--listen", "9092"], ["--listen '9092'", "host:port"]),
        (["broker", "--durability", "perhaps"], ["fsync, interval, never"]),
        (["topic", "list", "-b", "nonsense"], ["'nonsense'", "host:port"]),
        (["run", "app.py", "--conf", "spark.x"], ["--conf 'spark.x'", "KEY=VALUE"]),
        (["view", "rows", "revenue"], ["directory '.headwater' does not exist", "--data"]),
        (["view", "rows", "revenue", "--data", "."], ["does not exist", "run the app first"]),
    ],
)
def test_wrong_option(headwater: Run, arguments: list[str], words: list[str]) -> None:
    complains(headwater(*arguments), *words, code=2)


def test_unknown_view_lists_the_views(headwater: Run, tmp_path: Path, store_with_a_view: Any) -> None:
    complains(headwater("view", "rows", "nothing", "--data", tmp_path), "no view 'nothing'", "revenue", code=2)
    complains(headwater("view", "rows", "revenue", "--order-by", "x", "--data", tmp_path), "no column 'x'", code=2)
    complains(headwater("view", "get", "revenue", "a", "b", "c", "--data", tmp_path), "2 columns", code=2)


def test_rebuild_of_an_unknown_view(headwater: Run, tmp_path: Path, store_with_a_view: Any) -> None:
    complains(headwater("rebuild", "nothing", "--data", tmp_path), "no view has this name", "revenue", code=2)
    complains(headwater("rebuild", "revenue", "--data", tmp_path / "empty"), "run the app first", code=2)


def test_rebuild_of_a_stopped_app_is_recorded(headwater: Run, tmp_path: Path, store_with_a_view: Any) -> None:
    requested = headwater("rebuild", "revenue", "--data", tmp_path)
    assert "when the app runs next" in requested.stdout
    again = headwater("rebuild", "revenue", "--from", "now", "--data", tmp_path)
    assert "the first record it has not read" in again.stdout


@pytest.fixture
def store_with_a_view(tmp_path: Path) -> None:
    from headwater.store.shapes import ViewShape
    from headwater.store.values.column_types import Column
    from headwater.store.views import ViewStore

    columns = (Column("product", "string"), Column("window", "string"))
    ViewStore(tmp_path / "views.db").declare(ViewShape(name="revenue", key=("product", "window"), columns=columns))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "offsets/17"),
        sqlite3.OperationalError("database or disk is full"),
        RuntimeError("An error occurred while calling o1.start.\n: java.io.IOException: No space left on device"),
    ],
)
def test_a_full_disk_is_reported_without_traceback(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def meet() -> None:
        raise error

    monkeypatch.setattr(cli, "app", meet)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: cannot continue, the disk is full: ")
    assert lines[0].endswith(str(error).splitlines()[-1].strip())
    assert lines[1:] == ["hint: free some space and start again: it continues where it stopped"]


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def meet() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(cli, "app", meet)
    with pytest.raises(OSError, match="Input/output error"):
        cli.main()
