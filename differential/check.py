"""Checks queries: the result on each path against SQL over the final rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from differential.on_spark import Setting, expected_on_spark, plan_in_app, result_in_batch, results_in_app
from differential.overflow import MESSAGE, may_overflow, overflows_in_batches
from differential.queries import Query
from differential.reference import expected_in_duckdb, may_fail, must_fail
from differential.rows import ALONE, END
from differential.simulated import SimulatedQuery, net_rows
from differential.values import differences
from headwater.change import CHANGE
from headwater.errors import HeadwaterError, InvalidError
from headwater.spark.pipeline.failures import first_line

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
        if must_fail(expected) or may_fail(expected):
            return []
        is_early = MESSAGE in str(error) and overflows_in_batches(query, running.last_inputs)
        return [] if is_early else [f"failed: {error}"]
    if must_fail(expected):
        return ["it must fail, because a sum is too large"]
    return differences(net_rows(changes, query.result), expected, EXACT)


def check_batch(spark: SparkSession, query: Query) -> Problems:
    """Return what is wrong with the result and the types of a query in batch on Spark."""
    try:
        found, types = result_in_batch(spark, query)
    except InvalidError as error:
        return [] if query.refusal else [f"refused: {error}"]
    except PySparkException as error:
        return [] if query.refusal else _failed(query, error)
    if query.refusal:
        # In batch, Spark's own windows have final rows and no changes, so what refuses only changes accepts them.
        return [] if query.has_native_windows else [f"it must be refused: {query.refusal}"]
    try:
        expected, expected_types = expected_on_spark(spark, query)
    except PySparkException as error:
        return [f"Spark SQL fails, and we do not: {first_line(error)}"]
    wrong = [
        f"the type of {name} is {types[name]}, and {expected_types[name]} in Spark"
        for name in query.comparable_types
        if types[name] != expected_types[name]
    ]
    return wrong + differences(_final(query, found), expected, EXACT)


def _failed(query: Query, error: PySparkException) -> Problems:
    """Return a problem, unless the query must fail or may fail."""
    if _may_fail(query) and (MESSAGE in str(error) or "ARITHMETIC_OVERFLOW" in str(error)):
        return []
    return [f"failed: {first_line(error)}"]


def check_app(spark: SparkSession, queries: Sequence[Query], folder: Path, setting: Setting) -> Problems:
    """Return what is wrong with the results of queries in one app; they must have the same data.

    A query that must be refused, or may fail, is not run: it would stop the others.
    """
    problems = []
    for query in queries:
        if query.refusal:
            problems += [f"{query.name}: {problem}" for problem in check_refused(spark, query, folder)]
    running = [query for query in queries if not query.refusal and not _may_fail(query)]
    if not running:
        return problems
    try:
        results = results_in_app(spark, running, folder, setting)
    except InvalidError:  # Some are refused, and the others are to be checked all the same.
        refused = {query.name: _refusal(spark, query, folder) for query in running}
        problems += [f"{name}: refused: {reason}" for name, reason in refused.items() if reason]
        accepted = [query for query in running if not refused[query.name]]
        if len(accepted) == len(running):
            raise
        return problems + check_app(spark, accepted, folder / "accepted", setting)
    except HeadwaterError as error:
        return [*problems, f"the app of {', '.join(query.name for query in running)} failed: {error}"]
    for query in running:
        expected, _ = expected_on_spark(spark, query)
        found = differences(_final(query, results[query.name]), expected, EXACT)
        problems += [f"{query.name}: {problem}" for problem in found]
    return problems


def check_refused(spark: SparkSession, query: Query, folder: Path) -> Problems:
    """Return a problem if an app does not refuse a query that it must refuse."""
    return [] if _refusal(spark, query, folder) else [f"it must be refused: {query.refusal}"]


def _refusal(spark: SparkSession, query: Query, folder: Path) -> str | None:
    """Return the reason why an app refuses a query; None if it does not."""
    try:
        plan_in_app(spark, query, folder)
    except InvalidError as error:
        return str(error)
    return None


def _may_fail(query: Query) -> bool:
    expected = expected_in_duckdb(query)
    return must_fail(expected) or may_fail(expected) or may_overflow(query)


def _final(query: Query, changes: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Return the final rows of a result on Spark, without those of the records that close all windows."""
    if not changes.width:
        return []
    rows = changes.filter(pl.col("k").is_null() | ~pl.col("k").is_in([END, ALONE]))
    if CHANGE not in rows.columns:
        rows = rows.unique(["id", "k"], keep="last", maintain_order=True)
    return net_rows(rows, query.result)
