"""The words for differences of two definitions, and definitions of older versions; without Spark."""

from dataclasses import replace
from typing import Any

import pytest

import headwater as hw
from headwater.errors import ConflictError
from headwater.spark.definition.definition import Definition
from headwater.spark.definition.differences import Effect, check_definition, compare
from headwater.spark.definition.state_types import columns_of_state
from headwater.spark.definition.window_words import name_windows

ROW = "Struct({'product': String, 'at': Datetime(time_unit='us', time_zone='UTC')})"
STATE = {"rows": f"{{'product': String, '_row': {ROW}}}"}
TOPIC = {"name": "orders", "schema": {"product": "string"}, "event time": "at", "delay": None, "idle": None}
NOW = Definition(
    topics=[{**TOPIC, "watermark": None}],
    key=["product"],
    columns={"product": "string", "spread": "double"},
    operators=[{"name": "windowed", "what": {"spread": "Spread()"}, "by": ["product"], "state": STATE}],
    native=[{"name": "groupBy", "by": ["product string"], "what": ["sum(amount)"], "state": ["double"]}],
    partitions=2,
    version=2,
    kind="view",
    steps={"windowed": {"where": ["(amount > 1)"]}, "result": {}},
)  # fmt: skip
OLD = Definition(
    topics=[TOPIC],
    key=["product"],
    columns={"product": "string", "spread": "double"},
    operators=[
        {"name": "windowed", "what": {"spread": "<shop.Spread object>"}, "by": ["product"], "state": STATE}
    ],
    native=["Aggregate [product], [product, sum(amount) AS s]", "time window 2550e983"],
    partitions=2,
)


def query() -> Any:
    app: Any = hw.App("shop")
    app.view(app.topic("orders"), key="product", name="revenue")(lambda orders: orders)
    return app.queries[0]


def test_a_definition_of_version_1_does_not_stop_a_query() -> None:
    assert compare(OLD, NOW) == []


def test_what_a_definition_of_version_1_has_is_compared() -> None:
    (operator,) = NOW.operators
    (difference,) = compare(OLD, replace(NOW, operators=[{**operator, "by": ["product", "city"]}]))
    assert str(difference) == "operator windowed, by: product -> product, city"
    assert not difference.is_compatible


def test_several_differences_are_a_short_list() -> None:
    columns = {f"column_{number}": "string" for number in range(30)}
    with pytest.raises(ConflictError) as refused:
        check_definition(query(), NOW, replace(NOW, columns={**NOW.columns, **columns}, key=["spread"]))
    first, *lines = str(refused.value).splitlines()
    assert first == "cannot continue view 'revenue': its definition has changed since its checkpoint was made:"
    assert lines[:2] == ["  - key: product -> spread", "  - the result has a new column 'column_0' (string)"]
    assert lines[-1] == "  - and 21 more"
    assert len(lines) == 11


def test_long_values_are_shortened_around_the_difference() -> None:
    before, after = (
        "struct<" + ",".join(f"field_{n}:string" for n in range(50)) + f",last:{kind}>"
        for kind in ("int", "bigint")
    )
    (difference,) = compare(
        replace(NOW, columns={"product": before}), replace(NOW, columns={"product": after})
    )  # fmt: skip
    assert "last:int>" in str(difference)
    assert "last:bigint>" in str(difference)
    assert len(str(difference)) < 150


def test_the_state_of_rows_is_compared_column_by_column() -> None:
    (operator,) = NOW.operators
    note = {"rows": STATE["rows"].replace("'at':", "'note': String, 'at':")}
    (difference,) = compare(NOW, replace(NOW, operators=[{**operator, "state": note}]))
    assert str(difference) == "operator windowed: its state has a new column 'note' (string)"


def test_a_view_that_was_a_sink_is_not_swapped_in() -> None:
    with pytest.raises(ConflictError, match="it was a sink, and is a view now") as refused:
        check_definition(query(), replace(NOW, kind="sink"), NOW)
    assert "recompute it from the log" not in (refused.value.hint or "")
    assert "--from start" in (refused.value.hint or "")


def test_prints_of_another_version_are_not_compared() -> None:
    prints = {"windowed, spread": {"state": "Polars 1, Python 3.11: a", "result": "Polars 1, Python 3.11: b"}}
    newer = {"windowed, spread": {"state": "Polars 2, Python 3.11: c", "result": "Polars 2, Python 3.11: d"}}
    assert compare(replace(NOW, aggregates=prints), replace(NOW, aggregates=newer)) == []


def test_another_number_of_partitions_has_no_effect() -> None:
    (difference,) = compare(NOW, replace(NOW, partitions=8))
    assert (str(difference), difference.effect) == ("partitions of Spark: 2 -> 8", Effect.NONE)


def test_types_of_a_state_have_the_names_of_spark() -> None:
    schema = "{'a': List(Struct({'x': Int32, 'y': Decimal(precision=10, scale=2)})), 'b, c': Float64}"
    assert columns_of_state(schema) == {"a": "array<struct<x:int,y:decimal(10,2)>>", "b, c": "double"}


def test_a_struct_that_is_no_window_stays() -> None:
    text = "named_struct('start', 1, 'end', 2)"
    assert name_windows(text) == text
