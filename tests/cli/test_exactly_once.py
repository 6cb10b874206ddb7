"""The README's program and its processes are killed while it works; its view stays exact."""

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from headwater.errors import InvalidError
from headwater.record import EARLIEST, LATEST, TopicPartition
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk

VICTIMS = ["Java", "workers"]
APART = """

@app.view(orders, key="order_id", pipeline="apart")
def placed(orders):
    return orders.select("order_id", "amount")
"""
"""A view that Spark runs as a query of its own, and so with workers in Python."""

PATIENCE_S = 150.0
PRODUCTS = ["tea", "coffee", "cocoa"]
START = datetime(2026, 1, 1, tzinfo=UTC)

Totals = dict[tuple[str, str], tuple[float, int]]


class Shop:
    """Produces orders, some out of order and some invalid, with a client that survives restarts of the broker."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._random = random.Random(7)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged = 0
        self.unsent = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.unsent = self._producer.flush(PATIENCE_S)

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.005):
            self._producer.produce("orders", value=self._order(number), on_delivery=self._on_delivery)
            self._producer.poll(0)
            number += 1

    def _on_delivery(self, error: object, message: object) -> None:
        self.acknowledged += error is None

    def _order(self, number: int) -> bytes:
        if self._random.random() < 0.02:
            return b"this is no order"
        at = START + timedelta(seconds=number / 10 - self._random.expovariate(1 / 20))
        order = {
            "order_id": str(number),
            "product": self._random.choice(PRODUCTS),
            "amount": self._random.randint(1, 400) / 4,  # quarters add up exactly, in any order
            "placed_at": at.isoformat(),
        }
        return json.dumps(order).encode()


def test_view_is_exact_after_kills(start: Any, free_port: int, tmp_path: Path) -> None:
    app = tmp_path / "shop.py"
    app.write_text((Path(__file__).parents[2] / "src" / "headwater" / "demo" / "shop.py").read_text() + APART)
    data = tmp_path / "data"
    options = (app, "--data", data, "--listen", f"127.0.0.1:{free_port}", "--http", "127.0.0.1:0")
    output = tmp_path / "output.txt"
    shop = Shop(f"127.0.0.1:{free_port}")

    with output.open("a") as file:
        process: subprocess.Popen[str] = start("run", *options, stdout=file.fileno())
    shop.start()
    try:
        for victim in VICTIMS:
            wait_for_progress(data, process, output)
            kill_below(process, b"java" if victim == "Java" else b"pyspark.daemon")
        wait_for_progress(data, process, output)
        assert "Spark's Java process has ended by SIGKILL" in output.read_text()
    finally:
        shop.stop()
    os.kill(process.pid, signal.SIGKILL)  # Then the app itself, with work in progress.
    process.wait()

    # A last run processes the rest; the expected view is computed from the log.
    finished: subprocess.Popen[str] = start("run", *options, "--once")
    text, _ = finished.communicate(timeout=PATIENCE_S)
    assert finished.returncode == 0, text
    expected, broken = recompute(data)
    assert totals_of(ViewStore(data / "views.db", read_only=True)) == expected
    assert ViewStore(data / "views.db", read_only=True).counters() == {"orders.deadletter": len(broken)}
    assert origins(data) == broken
    assert shop.unsent == 0
    assert sum(orders for _, orders in expected.values()) + len(broken) >= shop.acknowledged > 0


def kill_below(process: "subprocess.Popen[str]", name: bytes) -> None:
    """Kill the app's child processes whose command line contains a word."""
    killed = 0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command, stat = (folder / "cmdline").read_bytes(), (folder / "stat").read_text()
            session = int(stat.rpartition(")")[2].split()[3])
            if session == process.pid and int(folder.name) != process.pid and name in command:
                os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
    assert killed > 0


def wait_for_progress(data: Path, process: "subprocess.Popen[str]", output: Path) -> None:
    """Wait until the view has committed two more batches."""
    deadline = time.monotonic() + PATIENCE_S
    goal = batch_of(data) + 2
    while batch_of(data) < goal:
        assert process.poll() is None, f"the app ended by itself: {output.read_text()}"
        assert time.monotonic() < deadline, f"the view makes no progress: {output.read_text()}"
        time.sleep(0.1)


def batch_of(data: Path) -> int:
    try:
        store = ViewStore(data / "views.db", read_only=True)
    except InvalidError:
        return -1  # no batch yet
    progress = store.progress("revenue")
    store.close()
    return -1 if progress is None else progress.batch


def totals_of(store: ViewStore) -> Totals:
    rows = store.rows("revenue", limit=100_000)
    return {(r["product"], r["window"]["start"]): (r["revenue"], r["orders"]) for r in rows}


def recompute(data: Path) -> tuple[Totals, list[int]]:
    """Compute the expected view from the log in plain Python, and the offsets of invalid records."""
    amounts: dict[tuple[str, str], list[float]] = defaultdict(list)
    broken = []
    for record in read(data, "orders"):
        try:
            order = json.loads(record.value)
        except ValueError:
            broken.append(record.offset)
            continue
        start = datetime.fromisoformat(order["placed_at"]).replace(second=0, microsecond=0)
        amounts[order["product"], start.strftime("%Y-%m-%dT%H:%M:%S.%fZ")].append(order["amount"])
    return {key: (sum(some), len(some)) for key, some in amounts.items()}, broken


def origins(data: Path) -> list[int]:
    return [int(dict(letter.headers)["headwater.offset"]) for letter in read(data, "orders.deadletter")]


def read(data: Path, topic: str) -> list[Any]:
    tp = TopicPartition(topic, 0)
    found = []
    with Broker(data / "broker") as broker, Client(broker.bootstrap_servers) as client:
        at, end = client.offsets([tp], EARLIEST)[tp], client.offsets([tp], LATEST)[tp]
        while at < end:
            batches, at = client.read(tp, at)
            found += [record for place, _ in walk(batches) for record in decode_batch(batches, place)]
    return found
