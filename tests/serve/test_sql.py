"""SQL statements over views, topics, Parquet files and PostgreSQL."""

import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.errors import InvalidError, UnavailableError
from headwater.serve.sql import SqlSources, named_tables, run_sql
from headwater.store.arrow import arrow_type, rows_as_arrow
from headwater.store.shapes import ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from support.postgres import PostgresServer

NOON = dt.datetime(2026, 11, 15, 12, 0, tzinfo=dt.UTC)
INSTANT = pa.timestamp("us", tz="UTC")
SHAPE = ViewShape(
    name="revenue",
    key=("product", "window"),
    columns=(
        Column("product", "string"),
        Column("window", "struct<start:timestamp,end:timestamp>"),
        Column("revenue", "decimal(10,2)"),
        Column("customer", "bigint"),
    ),
)


@pytest.fixture
def views(tmp_path: Path) -> Path:
    store = ViewStore(tmp_path / "views.db")
    store.declare(SHAPE)
    windows = [{"start": NOON, "end": NOON + dt.timedelta(minutes=1)}] * 3
    table = pa.table(
        {
            "product": ["tea", "milk", "cocoa"],
            "window": pa.array(windows, pa.struct([("start", INSTANT), ("end", INSTANT)])),
            "revenue": pa.array(map(decimal.Decimal, ("1.50", "2.00", "10.00")), pa.decimal128(10, 2)),
            "customer": [1, 2, 1],
        }
    )
    store.commit_rows("revenue", table, run="r", batch=0)
    store.close()
    return tmp_path / "views.db"


def test_view_topic_parquet_and_postgres_in_one_statement(
    views: Path, broker: Broker, produce: Any, postgres: PostgresServer, tmp_path: Path
) -> None:
    produce(
        broker.bootstrap_servers, "orders", [json.dumps({"product": p}).encode() for p in ("tea", "tea", "milk")]
    )
    pq.write_table(pa.table({"product": ["tea", "cocoa"], "kind": ["leaf", "bean"]}), tmp_path / "kinds.parquet")
    schema = f"s{uuid4().hex}"
    with psycopg.connect(postgres.dsn, autocommit=True) as db:
        db.execute(f"create schema {schema}")
        db.execute(f"create table {schema}.customers (id int, name text, at timestamptz, net cidr)")
        db.execute(
            f"insert into {schema}.customers values (1, 'Ada', now(), '10.0.0.0/8'), (2, 'Bob', now(), null)"
        )
    places = SqlSources(store=views, servers=broker.bootstrap_servers, postgres=postgres.dsn)
    statement = f"""
        with sold as (select value->>'$.product' as product, count(*) as orders from topic.orders group by all)
        select r.product, r.revenue, r.window.start as at, c.name, s.orders, k.kind
        from revenue r
        join pg.{schema}.customers c on c.id = r.customer
        left join sold s using (product)
        left join '{tmp_path}/kinds.parquet' k using (product)
        order by r.revenue
    """
    found = run_sql(statement, places)
    assert found.columns == ["product", "revenue", "at", "name", "orders", "kind"]
    at = "2026-11-15T12:00:00.000000Z"
    assert found.rows == [
        ["tea", "1.50", at, "Ada", 2, "leaf"],
        ["milk", "2.00", at, "Bob", 1, None],
        ["cocoa", "10.00", at, "Ada", None, "bean"],
    ]


