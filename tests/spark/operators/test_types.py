"""Aggregates and orders of every type by a kernel, compared with Spark's own batch SQL: values and types."""

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.errors import InvalidError
from headwater.spark.source.decoding import EVENT_TIME_KEY

NAN, INF = math.nan, math.inf
START = datetime(2026, 1, 1, tzinfo=UTC)

# For each type: values of three rows.
VALUES: dict[str, list[Any]] = {
    "tinyint": [127, None, 127],
    "smallint": [-(2**15), 5, None],
    "int": [2**31 - 1, 2**31 - 1, 1],
    "bigint": [2**62, None, 3],
    "float": [1.5, NAN, None],
    "double": [-INF, -2.5, NAN],
    "decimal(10,2)": [Decimal("0.01"), Decimal("0.02"), Decimal("0.02")],
    "decimal(38,10)": [Decimal("1234567890123456789.0000000001"), None, Decimal("-2.0000000002")],
    "string": ["é", "a", None],
    "binary": [bytearray(b"\xff"), bytearray(b"a"), None],
    "boolean": [True, None, False],
    "date": [date(1969, 12, 31), date(1, 1, 1), None],
    "timestamp": [START, None, datetime(1900, 1, 1, tzinfo=UTC)],
    "timestamp_ntz": [datetime(2026, 1, 1), datetime(1900, 1, 1), None],
    "struct<a:double,b:string>": [(NAN, "x"), (1.0, None), (None, "z")],
    "array<double>": [[1.0, NAN], [], [None, 2.0]],
    "struct<a:array<struct<b:int>>>": [([Row(b=1), Row(b=None)],), (None,), None],
}
NAMES = {kind: f"c{number}" for number, kind in enumerate(VALUES)}
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "decimal(38,10)")

AGGREGATES: dict[str, tuple[Callable[[str], Any], str]] = {
    "n": (hw.count, "count({0})"),
    "least": (hw.min, "min({0})"),
    "most": (hw.max, "max({0})"),
    "kinds": (hw.distinct, "count(distinct {0})"),
    "first": (hw.first, "min_by({0}, if({0} is null, null, at))"),
    "last": (hw.last, "max_by({0}, if({0} is null, null, at))"),
    "all": (hw.collect, "array_compact(sort_array(collect_list(struct(at, {0}))).{0})"),
    "sum": (hw.sum, "sum({0})"),
    "mean": (hw.mean, "avg({0})"),
}


