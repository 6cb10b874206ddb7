"""Reading views: rows by key while the view is written, and changes to a thousand subscribers.

./dev bench views [SECONDS] [--write]

Rows by key: one process reads random keys of a view of 100,000 rows while another commits a batch of 1,000 changed
rows five times a second. The other side reads and writes a table of the same rows in the same kind of file with
Python's sqlite3 alone: a `select` by primary key. It has no offsets, no rebuilds and no types, so it is an upper
bound rather than an equivalent. PostgreSQL is compared with psycopg in the same way. The sides take turns.

Fan-out: an HTTP server, 1,000 subscribers in another process, and a writer that commits ten changes ten times per
second. Each subscriber must receive every change in order. The latency is the time from the start of a commit
until a subscriber has the change. `--write` writes docs/benchmarks/views.md.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import re
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the repository root, for `support`

import pyarrow as pa
from _report import machine

import headwater as hw
from headwater.store.pipelines.facts import FactStore
from headwater.store.shapes import Access, ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore
from support.postgres import PostgresServer

ROOT = Path(__file__).parents[1]

REPORT = ROOT / "docs" / "benchmarks" / "views.md"
ROWS, BATCH_ROWS, BATCHES_PER_S = 100_000, 1_000, 5
ROUNDS = 3
PAIRS = (
    ("SQLite, a view", "SQLite, plain sqlite3", 10_000),
    ("PostgreSQL, a view", "PostgreSQL, plain psycopg", None),
)
"""A view, the side it is compared with, and the goal in reads per second."""
SUBSCRIBERS, FAN_BATCH, FAN_PER_S = 1_000, 10, 10
SHAPE = ViewShape(
    name="orders",
    key=("id",),
    columns=(
        Column("id", "bigint"),
        Column("product", "string"),
        Column("amount", "double"),
        Column("at", "timestamp"),
    ),
)

Read = Callable[[int], Any]


def rows_of(ids: list[int], amount: float) -> pa.Table:
    at = pa.array([1_767_225_600_000_000 + id for id in ids], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    products = [f"product {id % 1000}" for id in ids]
    return pa.table({"id": ids, "product": products, "amount": [amount] * len(ids), "at": at})


# -- writers, each in its own process ------------------------------------------------------------------------


def paced(stop: Event, write: Callable[[list[int], int], None]) -> None:
    """Write batches of random rows at a fixed rate until `stop` is set."""
    chance, batch = random.Random(1), 1
    due = time.monotonic()
    while not stop.is_set():
        write(chance.sample(range(ROWS), BATCH_ROWS), batch)
        batch += 1
        due += 1 / BATCHES_PER_S
        time.sleep(max(0.0, due - time.monotonic()))


def write_view(location: Path | str, stop: Event) -> None:
    with closing(ViewStore(location)) as store:
        paced(stop, lambda ids, n: _commit(store, rows_of(ids, float(n)), n))


def _commit(store: ViewStore, rows: pa.Table, batch: int) -> None:
    store.commit_rows("orders", rows, run="bench", batch=batch)


def write_sqlite(location: Path | str, stop: Event) -> None:
    db = sqlite3.connect(location, isolation_level=None)
    db.execute("pragma synchronous = full")

    def write(ids: list[int], n: int) -> None:
        db.execute("begin immediate")
        db.executemany("update orders set amount = ? where id = ?", [(float(n), id) for id in ids])
        db.execute("commit")

    paced(stop, write)


def write_postgres(location: Path | str, stop: Event) -> None:
    import psycopg

    with psycopg.connect(str(location)) as db:

        def write(ids: list[int], n: int) -> None:
            with db.cursor() as cursor:
                cursor.executemany("update orders set amount = %s where id = %s", [(float(n), id) for id in ids])
            db.commit()

        paced(stop, write)


# -- rows by key ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    """A reader, and the writer that runs at the same time."""

    name: str
    location: Path | str
    writer: Callable[[Path | str, Event], None]
    open_reader: Callable[[Path | str], Any]


def ours(location: Path | str) -> tuple[Read, Callable[[], None]]:
    # `hw.Views` takes the app's data folder, which holds the file.
    views = hw.Views(location.parent if isinstance(location, Path) else location)
    orders = views["orders"]
    return orders.get, views.close


def plain_sqlite(location: Path | str) -> tuple[Read, Callable[[], None]]:
    db = sqlite3.connect(location, isolation_level=None)
    select = "select id, product, amount, at from orders where id = ?"
    return lambda id: db.execute(select, (id,)).fetchone(), db.close


def plain_postgres(location: Path | str) -> tuple[Read, Callable[[], None]]:
    import psycopg

    db = psycopg.connect(str(location), autocommit=True)
    select = "select id, product, amount, at from orders where id = %s"
    return lambda id: db.execute(select, (id,)).fetchone(), db.close


def fill_view(location: Path | str) -> None:
    with closing(ViewStore(location)) as store:
        store.declare(SHAPE, Access(history=10_000))
        _commit(store, rows_of(list(range(ROWS)), 0.0), 0)


def fill_sqlite(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("pragma journal_mode = wal")
    db.execute("create table orders (id integer primary key, product text, amount real, at text)")
    rows = ((id, f"product {id % 1000}", 0.0, "2026-01-01T00:00:00.000000Z") for id in range(ROWS))
    db.executemany("insert into orders values (?, ?, ?, ?)", rows)
    db.commit()
    db.close()


def fill_postgres(dsn: str) -> None:
    import psycopg

    with psycopg.connect(dsn) as db:
        db.execute("create table orders (id bigint primary key, product text, amount float8, at timestamptz)")
        db.execute(
            "insert into orders select n, 'product ' || n % 1000, 0, timestamptz '2026-01-01' "
            f"from generate_series(0, {ROWS - 1}) n"
        )


def reads_per_second(side: Side, seconds: float) -> float:
    """Return the rows that one process reads by key per second while another writes."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    writer = context.Process(target=side.writer, args=(side.location, stop), daemon=True)
    writer.start()
    time.sleep(1.5)  # until it has started writing
    read, close = side.open_reader(side.location)
    chance = random.Random(2)
    keys = [chance.randrange(ROWS) for _ in range(10_000)]
    for key in keys[:1000]:
        assert read(key) is not None
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for key in keys[count % 9000 : count % 9000 + 100]:
            read(key)
        count += 100
    took = time.perf_counter() - began
    assert writer.is_alive(), "the writer has failed"
    stop.set()
    writer.join(20)
    close()
    return count / took


