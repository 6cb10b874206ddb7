"""Finds out whether a sum could overflow before the end: the final result fits, and an earlier one does not.

Rows that are retracted or corrected later count until then, so a query may stop with an error although SQL over
the final rows has a result. The same is true of a part of a sum: several tasks sum the rows of one batch.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import polars as pl

from differential.measures import LONG_MAX, LONG_MIN
from differential.queries import Query
from differential.simulated import SimulatedQuery
from headwater.change import CHANGE
from headwater.errors import HeadwaterError

MESSAGE = "does not fit a bigint"


def overflows_in_batches(query: Query, batches: Sequence[pl.DataFrame]) -> bool:
    """Return whether a sum of some rows of a group could overflow, given the input of the last operator by batch.

    The rows are those that were there before a batch, and those of the batch. No part of them is greater than the
    sum of all positive values, or less than that of all negative ones.
    """
    return any(_overflows(column, batches) for column in _summed(query))


def may_overflow(query: Query) -> bool:
    """Return whether a sum could overflow in some cut into batches: if all changes are regarded as one batch."""
    columns = _summed(query)
    if not columns:
        return False
    running = SimulatedQuery(query)
    try:
        running.run()
    except HeadwaterError as error:
        if MESSAGE not in str(error):
            raise
    return any(_overflows(column, [pl.concat(running.last_inputs)]) for column in columns)


def _summed(query: Query) -> list[str]:
    return [
        measure.column
        for measure in query.operators[-1].measures
        if measure.function == "sum" and measure.column in ("v", "h")
    ]


def _overflows(column: str, batches: Iterable[pl.DataFrame]) -> bool:
    present: Counter[tuple[str | None, int]] = Counter()
    for batch in batches:
        weights = batch[CHANGE].to_list() if CHANGE in batch.columns else [1] * batch.height
        changes = list(zip(batch["k"].to_list(), batch[column].to_list(), weights, strict=True))
        changes = [(key, value, weight) for key, value, weight in changes if value]
        totals: Counter[tuple[str | None, bool]] = Counter()
        for key, value, weight in [*((key, value, n) for (key, value), n in present.items()), *changes]:
            totals[key, value * weight > 0] += value * weight
        if any(not LONG_MIN <= total <= LONG_MAX for total in totals.values()):
            return True
        for key, value, weight in changes:
            present[key, value] += weight
    return False
