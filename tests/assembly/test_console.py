"""The parts of an app without Spark: stores, console, and their order."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.assembly.console import open_console
from headwater.assembly.log import open_log
from headwater.assembly.run import pipeline_lock
from headwater.assembly.settings import RunSettings
from headwater.assembly.store import open_stores
from headwater.errors import ConflictError


def test_the_console_shows_the_topics_of_the_log_before_spark_starts(tmp_path: Path) -> None:
    app, lines = hw.App("shop"), list[str]()
    app.topic("orders", partitions=2)
    settings = RunSettings(
        data=tmp_path, bootstrap_servers=None, listen=("127.0.0.1", 0), http=("127.0.0.1", 0), master="local[1]"
    )
    with (
        open_log(app, settings, lines.append) as log,
        open_stores(app, settings) as stores,
        open_console(app, log, stores, settings, lines.append) as url,
    ):
        assert lines[-1] == f"console at {url}"
        topics: list[dict[str, Any]] = []
        while not topics:  # the log is sampled in a thread, once a second
            with urllib.request.urlopen(f"{url}/api/v1/topics", timeout=10) as response:
                topics = json.load(response)["topics"]
        assert [topic["name"] for topic in topics] == ["orders"]
    assert (tmp_path / "views.db").exists()
    assert (tmp_path / "facts.db").exists()


def test_no_console_without_an_address(tmp_path: Path) -> None:
    app = hw.App("shop")
    settings = RunSettings(
        data=tmp_path, bootstrap_servers=None, listen=("127.0.0.1", 0), http=None, master="local[1]"
    )
    with (
        open_log(app, settings, print) as log,
        open_stores(app, settings) as stores,
        open_console(app, log, stores, settings, print) as url,
    ):
        assert url is None


def test_one_pipeline_per_data_directory(tmp_path: Path) -> None:
    with pipeline_lock(tmp_path), pytest.raises(ConflictError, match="another pipeline"), pipeline_lock(tmp_path):
        pass
    with pipeline_lock(tmp_path):  # released, so it can be taken again
        pass
