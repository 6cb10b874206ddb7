"""A store of the previous version, without indexes and search, is migrated with its rows."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.clock import SystemClock
from headwater.errors import InvalidError
from headwater.store.reader import ViewReader
from headwater.store.shapes import Access, ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore

PREVIOUS_VERSION = """
create table headwater_views (name text primary key, key text not null, columns text not null);
create table headwater_progress (query text primary key, run text not null, batch integer not null, note text);
create table headwater_changes (
    view text not null, position integer not null, op text not null,
    key text not null, before text, after text, primary key (view, position)) without rowid;
create table headwater_counters (name text primary key, value integer not null);
create table "view_totals" (_key text primary key, "product", "total") without rowid;
create index "by_key_totals" on "view_totals" ("product");
insert into headwater_views values ('totals', '["product"]', '[["product", "string"], ["total", "double"]]');
insert into headwater_progress values ('totals', 'r', 1, '{}');
insert into "view_totals" values ('["green tea"]', 'green tea', 2.0);
insert into headwater_changes values ('totals', 1, 'c', '["green tea"]', null, '["green tea", 1.0]');
insert into headwater_changes values
    ('totals', 2, 'u', '["green tea"]', '["green tea", 1.0]', '["green tea", 2.0]');
"""
SHAPE = ViewShape(
    name="totals", key=("product",), columns=(Column("product", "string"), Column("total", "double"))
)


def test_a_store_of_the_previous_version_continues(tmp_path: Path) -> None:
    path = tmp_path / "views.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(PREVIOUS_VERSION)
    with pytest.raises(InvalidError, match="has no views of this version yet"):
        ViewStore(path, read_only=True)
    store = ViewStore(path)
    store.declare(SHAPE, Access(search=("product",), indexes=(("total",),)))
    assert not store.commit_rows("totals", pa.table({"product": ["milk"], "total": [9.0]}), run="r", batch=1)
    assert store.commit_rows("totals", pa.table({"product": ["milk"], "total": [9.0]}), run="r", batch=2)
    totals = ViewReader(store, "totals", SystemClock())
    assert [row["product"] for row in totals.search("tea").rows] == ["green tea"]
    assert totals.rows(as_of=1).rows == [{"product": "green tea", "total": 1.0}]
    assert [row["total"] for row in totals.rows(order_by="-total").rows] == [9.0, 2.0]
    store.close()
