"""The notices of a batch do not depend on the order of its rows."""

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidError
from headwater.sink import Batch, Stream
from headwater.sinks import notices as module
from headwater.sinks.notices import check_each, notices

SCHEMA = pa.schema({"k": pa.string(), "v": pa.int64()})
PLAIN = Stream(query="shop.alerts", schema=SCHEMA)
KEYED = Stream(query="shop.alerts", schema=SCHEMA, key=("k",), changes=True)
Changes = list[tuple[str, int, int]]


def batch_of(changes: Changes, *, signed: bool = True, number: int = 3) -> Batch:
    rows = pa.table({"k": [k for k, _, _ in changes], "v": [v for _, v, _ in changes]}, schema=SCHEMA)
    signs = pa.array([s for _, _, s in changes], pa.int8()) if signed else None
    return Batch(run="r", number=number, rows=rows, signs=signs)


def changes_of(stream: Stream, batch: Batch) -> list[tuple[str, Any, Any]]:
    return [(c.op.value, c.before, c.after) for n in notices(stream, batch, each="batch") for c in n.changes]


def row(k: str, v: int) -> dict[str, Any]:
    return {"k": k, "v": v}


def test_the_changes_of_a_key_become_one() -> None:
    changes = [
        ("b", 1, -1),
        ("b", 2, 1),
        ("a", 5, 1),
        ("c", 3, -1),
        ("d", 1, 1),
        ("d", 1, -1),
        ("b", 2, -1),
        ("b", 9, 1),
    ]
    assert changes_of(KEYED, batch_of(changes)) == [
        ("c", None, row("a", 5)),
        ("u", row("b", 1), row("b", 9)),
        ("d", row("c", 3), None),
    ]


def test_every_row_without_a_key_is_a_change() -> None:
    assert changes_of(PLAIN, batch_of([("b", 1, 1), ("a", 1, 1), ("a", 1, 1)], signed=False)) == [
        ("c", None, row("a", 1)),
        ("c", None, row("a", 1)),
        ("c", None, row("b", 1)),
    ]
    assert changes_of(PLAIN, batch_of([("a", 1, 1), ("a", 1, -1)])) == [
        ("c", None, row("a", 1)),
        ("d", row("a", 1), None),
    ]


def test_ids_are_unique_across_batches_and_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHANGES_MAX", 2)
    rows = [(f"{n}", n, 1) for n in range(5)]
    found = [
        *notices(KEYED, batch_of(rows), each="batch"),
        *notices(KEYED, batch_of(rows, number=4), each="batch"),
    ]
    assert [(n.batch, n.part, n.parts, len(n.changes)) for n in found] == [
        (3, 0, 3, 2), (3, 1, 3, 2), (3, 2, 3, 1), (4, 0, 3, 2), (4, 1, 3, 2), (4, 2, 3, 1),
    ]  # fmt: skip
    assert len({n.id for n in found}) == 6
    assert len(notices(KEYED, batch_of(rows), each="row")) == 5


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.just(1))), st.randoms())
def test_the_order_of_rows_does_not_matter(rows: Changes, chance: random.Random) -> None:
    shuffled = chance.sample(rows, len(rows))
    first, second = (notices(PLAIN, batch_of(r, signed=False), each="row") for r in (rows, shuffled))
    assert first == second
    assert [n.id for n in first] == [n.id for n in second]


def test_each_is_batch_or_row() -> None:
    with pytest.raises(InvalidError, match="'batch' or 'row'"):
        check_each("table")
