"""Statements of questions: they use the indexes, and no page is sorted or read from the start."""

from pathlib import Path

import pytest

from headwater.store.questions import Cursor, Question, order_of, parse_condition
from headwater.store.shapes import Access, ViewShape
from headwater.store.statements import compile_question, parts_of, total_order
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore

SHAPE = ViewShape(
    name="orders",
    key=("id", "line"),
    columns=(
        Column("id", "bigint"),
        Column("line", "int"),
        Column("city", "string"),
        Column("price", "decimal(10,2)"),
        Column("window", "struct<start:timestamp,end:timestamp>"),
    ),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ViewStore:
    path: Path = tmp_path_factory.mktemp("store") / "views.db"
    store = ViewStore(path)
    store.declare(SHAPE, Access(indexes=(("city",), ("price",), ("window.start",))))
    return store


def plans(store: ViewStore, question: Question) -> list[str]:
    db, found = store.reading(), []
    for part in parts_of(question):
        statement = compile_question(SHAPE, question, db.dialect, which=part)
        found += [row[3] for row in db.execute(f"explain query plan {statement.text}", statement.values)]
    return found


@pytest.mark.parametrize(
    ("where", "order"),
    [
        (["id = 5"], ""),
        (["id >= 5", "id < 9"], ""),
        (["city = Ulm"], ""),
        (["city ^= Ul"], "city"),
        (["price > 10"], "price"),
        (["window.start >= 2026-01-01T00:00:00Z"], "-window.start"),
        ([], "city"),
        ([], "-price"),
    ],
)
def test_indexed_columns_are_filtered_and_sorted_by_the_index(
    store: ViewStore, where: list[str], order: str
) -> None:
    question = Question(where=tuple(map(parse_condition, where)), order=order_of(order or ()))
    (plan,) = plans(store, question)
    assert "USING INDEX by_" in plan
    assert plan.startswith("SEARCH" if where else "SCAN")


@pytest.mark.parametrize("order", ["", "city", "-city", "price", "-window.start", "-id"])
def test_a_page_starts_inside_the_index(store: ViewStore, order: str) -> None:
    question = Question(order=order_of(order or ()))
    by = total_order(SHAPE, question)
    next_page = Question(order=question.order, after=Cursor(by, tuple("x" for _ in by)))
    found = plans(store, next_page)
    assert all(plan.startswith("SEARCH v USING INDEX by_") for plan in found), found
