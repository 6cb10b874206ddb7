"""Behaviour of a store in PostgreSQL only: several apps, several machines, and broken connections."""

from collections.abc import Callable
from uuid import uuid4

import pyarrow as pa
import pytest

from headwater.errors import ConflictError, InvalidError, UnavailableError
from headwater.store.databases.postgres import hide_password, split_schema
from headwater.store.location import find_store, record_address
from headwater.store.shapes import ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore
from support.postgres import PostgresServer

SHAPE = ViewShape(name="v", key=("k",), columns=(Column("k", "string"), Column("what? 100%", "bigint")))
OpenStore = Callable[..., ViewStore]


def rows(*keys: str) -> pa.Table:
    return pa.table({"k": list(keys), "what? 100%": list(range(len(keys)))})


@pytest.fixture
def location(postgres: PostgresServer) -> str:
    return f"{postgres.dsn}?schema=s{uuid4().hex}"


def test_a_claim_fences_the_earlier_writer(location: str, open_store: OpenStore) -> None:
    before, after = open_store(location), open_store(location)
    before.claim("shop")
    before.declare(SHAPE)
    before.commit_rows("v", rows("a"), run="1", batch=0)
    after.claim("shop")
    with pytest.raises(ConflictError, match="another pipeline has claimed it since"):
        before.commit_rows("v", rows("b"), run="1", batch=1)
    assert after.commit_rows("v", rows("c"), run="1", batch=1)
    assert [row["k"] for row in before.rows("v")] == ["a", "c"]


def test_a_command_writes_alongside_the_app(location: str, open_store: OpenStore) -> None:
    app, command = open_store(location), open_store(location)
    app.claim("shop")
    command.declare(SHAPE)
    assert app.commit_rows("v", rows("a"), run="1", batch=0)


def test_two_apps_do_not_share_a_schema(location: str, open_store: OpenStore) -> None:
    store = open_store(location)
    store.claim("shop")
    with pytest.raises(ConflictError, match=r"cannot store the views of app 'bank'.*the views of app 'shop'"):
        open_store(location).claim("bank")


def test_a_store_survives_a_restart_of_its_server(open_store: OpenStore) -> None:
    with PostgresServer() as server:
        store = open_store(server.dsn)
        store.declare(SHAPE)
        store.commit_rows("v", rows("a"), run="1", batch=0)
        server.kill()
        with pytest.raises(UnavailableError):
            store.commit_rows("v", rows("b"), run="1", batch=1)
        with pytest.raises(UnavailableError):
            store.rows("v")
        server.start()
        assert store.commit_rows("v", rows("a", "b"), run="1", batch=1)
        assert store.rows("v", key=["b"]) == [{"k": "b", "what? 100%": 1}]
        store.close()


def test_the_address_is_recorded_without_its_password(tmp_path) -> None:
    assert find_store(tmp_path) == tmp_path / "views.db"
    address = "postgresql://shop:secret@db:5433/shop?schema=a&password=x&sslmode=require"
    record_address(tmp_path, address)
    assert find_store(tmp_path) == "postgresql://shop@db:5433/shop?schema=a&sslmode=require"
    assert find_store(tmp_path, "postgresql://other/x") == "postgresql://other/x"
    with pytest.raises(InvalidError, match="expected an address"):
        find_store(tmp_path, "mysql://x")
    record_address(tmp_path, None)
    assert find_store(tmp_path) == tmp_path / "views.db"


def test_addresses() -> None:
    assert split_schema("postgresql://h/d?schema=x&sslmode=off") == ("postgresql://h/d?sslmode=off", "x")
    assert split_schema("postgresql://h/d") == ("postgresql://h/d", "headwater")
    with pytest.raises(InvalidError, match="1 to 63 bytes"):
        split_schema("postgresql://h/d?schema=")
    assert hide_password("postgresql://h/d") == "postgresql://h/d"