def test_a_view_twice_and_an_empty_topic(views: Path, broker: Broker) -> None:
    places = SqlSources(store=views, servers=broker.bootstrap_servers)
    assert run_sql("select count(*) from revenue a join revenue b using (product)", places).rows == [[3]]
    from headwater.transmit.client.client import Client

    with Client(broker.bootstrap_servers) as client:
        client.create_topic("orders.deadletter")
    assert run_sql('select * from topic."orders.deadletter"', places).rows == []


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("selec 1", "syntax error"),
        ("select 1; select 2", "expected one"),
        ("create table t (a int)", "only select statements"),
        ("copy revenue to 'x.csv'", "only select statements"),
        ("select * from nothing", "Table with name nothing does not exist"),
        ("select nothing from revenue", 'column "nothing" not found'),
        ("select * from pg.customers", "no address of PostgreSQL given"),
        ("select * from topic.nowhere", "there is no topic 'nowhere'"),
        ("select * from 'none.parquet'", "none.parquet"),
    ],
)
def test_invalid_statements(views: Path, broker: Broker, statement: str, message: str) -> None:
    with pytest.raises(InvalidError, match=f"(?i){message}"):
        run_sql(statement, SqlSources(store=views, servers=broker.bootstrap_servers))


def test_missing_and_unreachable_addresses(views: Path) -> None:
    with pytest.raises(InvalidError, match="no address of the log given"):
        run_sql("select * from topic.orders", SqlSources(store=views))
    with pytest.raises(UnavailableError):
        run_sql("select * from topic.orders", SqlSources(store=views, servers="127.0.0.1:1"))
    with pytest.raises(UnavailableError):
        run_sql("select * from pg.t", SqlSources(postgres="postgresql://postgres@127.0.0.1:1/x"))


def test_named_tables() -> None:
    statement = """with x as (select * from pg.sales.a) select * from topic."a.b" t join revenue using (k)
    where k in (select k from pg."B c") union all select * from 'x.parquet'"""
    with duckdb.connect() as db:
        assert named_tables(db, statement) == {
            ("pg", "sales", "a"), ("topic", "a.b"), ("revenue",), ("pg", "B c"), ("x.parquet",),
        }  # fmt: skip


def test_rows_keep_their_types(tmp_path: Path) -> None:
    kinds = {
        "tinyint": pa.int8(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(),
        "date": pa.date32(), "timestamp": INSTANT, "timestamp_ntz": pa.timestamp("us"), "binary": pa.binary(),
        "decimal(12,3)": pa.decimal128(12, 3), "string": pa.string(),
        "array<struct<at:timestamp,n:double>>": pa.list_(pa.struct([("at", INSTANT), ("n", pa.float64())])),
        "map<int,array<string>>": pa.map_(pa.int32(), pa.list_(pa.string())),
        "struct<a:int,b:decimal(5,2),c:binary>": pa.struct(
            [("a", pa.int32()), ("b", pa.decimal128(5, 2)), ("c", pa.binary())]
        ),
    }  # fmt: skip
    values: dict[str, list[Any]] = {
        "tinyint": [1, None], "bigint": [2**62, -1], "double": [float("inf"), 0.1], "boolean": [True, None],
        "date": [NOON.date(), None], "timestamp": [NOON, None], "timestamp_ntz": [NOON.replace(tzinfo=None), None],
        "binary": [b"\x00\xff", b""], "decimal(12,3)": [decimal.Decimal("1.250"), None], "string": ["", None],
        "array<struct<at:timestamp,n:double>>": [[{"at": NOON, "n": 0.5}], []],
        "map<int,array<string>>": [[(1, ["x"]), (2, [])], []],
        "struct<a:int,b:decimal(5,2),c:binary>": [{"a": 1, "b": decimal.Decimal("2.50"), "c": b"\x01"}, None],
    }  # fmt: skip
    columns = (Column("k", "int"), *(Column(f"c{n}", kind) for n, kind in enumerate(kinds)))
    table = pa.table(
        {
            "k": pa.array([0, 1], pa.int32()),
            **{f"c{n}": pa.array(values[k], t) for n, (k, t) in enumerate(kinds.items())},
        }
    )
    for kind, type_ in kinds.items():
        assert arrow_type(kind) == type_
    store = ViewStore(tmp_path / "views.db")
    shape = ViewShape(name="v", key=("k",), columns=columns)
    store.declare(shape)
    store.commit_rows("v", table, run="r", batch=0)
    assert rows_as_arrow(store.reading(), shape).sort_by("k").equals(table)