def plain(value: Any) -> Any:
    """Return a value in a form in which NaN equals NaN."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def rows_of(spark: Any) -> Any:
    columns = ", ".join(f"{name} {kind}" for kind, name in NAMES.items())
    rows = [
        (START + timedelta(seconds=number), *values)
        for number, values in enumerate(zip(*VALUES.values(), strict=True))
    ]
    frame = spark.createDataFrame(rows, f"at timestamp, {columns}")
    return frame.withMetadata("at", {EVENT_TIME_KEY: True})


def test_aggregates_have_the_values_and_types_of_spark(spark: Any) -> None:
    rows = rows_of(spark)
    pairs = [
        (f"{aggregate}_{name}", make(name), sql.format(name))
        for kind, name in NAMES.items()
        for aggregate, (make, sql) in AGGREGATES.items()
        if kind in NUMBERS or aggregate not in ("sum", "mean")
    ]
    wanted = rows.selectExpr(*(f"{sql} as {name}" for name, _, sql in pairs))
    (values,) = wanted.collect()
    what = {name: aggregate for name, aggregate, _ in pairs}
    panes = hw.windowed(what=what, where=hw.Global(), how=hw.ACCUMULATING)
    for found in (hw.aggregate(rows, what=what), rows.transform(panes)):
        types = {field.name: field.dataType.simpleString() for field in found.schema.fields}
        assert {name: types[name] for name in what} == {
            field.name: field.dataType.simpleString() for field in wanted.schema.fields
        }
        (row,) = found.select(*what).collect()
        for name in what:
            assert plain(row[name]) == plain(values[name]), name


@pytest.mark.parametrize("order", ["{0}", "{0} desc", "{0} asc nulls last", "{0} desc nulls first"])
def test_rows_are_in_the_order_of_spark(spark: Any, order: str) -> None:
    rows = rows_of(spark).localCheckpoint()
    for kind in ("double", "struct<a:double,b:string>", "array<double>", "boolean"):
        by = order.format(NAMES[kind])
        wanted = [row.at for row in rows.orderBy(F.expr(by) if " " not in by else _column(by)).collect()]
        found = hw.top(rows, 3, order=by, rank="rank").orderBy("rank")
        assert [row.at for row in found.collect()] == wanted
        assert found.drop("rank", "_change", "_watermark").schema.simpleString() == rows.schema.simpleString()


def _column(order: str) -> Any:
    name, *words = order.split()
    return getattr(F.col(name), "_".join(words))()


REFUSED = {
    "map": ("map('a', 1)", "F.map_entries"),
    "variant": ("parse_json('1')", "the column 'x' is variant, which only Spark's own operators can compare"),
    "interval": ("interval 1 month", "the column 'x' is interval month, which only Spark's own operators can"),
    "hours": ("interval 1 hour", "the column 'x' is interval hour, which only Spark's own operators can"),
    "collation": ("'a' collate utf8_lcase", "the column 'x' is string collate UTF8_LCASE, which only Spark's"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_type_that_only_spark_can_compare_is_refused(spark: Any, kind: str) -> None:
    value, message = REFUSED[kind]
    rows = spark.sql(f"select timestamp '2026-01-01' as at, {value} as x").withMetadata(
        "at", {EVENT_TIME_KEY: True}
    )
    what = {"y": hw.max("x")}
    windowed = {"what": what, "where": hw.Tumbling("1 minute")}
    for make in (
        lambda: hw.aggregate(rows, what=what),
        lambda: hw.top(rows, 1, order="x"),
        lambda: rows.transform(hw.windowed(**windowed)),
        lambda: rows.transform(hw.windowed(**windowed, how=hw.RETRACTING)),
    ):
        with pytest.raises(InvalidError, match=message):
            make()


@pytest.mark.parametrize("make", [hw.sum, hw.mean])
@pytest.mark.parametrize("value", ["'1'", "true", "date '2026-01-01'"])
def test_only_numbers_are_summed_on_every_path(spark: Any, make: Any, value: str) -> None:
    rows = spark.sql(f"select timestamp '2026-01-01' as at, {value} as x").withMetadata(
        "at", {EVENT_TIME_KEY: True}
    )
    for how in (None, hw.ACCUMULATING):
        with pytest.raises(InvalidError, match="and not a number"):
            rows.transform(hw.windowed(what={"y": make("x")}, where=hw.Tumbling("1 minute"), how=how))
    with pytest.raises(InvalidError, match="and not a number"):
        hw.aggregate(rows, what={"y": make("x")})


def test_an_overflow_stops_the_query(spark: Any) -> None:
    rows = spark.sql(f"select explode(array({2**63 - 1}, 1)) as x")
    with pytest.raises(Exception, match="'y', the sum of 'x', does not fit a bigint"):
        hw.aggregate(rows, what={"y": hw.sum("x")}).collect()


def test_a_column_of_spark_and_a_list_are_not_aggregates(spark: Any) -> None:
    rows = rows_of(spark)
    for make in (
        lambda what: hw.aggregate(rows, what=what),
        lambda what: hw.rolling(rows, last=2, what=what),
        lambda what: hw.windowed(what=what, where=hw.Session("1 minute")),
    ):
        with pytest.raises(InvalidError, match="'y' is a Spark Column"):
            make({"y": F.stddev("c0")})
        with pytest.raises(InvalidError, match="`what` must be a dictionary of aggregates by name"):
            make([hw.count()])
        with pytest.raises(InvalidError, match="`what` is empty"):
            make({})
