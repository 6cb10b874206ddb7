"""The expected result of a query: SQL over the final rows, in DuckDB or in Spark."""

from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

from differential.dialects import DUCKDB, Dialect
from differential.measures import ERROR, MAYBE
from differential.queries import Query
from differential.rows import COLUMNS, OTHER, polars_schema
from differential.values import OneOf

Rows = list[tuple[Any, ...]]


def statement(query: Query, dialect: Dialect) -> str:
    """Return the query in SQL; the tables are `rows` and `other`, with event times in microseconds."""
    steps, source = [], "rows"
    for number, (operator, names) in enumerate(zip(query.operators, query.columns, strict=False)):
        text = operator.in_sql(dialect, names).format(input=source, other="other")
        source = f"step{number}"
        steps.append(f"{source} as ({text})")
    return f"with {', '.join(steps)} select {', '.join(query.result)} from {source}"


def tables(query: Query) -> dict[str, pa.Table]:
    """Return the final rows of both inputs."""
    rows = pl.DataFrame(query.data.final, schema=polars_schema(COLUMNS), orient="row")
    other = pl.DataFrame(list(query.data.other), schema=polars_schema(OTHER), orient="row")
    return {"rows": rows.to_arrow(), "other": other.to_arrow()}


def expected_in_duckdb(query: Query) -> Rows:
    """Compute the result in DuckDB."""
    with duckdb.connect(config={"threads": 1}) as db:
        for name, table in tables(query).items():
            db.register(name, table)
        return finish(query, db.execute(statement(query, DUCKDB)).fetchall(), DUCKDB)


def finish(query: Query, found: Rows, dialect: Dialect) -> Rows:
    """Compute the measures of each row from what the SQL returned."""
    measures = query.operators[-1].measures
    exact = len(query.result) - len(measures)
    return [
        (
            *row[:exact],
            *(measure.finish(value, dialect) for measure, value in zip(measures, row[exact:], strict=True)),
        )
        for row in found
    ]


def must_fail(rows: Rows) -> bool:
    """Return whether an aggregate of the expected result does not fit its type."""
    return any(isinstance(value, str) and value == ERROR for row in rows for value in row)


def may_fail(rows: Rows) -> bool:
    """Return whether a part of an aggregate may not fit its type."""
    return any(_is_large(value) for row in rows for value in row)


def _is_large(value: Any) -> bool:
    return isinstance(value, OneOf) and MAYBE in value.values
