"""Checks queries: the result on each path against SQL over the final rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from differential.queries import Query
from differential.reference import expected_in_duckdb, may_fail, must_fail
from differential.rows import ALONE, END
from differential.simulated import SimulatedQuery, net_rows
from differential.values import differences
from headwater.change import CHANGE
from headwater.errors import HeadwaterError, InvalidError

EXACT = 3
"""Columns of a result that identify its rows: id, k, v."""

Problems = list[str]


def check_simulated(query: Query) -> Problems:
    """Return what is wrong with the result of a query in the simulator; nothing if it is right."""
    try:
        running = SimulatedQuery(query)
    except InvalidError as error:
        return [] if query.refusal else [f"refused: {error}"]
    if query.refusal:
        return [f"it must be refused: {query.refusal}"]
    expected = expected_in_duckdb(query)
    try:
        changes = running.run()
    except HeadwaterError as error:
        return [] if must_fail(expected) or may_fail(expected) else [f"failed: {error}"]
    if must_fail(expected):
        return ["it must fail, because a sum is too large"]
    return differences(net_rows(changes, query.result), expected, EXACT)


def check_batch(spark: Any, query: Query) -> Problems:
    """Return what is wrong with the result and the types of a query in batch on Spark."""
    from differential.on_spark import expected_on_spark, result_in_batch

    try:
        found = result_in_batch(spark, query)
    except InvalidError as error:
        return [] if query.refusal else [f"refused: {error}"]
    if query.refusal:
        return [f"it must be refused: {query.refusal}"]
    expected, _ = expected_on_spark(spark, query)
    return differences(_final(query, found), expected, EXACT)


def check_app(spark: Any, queries: Sequence[Query], folder: Path, delay: str | None = "120 seconds") -> Problems:
    """Return what is wrong with the results of queries in one app; they must have the same data."""
    from differential.on_spark import expected_on_spark, results_in_app

    results = results_in_app(spark, queries, folder, delay=delay)
    problems = []
    for query in queries:
        expected, _ = expected_on_spark(spark, query)
        found = differences(_final(query, results[query.name]), expected, EXACT)
        problems += [f"{query.name}: {problem}" for problem in found]
    return problems


def _final(query: Query, changes: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Return the final rows of a result on Spark, without those of the records that close all windows."""
    if not changes.width:
        return []
    rows = changes.filter(pl.col("k").is_null() | ~pl.col("k").is_in([END, ALONE]))
    if CHANGE not in rows.columns:
        rows = rows.unique(["id", "k"], keep="last", maintain_order=True)
    return net_rows(rows, query.result)
