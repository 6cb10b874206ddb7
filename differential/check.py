"""Checks one query in the simulator against DuckDB."""

from headwater.errors import HeadwaterError, InvalidError

from differential.queries import Query
from differential.reference import expected_in_duckdb, may_fail, must_fail
from differential.simulated import SimulatedQuery, net_rows
from differential.values import differences

EXACT = 3
"""Columns of a result that identify its rows: id, k, v."""


def check_simulated(query: Query) -> list[str]:
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
