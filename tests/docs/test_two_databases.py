"""The examples of two-databases.md on a real PostgreSQL and a real log, with processes that are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from headwater.transmit.broker.embedded import Broker
from support.postgres import PostgresServer

FOLDER = Path(__file__).parents[2] / "examples" / "two_databases"
KILL = "lambda *_, **__: os.kill(os.getpid(), 9)"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        with psycopg.connect(running.dsn, autocommit=True) as db:
            db.execute("alter system set max_prepared_transactions = 10")
        running.kill()
        running.start()
        yield running


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the example, imported as a user's program would import them."""
    monkeypatch.syspath_prepend(FOLDER)
    names = ("log", "outbox", "saga", "prepared")
    yield SimpleNamespace(**{name: __import__(name) for name in names})
    for name in names:
        del sys.modules[name]


@pytest.fixture
def connect(server: PostgresServer) -> Iterator[Callable[..., Any]]:
    """Opens connections to databases that only this test uses."""
    suffix, created, connections = uuid4().hex[:8], set[str](), list[Any]()

    def open_(name: str) -> Any:
        if name not in created:
            with psycopg.connect(server.dsn, autocommit=True) as db:
                db.execute(f"create database {name}_{suffix}")  # type: ignore[arg-type]
            created.add(name)
        connections.append(psycopg.connect(dsn_of(server, f"{name}_{suffix}"), autocommit=True))
        return connections[-1]

    yield open_
    for connection in connections:
        connection.close()


def dsn_of(server: PostgresServer, database: str) -> str:
    return server.dsn.rpartition("/")[0] + "/" + database


