from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.sink import Batch
from headwater.sinks.net_changes import net_changes

KEYS = st.sampled_from(["a", "b", None])
CHANGES = st.lists(st.tuples(KEYS, st.integers(0, 9), st.sampled_from([1, -1])))


def batch_of(changes: list[tuple[str | None, int, int]], *, signed: bool) -> Batch:
    rows = pa.table(
        {"k": pa.array([k for k, _, _ in changes], pa.string()), "v": [[v] for _, v, _ in changes]},
        schema=pa.schema({"k": pa.string(), "v": pa.list_(pa.int64())}),
    )
    signs = pa.array([sign for _, _, sign in changes], pa.int8()) if signed else None
    return Batch(run="r", number=0, rows=rows, signs=signs)


@given(CHANGES)
def test_the_last_change_of_a_key_wins(changes: list[tuple[str | None, int, int]]) -> None:
    last: dict[Any, tuple[int, int]] = {k: (v, sign) for k, v, sign in changes}
    net = net_changes(batch_of(changes, signed=True), ["k"])
    puts = {row["k"]: row["v"][0] for row in net.puts.to_pylist()}
    deletes = [row["k"] for row in net.deletes.to_pylist()]
    assert puts == {k: v for k, (v, sign) in last.items() if sign > 0}
    assert sorted(deletes, key=str) == sorted((k for k, (_, sign) in last.items() if sign < 0), key=str)
    assert net.puts.num_rows == len(puts)


@given(CHANGES)
def test_without_signs_every_row_is_upserted(changes: list[tuple[str | None, int, int]]) -> None:
    net = net_changes(batch_of(changes, signed=False), ["k"])
    assert {row["k"]: row["v"][0] for row in net.puts.to_pylist()} == {k: v for k, v, _ in changes}
    assert net.deletes.num_rows == 0
