"""Transient errors of SQLite: the write fails with UnavailableError, and succeeds later."""

import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.errors import UnavailableError
from headwater.store.databases import sqlite
from headwater.store.pipelines.facts import FactStore
from headwater.store.shapes import ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore

SHAPE = ViewShape(name="counts", key=("word",), columns=(Column("word", "string"),))


def test_a_locked_store_is_unavailable_until_the_lock_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    store = ViewStore(tmp_path / "views.db")
    store.declare(SHAPE)
    other = sqlite3.connect(tmp_path / "views.db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(UnavailableError, match="another process has been writing to it for too long"):
        store.commit_rows("counts", pa.table({"word": ["a"]}), run="1", batch=0)
    with pytest.raises(UnavailableError):
        ViewStore(tmp_path / "views.db")
    other.execute("rollback")
    other.close()
    assert store.commit_rows("counts", pa.table({"word": ["a"]}), run="1", batch=0)
    assert store.rows("counts") == [{"word": "a"}]


def test_a_full_disk_rolls_a_batch_back_and_a_retry_writes_it(tmp_path: Path) -> None:
    store = ViewStore(tmp_path / "views.db")
    store.declare(SHAPE)
    db = store.reading()
    (pages,) = db.execute("pragma page_count").fetchone()
    db.execute(f"pragma max_page_count = {pages + 2}")  # SQLite reports this limit as a full disk.
    table = pa.table({"word": [f"{n:0200d}" for n in range(500)]})
    with pytest.raises(UnavailableError, match="the disk is full"):
        store.commit_rows("counts", table, run="1", batch=0)
    assert store.rows("counts") == []
    db.execute("pragma max_page_count = 100000")
    assert store.commit_rows("counts", table, run="1", batch=0)
    assert store.count("counts") == 500


def test_a_full_disk_loses_one_fact_and_nothing_else(tmp_path: Path) -> None:
    store = FactStore(tmp_path / "facts.db")
    db = store._connection()
    (pages,) = db.execute("pragma page_count").fetchone()
    db.execute(f"pragma max_page_count = {pages}")
    store.add("revenue", {"error": "x" * 100_000}, at_ms=1)
    db.execute("pragma max_page_count = 100000")
    store.add("revenue", {"state": "running"}, at_ms=2)
    assert [fact.body for fact in store.latest("revenue", limit=9)] == [{"state": "running"}]