@contextmanager
def sides(folder: Path) -> Iterator[list[Side]]:
    with PostgresServer(sync=True) as server:
        (folder / "ours").mkdir()
        view, plain = folder / "ours" / "views.db", folder / "plain.db"
        fill_view(view)
        fill_sqlite(plain)
        fill_view(server.dsn)
        fill_postgres(server.dsn)
        yield [
            Side("SQLite, a view", view, write_view, ours),
            Side("SQLite, plain sqlite3", plain, write_sqlite, plain_sqlite),
            Side("PostgreSQL, a view", server.dsn, write_view, ours),
            Side("PostgreSQL, plain psycopg", server.dsn, write_postgres, plain_postgres),
        ]


# -- fan-out -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """The number of subscribers that received every change in order, and the latency of each change."""

    complete: int
    latencies_s: list[float]


def subscribe_all(port: int, changes: int, ready: Connection) -> None:
    """Open a connection for each subscriber and send what they received; runs in its own process."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    ready.send(asyncio.run(_subscribe_all(port, changes, ready)))


async def _subscribe_all(port: int, changes: int, ready: Connection) -> Received:
    started = asyncio.Semaphore(0)
    tasks = []
    for number in range(SUBSCRIBERS):
        tasks.append(asyncio.create_task(_subscriber(port, changes, started)))
        if number % 50 == 49:
            for _ in range(50):
                await started.acquire()
    ready.send("ready")
    found = await asyncio.gather(*tasks)
    return Received(
        complete=sum(numbers == list(range(1, changes + 1)) for numbers, _ in found),
        latencies_s=[latency for _, latencies in found for latency in latencies],
    )


async def _subscriber(port: int, changes: int, started: asyncio.Semaphore) -> tuple[list[int], list[float]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    writer.write(b"GET /api/v1/views/orders/subscribe HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"event: ready\n")
    await reader.readuntil(b"\n\n")
    started.release()
    numbers: list[int] = []
    latencies: list[float] = []
    rest = b""
    while len(numbers) < changes:
        try:
            async with asyncio.timeout(30):
                data = rest + await reader.read(1 << 20)
        except TimeoutError:
            break
        now = time.time()
        whole, _, rest = data.rpartition(b"\n\n")
        numbers += [int(n) for n in re.findall(rb"id: \w+-(\d+)\n", whole)]
        latencies += [now - float(sent) for sent in re.findall(rb'"after":{[^}]*"amount":([0-9.]+)', whole)]
    writer.close()
    return numbers, latencies


def serve(folder: Path, ready: Connection) -> None:
    """Run the app's HTTP server; runs in its own process."""
    from headwater.serve.api.app import ApiContext, create_app
    from headwater.serve.server import HttpServer

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    views, facts = ViewStore(folder / "views.db", read_only=True), FactStore(folder / "facts.db")
    sources = ApiContext(app="bench", views=views, facts=facts, topics=None)
    with HttpServer(create_app(sources), "127.0.0.1", 0) as server:
        ready.send(int(server.url.rpartition(":")[2]))
        ready.recv()