def run_killed(program: str, broker: Broker, *connections: Any) -> None:
    """Run a program that kills itself; it has `servers`, and connections like these as `databases`."""
    dsns = [c.info.dsn + f" host={c.info.host} user={c.info.user}" for c in connections]
    head = (
        "import os, psycopg, log, outbox, saga, prepared\n"
        f"servers = {broker.bootstrap_servers!r}\n"
        f"databases = [psycopg.connect(dsn, autocommit=True) for dsn in {dsns!r}]\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
    done = subprocess.run(
        [sys.executable, "-c", head + program], env=environment, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


# -- the outbox -----------------------------------------------------------------------------------------------


@pytest.fixture
def shop_and_warehouse(examples: Any, connect: Any) -> tuple[Any, Any]:
    shop, warehouse = connect("shop"), connect("warehouse")
    shop.execute(examples.outbox.SHOP)
    warehouse.execute(examples.outbox.WAREHOUSE)
    warehouse.execute("insert into stock values ('tea', 100)")
    return shop, warehouse


def left(warehouse: Any) -> int:
    return int(warehouse.execute('select "left" from stock').fetchone()[0])


def test_the_outbox_applies_each_order_once(examples: Any, shop_and_warehouse: Any, broker: Broker) -> None:
    shop, warehouse = shop_and_warehouse
    examples.outbox.place_order(shop, "a", "tea", 3)
    with pytest.raises(psycopg.errors.UniqueViolation):
        examples.outbox.place_order(shop, "a", "tea", 3)
    examples.outbox.relay(shop, broker.bootstrap_servers)
    examples.outbox.follow(warehouse, broker.bootstrap_servers)
    assert left(warehouse) == 97
    assert shop.execute("select count(*) from outbox").fetchone() == (0,)


def test_an_outbox_relay_killed_between_log_and_database_loses_nothing(
    examples: Any, shop_and_warehouse: Any, broker: Broker
) -> None:
    shop, warehouse = shop_and_warehouse
    for n in range(3):
        examples.outbox.place_order(shop, f"order-{n}", "tea", 10)
    run_killed(f"outbox.forget = {KILL}\noutbox.relay(databases[0], servers)", broker, shop)
    examples.outbox.follow(warehouse, broker.bootstrap_servers)
    assert left(warehouse) == 90
    examples.outbox.relay(shop, broker.bootstrap_servers)
    assert len(examples.log.read(broker.bootstrap_servers, "orders")) == 4  # one order is there twice
    for _ in range(2):
        examples.outbox.follow(warehouse, broker.bootstrap_servers)
        assert left(warehouse) == 70


# -- the saga -------------------------------------------------------------------------------------------------

STEPS = """
def reserve(db): db.execute('update stock set "left" = "left" - 1')
def release(db): db.execute('update stock set "left" = "left" + 1')
def charge(db):
    if not db.execute("update account set balance = balance - 5 where balance >= 5").rowcount:
        raise saga.Refused
def refund(db): db.execute("update account set balance = balance + 5")
steps = [
    saga.Step("reserve", databases[0], reserve, release),
    saga.Step("charge", databases[1], charge, refund),
]
"""


class Trip:
    """A warehouse and a bank, and the saga between them."""

    def __init__(self, examples: Any, connect: Any, broker: Broker) -> None:
        self.databases = [connect("warehouse"), connect("bank")]
        for database in self.databases:
            database.execute(examples.saga.DONE)
        self.databases[0].execute('create table stock ("left" int)')
        self.databases[0].execute("insert into stock values (9)")
        self.databases[1].execute("create table account (balance int)")
        self.databases[1].execute("insert into account values (7)")
        self._saga, self._log, self.broker = examples.saga, examples.log, broker
        examples.log.create(broker.bootstrap_servers, "sagas", examples.log.CONDITIONAL)
        names: dict[str, Any] = {"saga": examples.saga, "databases": self.databases}
        exec(STEPS, names)
        self.steps = names["steps"]

    def run(self, name: str) -> list[str]:
        events: list[str] = self._saga.run(name, self.steps, self.broker.bootstrap_servers)
        return events

    def killed(self, name: str, where: str) -> None:
        run_killed(f"{STEPS}\n{where}\nsaga.run({name!r}, steps, servers)", self.broker, *self.databases)

    def state(self) -> tuple[int, int]:
        warehouse, bank = self.databases
        return (
            warehouse.execute('select "left" from stock').fetchone()[0],
            bank.execute("select balance from account").fetchone()[0],
        )


@pytest.fixture
def trip(examples: Any, connect: Any, broker: Broker) -> Trip:
    return Trip(examples, connect, broker)


def test_a_saga_succeeds_or_is_undone(trip: Trip) -> None:
    assert trip.run("a") == ["do reserve", "do charge"]
    assert trip.state() == (8, 2)
    assert trip.run("b") == ["do reserve", "refused charge", "undo reserve"]
    assert trip.state() == (8, 2)
    assert trip.run("a") == ["do reserve", "do charge"]  # already finished


@pytest.mark.parametrize("at", [0, 1])
def test_a_saga_killed_between_a_step_and_its_record_continues(trip: Trip, at: int) -> None:
    append = f"append, calls = log.append, []\ndie = {KILL}\n"
    append += f"log.append = lambda *a, **k: (calls.append(1), die() if len(calls) > {at} else append(*a, **k))"
    trip.killed("a", append)
    assert trip.state() == ((8, 7), (8, 2))[at]
    assert trip.run("a") == ["do reserve", "do charge"]
    assert trip.state() == (8, 2)


def test_a_saga_killed_while_it_is_undone_continues(trip: Trip) -> None:
    trip.databases[1].execute("update account set balance = 0")
    trip.killed("a", f"release = {KILL}\nsteps[0] = saga.Step('reserve', databases[0], reserve, release)")
    assert trip.state() == (8, 0)
    assert trip.run("a") == ["do reserve", "refused charge", "undo reserve"]
    assert trip.state() == (9, 0)


def test_a_saga_that_another_process_continues_stops(
    trip: Trip, examples: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = examples.log.append

    def overtaken(*args: Any, **kwargs: Any) -> int:
        monkeypatch.undo()
        trip.run("a")
        return int(append(*args, **kwargs))

    monkeypatch.setattr(examples.log, "append", overtaken)
    with pytest.raises(examples.log.NotTheFirst):
        trip.run("a")
    assert trip.state() == (8, 2)


# -- prepared transactions ------------------------------------------------------------------------------------

MOVE = """
def take(db): db.execute("update account set balance = balance - 5")
def give(db): db.execute("update account set balance = balance + 5")
"""


class Banks:
    """Two banks that transfer money to each other."""

    def __init__(self, examples: Any, connect: Any, broker: Broker) -> None:
        self._connect = connect
        self.broker, self.prepared = broker, examples.prepared
        self.servers = broker.bootstrap_servers
        for name in ("one", "two"):
            db = connect(name)
            db.execute("create table account (balance int check (balance >= 0))")
            db.execute("insert into account values (7)")
        examples.log.create(self.servers, "decisions", examples.log.CONDITIONAL)
        self.databases = self.open()
        names: dict[str, Any] = {}
        exec(MOVE, names)
        self.works = [names["take"], names["give"]]

    def open(self) -> list[Any]:
        return [self._connect(name) for name in ("one", "two")]

    def move(self, name: str) -> str:
        return str(self.prepared.change_both(name, self.databases, self.works, self.servers))

    def killed(self, name: str, where: str) -> None:
        program = f"{MOVE}\n{where}\nprepared.change_both({name!r}, databases, [take, give], servers)"
        run_killed(program, self.broker, *self.databases)

    def balances(self) -> list[int]:
        return [
            self._connect(name).execute("select balance from account").fetchone()[0] for name in ("one", "two")
        ]


@pytest.fixture
def banks(examples: Any, connect: Any, broker: Broker) -> Banks:
    return Banks(examples, connect, broker)


def test_both_databases_change_or_neither(banks: Banks) -> None:
    assert banks.move("a") == "commit"
    assert banks.balances() == [2, 12]
    assert banks.move("b") == "abort"  # there are only 2 left
    assert banks.balances() == [2, 12]
    assert banks.prepared.recover(banks.open(), banks.servers) == {}


def test_a_kill_before_the_decision_aborts(banks: Banks) -> None:
    banks.killed("a", f"prepared.decide = {KILL}")
    assert banks.prepared.recover(banks.databases, banks.servers) == {"a": "abort"}
    assert banks.balances() == [7, 7]


def test_a_kill_after_the_decision_commits(banks: Banks, server: PostgresServer) -> None:
    banks.killed("a", f"prepared.end = {KILL}")
    server.kill()  # Prepared transactions survive this as well.
    server.start()
    assert banks.prepared.recover(banks.open(), banks.servers) == {"a": "commit"}
    assert banks.balances() == [2, 12]


def test_a_kill_after_the_first_commit_commits_both(banks: Banks) -> None:
    count = f"end, calls, die = prepared.end, [], {KILL}\n"
    banks.killed("a", count + "prepared.end = lambda *a: (calls.append(1), die() if len(calls) > 1 else end(*a))")
    assert banks.balances() == [2, 7]
    assert banks.prepared.recover(banks.databases, banks.servers) == {"a": "commit"}
    assert banks.balances() == [2, 12]


def test_recovery_during_a_slow_transaction_aborts_it(banks: Banks, monkeypatch: pytest.MonkeyPatch) -> None:
    decide = banks.prepared.decide

    def slow(*args: Any) -> str:
        monkeypatch.undo()
        assert banks.prepared.recover(banks.open(), banks.servers) == {"a": "abort"}
        return str(decide(*args))

    monkeypatch.setattr(banks.prepared, "decide", slow)
    assert banks.move("a") == "abort"
    assert banks.balances() == [7, 7]
