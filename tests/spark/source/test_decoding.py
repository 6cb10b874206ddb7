"""Decoding: every record is either a row or a dead letter."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.app import Topic
from headwater.errors import InvalidError
from headwater.spark.source.decoding import bad_records, event_time_of, explain_misfit, good_rows, parse_schema

ORDERS = Topic(name="orders", schema="id string, n int, amount double, at timestamp", event_time="at")
GOOD = {"id": "a", "n": 1, "amount": 2.5, "at": "2026-01-01T00:00:00Z"}


def records(spark: Any, values: list[bytes | None]) -> Any:
    return spark.createDataFrame(
        [(value, number) for number, value in enumerate(values)], "value binary, offset long"
    ).selectExpr("value", "offset", "timestamp'2026-01-01 00:00:00' as timestamp")


def sort_out(spark: Any, values: list[bytes | None]) -> tuple[list[Any], list[int]]:
    frame = records(spark, values)
    return good_rows(frame, ORDERS).collect(), [r.offset for r in bad_records(frame, ORDERS).collect()]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "the value is null"),
        (b"", "not JSON"),
        (b"not json", "not JSON"),
        (b"123", "a JSON number, expected an object"),
        (b"null", "a JSON null"),
        (b'["a"]', "a JSON array"),
        (b'[{"id": "a", "at": "2026-01-01T00:00:00Z"}, {"id": "b"}]', "a JSON array"),
        (b'{"id": "a"', "not JSON"),
        (b'{"id": "\xff", "at": "2026-01-01T00:00:00Z"}', "not UTF-8"),
        (json.dumps({**GOOD, "amount": "a lot"}).encode(), "field 'amount' is \"a lot\", expected double"),
        (json.dumps({**GOOD, "n": {}}).encode(), "field 'n' is {}, expected int"),
        (json.dumps({**GOOD, "at": "soon"}).encode(), "field 'at' is \"soon\", expected timestamp"),
        (json.dumps({**GOOD, "at": None}).encode(), "event time 'at' is missing"),
        (json.dumps({"id": "a"}).encode(), "event time 'at' is missing"),
        (json.dumps({**GOOD, "n": 2**40}).encode(), "does not match the schema"),
    ],
)
def test_unmatched_record_is_separated_with_a_reason(spark: Any, value: bytes | None, reason: str) -> None:
    good, bad = sort_out(spark, [value, json.dumps(GOOD).encode()])
    assert [row.id for row in good] == ["a"]
    assert bad == [0]
    assert reason in explain_misfit(value, ORDERS)


def test_missing_fields_are_null(spark: Any) -> None:
    good, bad = sort_out(spark, [b'{"at": "2026-01-01T00:00:00Z", "unknown": [1]}'])
    assert [(row.id, row.n, row.amount) for row in good] == [(None, None, None)]
    assert bad == []


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
objects = st.fixed_dictionaries({}, optional=dict.fromkeys(GOOD, anything))
values = st.none() | st.binary(max_size=30) | (anything | objects).map(lambda v: json.dumps(v).encode())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(values, min_size=1, max_size=40))
def test_every_record_is_a_row_or_a_dead_letter(spark: Any, some: list[bytes | None]) -> None:
    good, bad = sort_out(spark, some)
    assert len(good) + len(bad) == len(some)


def test_event_time_is_marked_and_survives_a_filter(spark: Any) -> None:
    rows = good_rows(records(spark, [json.dumps(GOOD).encode()]), ORDERS)
    assert event_time_of(rows.where("n > 0").select("at", "amount")) == "at"
    with pytest.raises(InvalidError, match="no event time among the columns id"):
        event_time_of(rows.select("id"))


def test_record_time_is_the_default_event_time(spark: Any) -> None:
    rows = good_rows(records(spark, [b'{"id": "a"}']), Topic(name="t", schema="id string"))
    assert rows.columns == ["id", "timestamp"]
    assert event_time_of(rows) == "timestamp"


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        (Topic(name="t", schema="id strin"), "cannot read the schema of topic 't'"),
        (Topic(name="t", schema="id string", event_time="at"), "no column 'at'"),
        (Topic(name="t", schema="at string", event_time="at"), "is string, expected timestamp"),
    ],
)
def test_wrong_schema_is_explained(spark: Any, topic: Topic, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        parse_schema(topic)