def fan_out(folder: Path, seconds: float) -> Received:
    """Send changes to all subscribers for this many seconds."""
    context = multiprocessing.get_context("spawn")
    batches = int(seconds * FAN_PER_S)
    with closing(ViewStore(folder / "views.db")) as store:
        store.declare(SHAPE)
        mine, theirs = context.Pipe()
        server = context.Process(target=serve, args=(folder, theirs), daemon=True)
        server.start()
        port = mine.recv()
        receiver, sender = context.Pipe()
        readers = context.Process(target=subscribe_all, args=(port, batches * FAN_BATCH, sender), daemon=True)
        readers.start()
        assert receiver.recv() == "ready"
        due = time.monotonic()
        for batch in range(batches):
            ids = list(range(batch * FAN_BATCH, (batch + 1) * FAN_BATCH))
            _commit(store, rows_of(ids, time.time()), batch)
            due += 1 / FAN_PER_S
            time.sleep(max(0.0, due - time.monotonic()))
        received: Received = receiver.recv()
        mine.send("done")
        readers.join(20)
        server.join(20)
    return received


# -- the page ------------------------------------------------------------------------------------------------


def page(reads: dict[str, float], received: Received, seconds: float) -> str:
    fan_s = 2 * seconds
    changes = int(fan_s * FAN_PER_S) * FAN_BATCH
    lines = [
        "# Views",
        "",
        f"Measured by `./dev bench views --write` on {machine()}.",
        "",
        "## Rows by key",
        "",
        f"One process reads random keys of {ROWS:,} rows while another commits {BATCH_ROWS:,} changed rows",
        f"{BATCHES_PER_S} times per second. Figures are medians of {ROUNDS} rounds of {seconds:g} s in turns. The",
        "plain sides have no offsets, no rebuilds and no types: they are an upper bound.",
        "",
        "| | reads/s | compared with | reads/s | ratio | goal | |",
        "|---|--:|---|--:|--:|--:|---|",
        *(_reads_row(reads, *pair) for pair in PAIRS),
        "",
        "## Changes to subscribers",
        "",
        f"{SUBSCRIBERS:,} subscribers over HTTP, {changes:,} changes in {fan_s:g} s, {FAN_BATCH} per commit:",
        f"{changes * SUBSCRIBERS:,} events. Server, subscribers and writer are three processes on the same cores.",
        "Latency is the time from before the commit until a subscriber has the change; the server polls for",
        "changes every 50 ms.",
        "",
        "| subscribers with every change, in order | goal | | p50, ms | p99, ms | maximum, ms |",
        "|--:|--:|---|--:|--:|--:|",
        _fan_row(received),
        "",
    ]
    return "\n".join(lines)


def _reads_row(reads: dict[str, float], mine: str, peer: str, goal: int | None) -> str:
    verdict = "" if goal is None else "ok" if reads[mine] >= goal else "**missed**"
    figures = [f"{reads[mine]:,.0f}", peer, f"{reads[peer]:,.0f}", f"{reads[mine] / reads[peer]:.2f}"]
    return f"| {' | '.join([mine, *figures, '' if goal is None else f'≥ {goal:,}', verdict])} |"


def _fan_row(received: Received) -> str:
    verdict = "ok" if received.complete == SUBSCRIBERS else "**missed**"
    cuts = quantiles(received.latencies_s, n=100)
    times = [f"{seconds * 1e3:,.0f}" for seconds in (cuts[49], cuts[98], max(received.latencies_s))]
    return f"| {' | '.join([f'{received.complete:,}', f'{SUBSCRIBERS:,}', verdict, *times])} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench views", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seconds", type=float, nargs="?", default=5.0)
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with sides(folder) as all_sides:
            rounds = [
                {side.name: reads_per_second(side, options.seconds) for side in all_sides} for _ in range(ROUNDS)
            ]
        reads = {side: median(each[side] for each in rounds) for side in rounds[0]}
        print(json.dumps(reads), flush=True)
        (folder / "fan").mkdir()
        received = fan_out(folder / "fan", options.seconds * 2)
    text = page(reads, received, options.seconds)
    print(text)
    if options.write:
        REPORT.write_text(text)


if __name__ == "__main__":
    main()
