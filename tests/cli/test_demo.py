"""`headwater demo`, as a new user runs it."""

import json
import os
import signal
import urllib.request
from typing import Any


def test_demo_stops_after_some_seconds_with_a_summary(headwater: Any) -> None:
    result = headwater("demo", "--seconds", "1", "--http", "127.0.0.1:0")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    for step in ("log ready at", "console at http://", "the shop is open", "starting Spark", "first result"):
        assert step in result.stdout
    assert "read by Spark into view `revenue`" in result.stdout


def test_demo_serves_the_console_and_its_pipelines_are_controlled_until_ctrl_c(start: Any, headwater: Any) -> None:
    process = start("demo", "--data", "shop", "--http", "127.0.0.1:0")
    lines = []
    while "open http://" not in (lines[-1] if lines else ""):
        line = process.stdout.readline()
        assert line, "".join(lines)
        lines.append(line)
    url = lines[-1].split("open ")[1].split(";")[0].strip()
    with urllib.request.urlopen(f"{url}/api/v1/views/revenue/rows") as response:
        rows = json.load(response)["rows"]
    assert rows
    assert set(rows[0]) == {"product", "window", "revenue", "orders"}
    with urllib.request.urlopen(url) as response:
        assert b"<html" in response.read()
    for command, answer, state in (("pause", "is paused", "paused"), ("resume", "runs again", "starting")):
        result = headwater("pipeline", command, "revenue", "--data", "shop")
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
        assert f"revenue {answer}" in result.stdout
        with urllib.request.urlopen(f"{url}/api/v1/pipelines/revenue/facts") as response:
            assert state in [fact["state"] for fact in json.load(response)["facts"]]
    os.killpg(process.pid, signal.SIGINT)  # like a terminal, which signals the whole process group
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0, rest
    assert "stopped" in rest
    assert "Traceback" not in rest
